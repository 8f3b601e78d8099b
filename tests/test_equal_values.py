"""Values that are equal are encoded alike, in whatever type a table or a file holds them."""

import tempfile
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compound.estimators.encoder import Encoder
from compound.tables.table_files import read_table

PROFILE = settings(max_examples=40, deadline=None)
NUMBERS = {  # forms of integers, some of them missing (None)
    "float": lambda x: pd.Series(x, dtype="float64"),
    "Float64": lambda x: pd.Series(x, dtype="Float64"),
    "Int64": lambda x: pd.Series(x, dtype="Int64"),
    "arrow": lambda x: pd.Series(x, dtype="int64[pyarrow]"),
    "objects": lambda x: pd.Series(x, dtype=object),
    "float objects": lambda x: pd.Series([None if v is None else float(v) for v in x], dtype=object),
    "decimals": lambda x: pd.Series([None if v is None else Decimal(v) for v in x], dtype=object),
    "text": lambda x: pd.Series([None if v is None else str(v) for v in x], dtype=object),
    "text of floats": lambda x: pd.Series([None if v is None else f"{v}.0" for v in x], dtype="str"),
    "categories": lambda x: pd.Series(pd.Categorical(x)),
    "categories of floats": lambda x: pd.Series(pd.Categorical(np.array(x, dtype=float))),
    "categories of text": lambda x: pd.Series(pd.Categorical([None if v is None else str(v) for v in x])),
}
BOOLEANS = {  # forms of booleans, some of them missing
    "objects": lambda x: pd.Series(x, dtype=object),
    "boolean": lambda x: pd.Series(x, dtype="boolean"),
    "arrow": lambda x: pd.Series(x, dtype="bool[pyarrow]"),
    "text": lambda x: pd.Series([None if v is None else str(v) for v in x], dtype=object),
    "lower": lambda x: pd.Series([None if v is None else str(v).lower() for v in x], dtype="str"),
    "categories": lambda x: pd.Series(pd.Categorical(x)),
    "categories of text": lambda x: pd.Series(pd.Categorical([None if v is None else str(v) for v in x])),
    **{
        f"ones, {name}": lambda x, form=form: form([None if v is None else int(v) for v in x])
        for name, form in NUMBERS.items()
    },
}
NOT_IN_PARQUET = [name for name in (*NUMBERS, *BOOLEANS) if "categories of floats" in name]
integers = st.lists(st.none() | st.integers(-(2**40), 2**40), min_size=1, max_size=6).filter(
    lambda values: any(value is not None for value in values)
)
booleans = st.lists(st.none() | st.booleans(), min_size=1, max_size=6).filter(
    lambda values: any(value is not None for value in values)
)


def agree(values, first: "pd.Series", others: dict[str, "pd.Series"]) -> None:
    """An encoder fitted to one form encodes every other the same, in data frames and in files."""
    encoder = Encoder.fit(pd.DataFrame({"c": first}))
    expected = encoder.transform(pd.DataFrame({"c": first}))
    for name, form in others.items():
        table = pd.DataFrame({"c": form})
        assert np.array_equal(encoder.transform(table), expected), (name, values)
    (kind,) = encoder.types().values()
    table = pd.DataFrame({**others, "row": 0})
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("csv", "parquet"):
            path = Path(folder, f"t.{suffix}")
            held = [name for name in others if suffix == "csv" or name not in NOT_IN_PARQUET]
            table[[*held, "row"]].to_csv(path, index=False) if suffix == "csv" else table[held].to_parquet(
                path
            )
            for name, read in read_table(path, dict.fromkeys(held, kind)).items():
                assert np.array_equal(encoder.transform(pd.DataFrame({"c": read})), expected), (name, suffix)


@pytest.mark.parametrize("first", NUMBERS)
def test_integers_are_encoded_alike(first):
    @settings(PROFILE, max_examples=10)
    @given(integers)
    def check(values):
        values = values * 3
        agree(values, NUMBERS[first](values), {name: form(values) for name, form in NUMBERS.items()})

    check()


@pytest.mark.parametrize("first", BOOLEANS)
def test_booleans_are_encoded_alike(first):
    @settings(PROFILE, max_examples=5)
    @given(booleans)
    def check(values):
        values = values * 3
        agree(values, BOOLEANS[first](values), {name: form(values) for name, form in BOOLEANS.items()})

    check()


def test_negative_zero_is_zero():
    for values in ([0.0, 1.0], ["0", "1"]):
        encoder = Encoder.fit(pd.DataFrame({"c": pd.Categorical(values * 3)}))
        for zero in (0, -0.0, "-0", "-0.0", "0.0", False):
            coded = encoder.transform(pd.DataFrame({"c": pd.Series([zero], dtype=object)}))
            assert coded.tolist() == [[1.0, 0.0, 0.0]], repr(zero)
