"""Types of table columns: how text becomes numbers, booleans or categories, the same for fit and predict.

A text column is numeric where every value is a number. Beside numbers, true and false count as 1 and 0; a
column of true and false alone is boolean.
"""

import re
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from compound.estimators.number_forms import SPACES, SYMBOLS, NumberForm
from compound.estimators.times import ISO_TIME

TRUE = pa.array(["true", "True", "TRUE"])
FALSE = pa.array(["false", "False", "FALSE"])
MISSING = pa.array(["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?", "#N/A"])
LOSSLESS_TYPES = (pa.int64(), pa.float64(), pa.bool_())  # targets of `cast_lossless`, in order of preference
_NUMBER = r"(?i)^[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|infinity|nan)$"
_DECIMAL = r"^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$"
TYPO_RATIO = 0.9  # a column with at least this fraction of numbers is numeric, and text in it a typo
TYPO_VALUES = 10  # fewest values for which TYPO_RATIO is applied
PROBE = 1000  # first values of a column that are cast before the rest: most text columns fail there


class ParsedNumbers(NamedTuple):
    """A column parsed as numbers."""

    values: pa.Array  # float64, null where missing or invalid
    invalid: NDArray[Any]  # (rows,) bool: present but not a number
    n_booleans: int  # values that are true or false

    @property
    def is_boolean(self) -> bool:
        """Whether all values present are true or false."""
        n_present = len(self.values) - self.values.null_count
        return 0 < self.n_booleans == n_present and not self.invalid.any()


def is_text(dtype: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(dtype) or pa.types.is_large_string(dtype) or pa.types.is_string_view(dtype)
    )


def is_temporal(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(dtype) and not pa.types.is_interval(dtype))


def is_date(dtype: pa.DataType) -> bool:
    """Whether a value is a date, with or without a time of day."""
    return bool(pa.types.is_date(dtype) or pa.types.is_timestamp(dtype))


def is_scalar(dtype: pa.DataType) -> bool:
    """Whether a value is one number, boolean or text (or null), and not a list, struct or bytes."""
    numeric = pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal(dtype)
    return bool(numeric or pa.types.is_boolean(dtype) or pa.types.is_null(dtype)) or is_text(dtype)


def to_array(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array, dictionary encoding removed."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    array = pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def parse_numbers(column: pa.Array) -> ParsedNumbers:
    """Parse a column of numbers, booleans or text as float64."""
    if is_text(column.type):
        return _parse_text(column)
    is_float64 = pa.types.is_floating(column.type) and column.type.bit_width == 64
    values = column if is_float64 else column.cast(pa.float64(), safe=False)
    n_booleans = (len(column) - column.null_count) * pa.types.is_boolean(column.type)
    return ParsedNumbers(values, np.zeros(len(column), bool), n_booleans)


def _parse_text(column: pa.Array) -> ParsedNumbers:
    """`parse_numbers` of a text column."""
    for to_null in (_empty_to_null, _missing_to_null):  # the first is faster, and enough for most columns
        text = to_null(column)
        if (values := _try_cast(text, pa.float64())) is not None:
            return ParsedNumbers(values, np.zeros(len(column), bool), 0)
    is_true = pc.is_in(text, TRUE)
    is_false = pc.is_in(text, FALSE)
    digits = pc.if_else(is_true, "1", pc.if_else(is_false, "0", text.cast(pa.string())))
    is_number = pc.match_substring_regex(digits, _NUMBER)  # null where missing
    values = pc.if_else(is_number, digits, pa.scalar(None, pa.string())).cast(pa.float64())
    invalid = pc.fill_null(pc.invert(is_number), False).to_numpy(zero_copy_only=False)
    return ParsedNumbers(values, invalid, pc.sum(pc.or_(is_true, is_false)).as_py())


def _try_cast(text: pa.Array, dtype: pa.DataType) -> pa.Array | None:
    """Text cast to `dtype`, None if any value cannot be."""
    try:
        text.slice(0, PROBE).cast(dtype)  # fails early: casting a whole column of text is slow
        return text.cast(dtype)
    except pa.ArrowInvalid:
        return None


def _empty_to_null(column: pa.Array) -> pa.Array:
    """Text with "" replaced by null."""
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)


def _missing_to_null(column: pa.Array) -> pa.Array:
    """Text without outer spaces, with the values in MISSING replaced by null."""
    text = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.is_in(text, MISSING), pa.scalar(None, text.type), text)


def to_categories(column: pa.Array, parse_missing: bool) -> "pd.Series[Any]":
    """Values of a categorical column, unchanged; with `parse_missing`, text such as NA becomes missing."""
    if is_text(column.type) and parse_missing:
        column = pc.if_else(pc.is_in(column, MISSING), pa.scalar(None, column.type), column)
    return column.to_pandas(integer_object_nulls=True)


def to_numbers(parsed: ParsedNumbers, boolean: bool) -> "pd.Series[Any]":
    """The parsed values as float64; with `boolean`, as booleans if every value is 0, 1 or missing."""
    if boolean:
        is_binary = pc.or_(pc.equal(parsed.values, 0.0), pc.equal(parsed.values, 1.0))
        if pc.all(is_binary).as_py() is not False:
            return parsed.values.cast(pa.bool_(), safe=False).to_pandas()
    return parsed.values.to_pandas().astype(np.float64)


