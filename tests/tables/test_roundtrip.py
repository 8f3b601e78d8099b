"""`compound predict` writes the columns of its input unchanged: csv text, parquet values and types."""

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

PROFILE = settings(max_examples=25, deadline=None)


@pytest.fixture(scope="module")
def model() -> CompoundRegressor:
    """A regressor on a number, a boolean and a category."""
    rows = 60
    table = pd.DataFrame(
        {
            "number": np.arange(rows) % 7 / 3,
            "boolean": np.arange(rows) % 2 == 0,
            "category": ["a", "b", "1"] * (rows // 3),
        }
    )
    table.loc[5, "number"] = np.nan
    return CompoundRegressor(Method("map", widths=(3,)), max_epochs=1, random_state=0).fit(
        table, table["number"].fillna(0)
    )


def predict_bytes(model: CompoundRegressor, source: bytes, kind: str, out: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, f"t.{kind}"), Path(folder, f"out.{out}")
        before.write_bytes(source)
        predict_file(model, before, after, 0.9, False, lambda rows: None)
        return after.read_bytes()


text = st.text(st.characters(codec="utf-8", exclude_characters="\x00\ufeff"), max_size=12)
integers = st.integers(-(2**63), 2**63 - 1)
missing = st.sampled_from(["", "NA", "NaN", "null", "?"])
booleans = st.sampled_from(["True", "False", "true", "false", "TRUE", "0", "1", "1.0"])
numerals = st.one_of(
    integers.map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(-1000, 1000, places=3).map(str),
    st.sampled_from(["007", "1e3", "1.50", "+5", ".5", "5.", " 2 ", "-0", "9007199254740993"]),
    missing,
    booleans,
)
dates = st.datetimes().map(lambda day: day.isoformat(" "))
any_text = st.one_of(
    text,
    numerals,
    dates,
    st.sampled_from(["a,b", 'say "no"', "two\nlines", "a\tb", "Zürich", '"', ";", " a "]),
)


@PROFILE
@given(
    rows=st.lists(
        st.tuples(any_text, numerals, any_text, booleans | missing, any_text, dates | missing),
        min_size=1,
        max_size=12,
    ),
    form=st.sampled_from(
        [(csv.QUOTE_ALL, "\n"), (csv.QUOTE_ALL, "\r\n"), (csv.QUOTE_MINIMAL, "\r\n")]
    ),  # with \n alone, \r is not quoted
    kind=st.sampled_from(["csv", "tsv"]),
)
def test_csv_text_is_unchanged(model, rows, form, kind):
    names, delimiter = (
        ["text", "number", "other", "boolean", "category", "day"],
        {"csv": ",", "tsv": "\t"}[kind],
    )
    page = io.StringIO(newline="")
    csv.writer(page, delimiter=delimiter, quoting=form[0], lineterminator=form[1]).writerows([names, *rows])
    output = predict_bytes(model, page.getvalue().encode(), kind, kind).decode()
    head, *lines = csv.reader(io.StringIO(output, newline=""), delimiter=delimiter, strict=True)
    assert head[:6] == names and head[6] == "mean"
    assert [tuple(line[:6]) for line in lines] == rows


naive = st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1))
arrow = {
    "text": (pa.string(), text),
    "large text": (pa.large_string(), text),
    "integer": (pa.int64(), integers),
    "unsigned": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "small": (pa.int8(), st.integers(-128, 127)),
    "float": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "day": (pa.date32(), st.dates()),
    "moment": (pa.timestamp("us", "Europe/Berlin"), naive),
    "span": (pa.duration("ms"), st.integers(0, 10**9)),
    "exact": (pa.decimal128(12, 3), st.decimals(-1000, 1000, places=3)),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), text),
    "bytes": (pa.binary(), st.binary(max_size=5)),
    "list": (pa.list_(pa.int64()), st.lists(integers, max_size=3)),
    "number": (pa.int64(), integers),
    "boolean": (pa.bool_(), st.booleans()),
    "category": (pa.string(), text),
}


@PROFILE
@given(data=st.data(), rows=st.integers(1, 8))
def test_parquet_values_and_types_are_unchanged(model, data, rows):
    columns = {
        name: pa.array(data.draw(st.lists(st.none() | values, min_size=rows, max_size=rows), name), kind)
        for name, (kind, values) in arrow.items()
    }
    table = pa.table(columns)
    page = io.BytesIO()
    pyarrow.parquet.write_table(table, page)
    output = pyarrow.parquet.read_table(
        io.BytesIO(predict_bytes(model, page.getvalue(), "parquet", "parquet"))
    )
    back = output.select(table.column_names)
    assert back.schema == table.schema
    assert back.equals(table)


def test_pandas_metadata_of_parquet_is_kept(model):
    table = pd.DataFrame(
        {
            "number": [1.0, 2.0],
            "boolean": [True, False],
            "category": ["a", "b"],
            "id": pd.array([2**62 + 1, None], "Int64"),
        },
        index=[7, 9],
    )
    page = io.BytesIO()
    table.to_parquet(page)
    output = pd.read_parquet(io.BytesIO(predict_bytes(model, page.getvalue(), "parquet", "parquet")))
    pd.testing.assert_frame_equal(output[list(table)], table)


def test_parquet_to_csv_writes_text(model):
    columns = {
        "number": [0.1, None],
        "boolean": [True, None],
        "category": ["a", 'b"'],
        "id": [2**62 + 1, None],
        "day": [datetime.date(2024, 5, 1), None],
    }
    page = io.BytesIO()
    pyarrow.parquet.write_table(pa.table(columns), page)
    lines = predict_bytes(model, page.getvalue(), "parquet", "csv").decode().splitlines()
    assert lines[1].startswith("0.1,true,a,4611686018427387905,2024-05-01,")
    assert lines[2].startswith(',,"b""",,,')
    pyarrow.parquet.write_table(pa.table({**columns, "tags": [[1], [2, 3]]}), page := io.BytesIO())
    with pytest.raises(ValueError, match=r"column 'tags' holds list.*\.parquet or give --only"):
        predict_bytes(model, page.getvalue(), "parquet", "csv")


def test_csv_to_parquet_casts_only_without_loss(model):
    names = b"number,boolean,category,id,zip,price,long,day,none"
    lines = [b"9007199254740993,True,a,-3,007,1.50,9007199254740993,2024-05-01,", b",False,b,4,8,,1.5,,"]
    output = pyarrow.parquet.read_table(
        io.BytesIO(predict_bytes(model, b"\n".join([names, *lines]), "csv", "parquet"))
    )
    assert [str(field.type) for field in output.schema][:9] == [
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
    assert output["number"].to_pylist() == [9007199254740993, None]
    assert output["price"].to_pylist() == [1.5, None]
    assert output["zip"].to_pylist() == ["007", "8"]
    assert output["long"].to_pylist() == ["9007199254740993", "1.5"]


@PROFILE
@given(st.lists(numerals | text, min_size=1, max_size=4))
def test_cast_lossless_keeps_all_information(texts):
    column = pa.array(texts)
    for kind in LOSSLESS_TYPES:
        values = cast_lossless(column, kind)
        if values is not None:
            for text, value in zip(texts, values.to_pylist(), strict=True):
                if value is None:
                    assert text == ""
                elif isinstance(value, bool):
                    assert text.lower() == str(value).lower()
                else:  # the nearest number of as many digits is that of the text
                    assert (
                        Decimal(text) == value
                        or Decimal(text) == Decimal(repr(value))
                        or f"{value:.15g}" == f"{Decimal(text):.15g}"
                    )
