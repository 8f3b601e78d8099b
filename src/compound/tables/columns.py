"""Columns of a file as numbers, truth values or words: the same rules for learning from a file and for asking about one.

Text counts as a number where all of it does; true and false are 1 and 0 beside numbers, and truth values where they are alone.
"""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

MISSING = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?", "#N/A"]
TRUE, FALSE = pa.array(["true", "True", "TRUE"]), pa.array(["false", "False", "FALSE"])
_GAPS = pa.array(MISSING)
_NUMBER = r"(?i)^[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|infinity|nan)$"
_TIME = r"^(\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?|\d\d:\d\d(:\d\d(\.\d+)?)?)$"
ALMOST = 0.9  # a text column with at least this share of numbers is a number column with a slip
FIRST = 1000  # values that tell most columns of words
SOME = 10  # values from which on that share means something


class Parsed(NamedTuple):
    """Text read as numbers."""

    values: pa.Array  # float64, null where there is none
    wrong: NDArray[Any]  # (rows,) there is something, and it is no number
    truths: int  # how many of the values are truth values

    @property
    def boolean(self) -> bool:
        return 0 < self.truths == len(self.values) - self.values.null_count and not self.wrong.any()


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(kind) and not pa.types.is_interval(kind))


def is_simple(kind: pa.DataType) -> bool:
    """Whether there is one number, truth value or word per row (or nothing at all)."""
    exact = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return bool(exact or pa.types.is_boolean(kind) or pa.types.is_null(kind)) or is_text(kind)


def flat(column: pa.ChunkedArray) -> pa.Array:
    """One array of the values themselves, where a file keeps a list of categories and places in it."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    whole = pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
    return whole.dictionary_decode() if pa.types.is_dictionary(whole.type) else whole


def parsed(column: pa.Array) -> Parsed:
    """Numbers, truth values or text as numbers."""
    kind = column.type
    if not is_text(kind):
        values = (
            column
            if pa.types.is_floating(kind) and kind.bit_width == 64
            else column.cast(pa.float64(), safe=False)
        )
        return Parsed(
            values, np.zeros(len(column), bool), (len(column) - column.null_count) * pa.types.is_boolean(kind)
        )
    for read in (_as_is, _without_gaps):  # most columns are read by the first, which is faster
        words = read(column)
        if (values := _cast(words, pa.float64())) is not None:
            return Parsed(values, np.zeros(len(column), bool), 0)
    yes, no = pc.is_in(words, TRUE), pc.is_in(words, FALSE)
    spelt = pc.if_else(yes, "1", pc.if_else(no, "0", words.cast(pa.string())))
    good = pc.match_substring_regex(spelt, _NUMBER)  # null where missing
    values = pc.if_else(good, spelt, pa.scalar(None, pa.string())).cast(pa.float64())
    wrong = pc.fill_null(pc.invert(good), False).to_numpy(zero_copy_only=False)
    return Parsed(values, wrong, pc.sum(pc.or_(yes, no)).as_py())


def _cast(words: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Text as numbers, where all of it is."""
    try:
        words.slice(0, FIRST).cast(kind)  # a message for every word that is none takes time
        return words.cast(kind)
    except pa.ArrowInvalid:
        return None


def _as_is(column: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)


def _without_gaps(column: pa.Array) -> pa.Array:
    words = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.is_in(words, _GAPS), pa.scalar(None, words.type), words)


def words(column: pa.Array, gaps: bool) -> "pd.Series[Any]":
    """Values of a category as they stand; with `gaps`, text such as NA stands for nothing."""
    if is_text(column.type) and gaps:
        column = pc.if_else(pc.is_in(column, _GAPS), pa.scalar(None, column.type), column)
    return column.to_pandas(integer_object_nulls=True)


def numbers(found: Parsed, boolean: bool) -> "pd.Series[Any]":
    """As truth values where those were learnt from and nothing else stands there."""
    if (
        boolean
        and pc.all(pc.or_(pc.equal(found.values, 0.0), pc.equal(found.values, 1.0))).as_py() is not False
    ):
        return found.values.cast(pa.bool_(), safe=False).to_pandas()
    return found.values.to_pandas().astype(np.float64)


def guessed(column: pa.Array, found: Parsed) -> "pd.Series[Any] | None":
    """Text as what it seems to be: whole numbers, numbers, truth values; None where words stand in it."""
    if found.wrong.any():
        return None
    if found.boolean:
        return numbers(found, True)
    whole = None if found.values.null_count else _cast(pc.utf8_trim_whitespace(column), pa.int64())
    return numbers(found, False) if whole is None else whole.to_pandas()


def is_clock(column: pa.Array) -> bool:
    """Whether text is dates or times of day throughout."""
    there = column.filter(pc.invert(pc.is_in(column, _GAPS)))
    return len(there) > 0 and bool(pc.all(pc.match_substring_regex(there, _TIME)).as_py())


def slip(found: Parsed) -> tuple[int, int] | None:
    """The row of a word among numbers and the percentage of numbers: it would turn a whole column to text."""
    if found.truths:  # true, false, unknown: words
        return None
    present = len(found.wrong) - found.values.null_count + int(found.wrong.sum())
    share = 1 - found.wrong.sum() / max(present, 1)
    return (int(found.wrong.argmax()), int(100 * share)) if present >= SOME and ALMOST <= share < 1 else None


EXACT = (pa.int64(), pa.float64(), pa.bool_())  # what text may become without loss, the first that suits
_DECIMAL = r"^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$"


def exactly(column: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Text as values of a kind, empty text as gaps; None where more than a way of spelling would be lost: 007, 2^53 + 1 as a float."""
    there = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
    if pa.types.is_boolean(kind):
        yes = pc.is_in(there, TRUE)
        good = pc.or_(yes, pc.is_in(there, FALSE))
        return (
            pc.if_else(good, yes, pa.scalar(None, kind))
            if pc.all(pc.or_(good, pc.is_null(there))).as_py()
            else None
        )
    values = _cast(there, kind)
    if values is None:
        return None
    good = pc.equal(values.cast(pa.string()), there)
    if pa.types.is_floating(kind):  # a float64 tells all numbers of 15 digits apart
        digits = pc.utf8_length(pc.replace_substring_regex(there, r"[eE].*|[^0-9]", ""))
        good = pc.or_(good, pc.and_(pc.match_substring_regex(there, _DECIMAL), pc.less_equal(digits, 15)))
        good = pc.and_(good, pc.is_finite(values))
    return values if pc.all(good).as_py() is not False else None
