"""The user's own columns come out of `predict` as they went in: text letter by letter, parquet value and type."""

import csv
import datetime
import io
import tempfile
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compound import CompoundRegressor, Method
from compound.tables.column_types import LOSSLESS_TYPES, cast_lossless
from compound.tables.streaming import predict_file

MANY = settings(max_examples=25, deadline=None)


@pytest.fixture(scope="module")
def model() -> CompoundRegressor:
    """Reads a number, a truth value and a word."""
    rows = 60
    table = pd.DataFrame(
        {
            "number": np.arange(rows) % 7 / 3,
            "truth": np.arange(rows) % 2 == 0,
            "word": ["a", "b", "1"] * (rows // 3),
        }
    )
    table.loc[5, "number"] = np.nan
    return CompoundRegressor(Method("map", widths=(3,)), max_epochs=1, random_state=0).fit(
        table, table["number"].fillna(0)
    )


def answered(model: CompoundRegressor, source: bytes, kind: str, out: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, f"t.{kind}"), Path(folder, f"out.{out}")
        before.write_bytes(source)
        predict_file(model, before, after, 0.9, False, lambda rows: None)
        return after.read_bytes()


letters = st.text(st.characters(codec="utf-8", exclude_characters="\x00\ufeff"), max_size=12)
whole = st.integers(-(2**63), 2**63 - 1)
gaps = st.sampled_from(["", "NA", "NaN", "null", "?"])
truths = st.sampled_from(["True", "False", "true", "false", "TRUE", "0", "1", "1.0"])
numerals = st.one_of(
    whole.map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(-1000, 1000, places=3).map(str),
    st.sampled_from(["007", "1e3", "1.50", "+5", ".5", "5.", " 2 ", "-0", "9007199254740993"]),
    gaps,
    truths,
)
dates = st.datetimes().map(lambda day: day.isoformat(" "))
anything = st.one_of(
    letters,
    numerals,
    dates,
    st.sampled_from(["a,b", 'say "no"', "two\nlines", "a\tb", "Zürich", '"', ";", " a "]),
)


@MANY
@given(
    rows=st.lists(
        st.tuples(anything, numerals, anything, truths | gaps, anything, dates | gaps),
        min_size=1,
        max_size=12,
    ),
    form=st.sampled_from(
        [(csv.QUOTE_ALL, "\n"), (csv.QUOTE_ALL, "\r\n"), (csv.QUOTE_MINIMAL, "\r\n")]
    ),  # with \n alone \r gets no quotes
    kind=st.sampled_from(["csv", "tsv"]),
)
def test_csv_comes_out_letter_by_letter(model, rows, form, kind):
    names, delimiter = ["text", "number", "other", "truth", "word", "day"], {"csv": ",", "tsv": "\t"}[kind]
    page = io.StringIO(newline="")
    csv.writer(page, delimiter=delimiter, quoting=form[0], lineterminator=form[1]).writerows([names, *rows])
    found = answered(model, page.getvalue().encode(), kind, kind).decode()
    head, *lines = csv.reader(io.StringIO(found, newline=""), delimiter=delimiter, strict=True)
    assert head[:6] == names and head[6] == "mean"
    assert [tuple(line[:6]) for line in lines] == rows


naive = st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1))
arrow = {
    "text": (pa.string(), letters),
    "large text": (pa.large_string(), letters),
    "integer": (pa.int64(), whole),
    "unsigned": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "small": (pa.int8(), st.integers(-128, 127)),
    "float": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "day": (pa.date32(), st.dates()),
    "moment": (pa.timestamp("us", "Europe/Berlin"), naive),
    "span": (pa.duration("ms"), st.integers(0, 10**9)),
    "exact": (pa.decimal128(12, 3), st.decimals(-1000, 1000, places=3)),
    "category": (pa.dictionary(pa.int32(), pa.string()), letters),
    "bytes": (pa.binary(), st.binary(max_size=5)),
    "list": (pa.list_(pa.int64()), st.lists(whole, max_size=3)),
    "number": (pa.int64(), whole),
    "truth": (pa.bool_(), st.booleans()),
    "word": (pa.string(), letters),
}