def infer_numbers(column: pa.Array, parsed: ParsedNumbers) -> "pd.Series[Any] | None":
    """A text column as integers, floats or booleans; None if a value is not a number.

    `parsed` is `parse_numbers(column)`.
    """
    if parsed.invalid.any():
        return None
    if parsed.is_boolean:
        return to_numbers(parsed, True)
    integers = None if parsed.values.null_count else _try_cast(pc.utf8_trim_whitespace(column), pa.int64())
    return to_numbers(parsed, False) if integers is None else integers.to_pandas()


def all_match(column: pa.Array, pattern: str) -> bool:
    """Whether all values of a text column that are not missing match a regular expression, and there are any.

    Most columns fail in their first values, which are tried first.
    """
    for part in (column.slice(0, PROBE), column):
        present = _missing_to_null(part).drop_null()
        if not pc.all(pc.match_substring_regex(present, f"^({pattern})$"), min_count=0).as_py():
            return False
    return len(present) > 0


def to_times(column: pa.Array) -> "pd.Series[Any]":
    """A column of dates or timestamps as datetimes."""
    return (column.cast(pa.timestamp("ms")) if pa.types.is_date(column.type) else column).to_pandas()


def starts_with_time(column: pa.Array) -> bool:
    """Whether any of the first values of a text column is an ISO date."""
    start = _missing_to_null(column.slice(0, PROBE)).drop_null()
    return bool(pc.any(pc.match_substring_regex(start, f"^({ISO_TIME})$"), min_count=0).as_py())


def parse_times(column: pa.Array) -> tuple["pd.Series[Any]", NDArray[Any]]:
    """A text column as datetimes (UTC where there are zones), and which values (rows,) bool are none."""
    text = _missing_to_null(column)
    is_time = pc.fill_null(pc.match_substring_regex(text, f"^({ISO_TIME})$"), False)
    kept = pc.if_else(is_time, text, pa.scalar(None, text.type)).to_pandas().astype(object)
    times = pd.to_datetime(kept, format="ISO8601", utc=True, errors="coerce").dt.tz_localize(None)
    return times, (times.isna() & pc.is_valid(text).to_pandas()).to_numpy(bool)


def parse_form(column: pa.Array, form: NumberForm) -> ParsedNumbers:
    """`parse_numbers` of text whose numbers have a form; its currency or percent sign may be missing."""
    text = pc.replace_substring_regex(_missing_to_null(column), f"[{SPACES}]", " ")
    symbol = re.escape(form.symbol)
    after = "" if form.symbol == "%" else rf"({symbol})? ?"
    pattern = rf"^[+-]? ?{after}[+-]?{form.digits} ?({symbol})?$"
    is_number = pc.fill_null(pc.match_substring_regex(text, pattern), False)
    digits = pc.if_else(is_number, text, pa.scalar(None, text.type))
    for sign in (*SYMBOLS[1:], form.thousands, " ", "+"):
        digits = pc.replace_substring(digits, sign, "")
    values = pc.replace_substring(digits, form.decimal, ".").cast(pa.float64())
    plain = parse_numbers(column) if form.decimal == "." else None
    if plain is not None:  # 1e3
        values = pc.coalesce(values, plain.values)
        is_number = pc.or_(is_number, pc.is_valid(plain.values))
    invalid = pc.and_(pc.is_valid(text), pc.invert(is_number)).to_numpy(zero_copy_only=False)
    return ParsedNumbers(values, invalid, 0)


def distinct_text(column: pa.Array) -> list[str]:
    """The distinct values of a text column, without missing ones."""
    values: list[str] = _missing_to_null(column).unique().drop_null().to_pylist()
    return values


def find_typo(parsed: ParsedNumbers) -> tuple[int, int] | None:
    """Row of the first text value in a column that is mostly numbers, and their percentage, or None.

    Without this check a single typo would turn a numeric column into a categorical one.
    """
    if parsed.n_booleans:  # true, false, unknown: a categorical column
        return None
    return first_typo(parsed.invalid, len(parsed.invalid) - parsed.values.null_count)


def first_typo(invalid: NDArray[Any], n_valid: int) -> tuple[int, int] | None:
    """Row of the first invalid value, and the percentage of valid ones, where few are invalid; else None.

    `invalid` is (rows,) bool, `n_valid` counts the others that are not missing.
    """
    n_present = n_valid + int(invalid.sum())
    ratio = n_valid / max(n_present, 1)
    is_typo = n_present >= TYPO_VALUES and TYPO_RATIO <= ratio < 1
    return (int(invalid.argmax()), int(100 * ratio)) if is_typo else None


def cast_lossless(column: pa.Array, dtype: pa.DataType) -> pa.Array | None:
    """Text cast to `dtype`, empty text to null; None if that loses information (007, 2^53 + 1 as float)."""
    text = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
    if pa.types.is_boolean(dtype):
        is_true = pc.is_in(text, TRUE)
        is_boolean = pc.or_(is_true, pc.is_in(text, FALSE))
        lossless = pc.all(pc.or_(is_boolean, pc.is_null(text))).as_py()
        return pc.if_else(is_boolean, is_true, pa.scalar(None, dtype)) if lossless else None
    values = _try_cast(text, dtype)
    if values is None:
        return None
    same = pc.equal(values.cast(pa.string()), text)
    if pa.types.is_floating(dtype):  # float64 distinguishes all numbers of 15 digits
        n_digits = pc.utf8_length(pc.replace_substring_regex(text, r"[eE].*|[^0-9]", ""))
        same = pc.or_(same, pc.and_(pc.match_substring_regex(text, _DECIMAL), pc.less_equal(n_digits, 15)))
        same = pc.and_(same, pc.is_finite(values))
    return values if pc.all(same).as_py() is not False else None