@MANY
@given(data=st.data(), rows=st.integers(1, 8))
def test_parquet_comes_out_with_its_types(model, data, rows):
    columns = {
        name: pa.array(data.draw(st.lists(st.none() | values, min_size=rows, max_size=rows), name), kind)
        for name, (kind, values) in arrow.items()
    }
    table = pa.table(columns)
    page = io.BytesIO()
    pyarrow.parquet.write_table(table, page)
    found = pyarrow.parquet.read_table(io.BytesIO(answered(model, page.getvalue(), "parquet", "parquet")))
    back = found.select(table.column_names)
    assert back.schema == table.schema
    assert back.equals(table)


def test_what_pandas_says_about_its_columns_is_kept(model):
    table = pd.DataFrame(
        {
            "number": [1.0, 2.0],
            "truth": [True, False],
            "word": ["a", "b"],
            "id": pd.array([2**62 + 1, None], "Int64"),
        },
        index=[7, 9],
    )
    page = io.BytesIO()
    table.to_parquet(page)
    found = pd.read_parquet(io.BytesIO(answered(model, page.getvalue(), "parquet", "parquet")))
    pd.testing.assert_frame_equal(found[list(table)], table)


def test_parquet_as_csv_is_spelt_out(model):
    columns = {
        "number": [0.1, None],
        "truth": [True, None],
        "word": ["a", 'b"'],
        "id": [2**62 + 1, None],
        "day": [datetime.date(2024, 5, 1), None],
    }
    page = io.BytesIO()
    pyarrow.parquet.write_table(pa.table(columns), page)
    lines = answered(model, page.getvalue(), "parquet", "csv").decode().splitlines()
    assert lines[1].startswith("0.1,true,a,4611686018427387905,2024-05-01,")
    assert lines[2].startswith(',,"b""",,,')
    pyarrow.parquet.write_table(pa.table({**columns, "tags": [[1], [2, 3]]}), page := io.BytesIO())
    with pytest.raises(ValueError, match=r"column 'tags' holds list.*\.parquet or give --only"):
        answered(model, page.getvalue(), "parquet", "csv")


def test_csv_as_parquet_has_numbers_where_nothing_is_lost(model):
    names = b"number,truth,word,id,zip,price,long,day,none"
    lines = [b"9007199254740993,True,a,-3,007,1.50,9007199254740993,2024-05-01,", b",False,b,4,8,,1.5,,"]
    found = pyarrow.parquet.read_table(
        io.BytesIO(answered(model, b"\n".join([names, *lines]), "csv", "parquet"))
    )
    assert [str(field.type) for field in found.schema][:9] == [
        "int64",
        "bool",
        "string",
        "int64",
        "string",
        "double",
        "string",
        "string",
        "string",
    ]
    assert found["number"].to_pylist() == [9007199254740993, None]
    assert found["price"].to_pylist() == [1.5, None]
    assert found["zip"].to_pylist() == ["007", "8"]
    assert found["long"].to_pylist() == ["9007199254740993", "1.5"]


@MANY
@given(st.lists(numerals | letters, min_size=1, max_size=4))
def test_what_text_becomes_tells_all_of_it(texts):
    column = pa.array(texts)
    for kind in LOSSLESS_TYPES:
        values = cast_lossless(column, kind)
        if values is not None:
            for text, value in zip(texts, values.to_pylist(), strict=True):
                if value is None:
                    assert text == ""
                elif isinstance(value, bool):
                    assert text.lower() == str(value).lower()
                else:  # the nearest number of as many digits is the one that was written
                    assert (
                        Decimal(text) == value
                        or Decimal(text) == Decimal(repr(value))
                        or f"{value:.15g}" == f"{Decimal(text):.15g}"
                    )
