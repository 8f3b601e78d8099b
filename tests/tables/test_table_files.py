"""Table files and their encoding: formats, types, chunks, errors with line and column."""

import gzip
import json

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from compound.estimators.columns import as_frame
from compound.estimators.encoder import Encoder
from compound.estimators.encoder_columns import SURE
from compound.tables.table_files import infer_table, read_chunks


def frame(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    out = pd.DataFrame(
        {"age": draw.normal(40, 10, rows), "city": draw.choice(["Bern", "Oslo", "Rome"], rows)}
    )
    out["paid"] = draw.random(rows) < 0.3
    out.loc[::9, "age"] = np.nan
    out.loc[4, "city"] = None
    out["flat"] = 1e12
    return out


def test_encoder_agrees_with_scikit_learn():
    table, fresh = frame(), frame(30, seed=1)
    fresh.loc[0, "city"] = "Lima"  # unseen in training
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    categories = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    oracle = make_column_transformer(
        (numbers, ["age"]), (categories, ["city"]), (StandardScaler(), ["paid", "flat"])
    )
    table["city"] = table["city"].fillna("Bern")
    oracle.fit(table)
    encoder = Encoder.fit(table)
    encoded = encoder.transform(fresh)
    assert encoder.names == [
        "age",
        "age missing",
        "city = Bern",
        "city = Oslo",
        "city = Rome",
        "paid",
        "flat",
        "surprise",
    ]
    np.testing.assert_allclose(np.delete(encoded, [1, 7], axis=1), oracle.transform(fresh), atol=1e-6)
    np.testing.assert_array_equal(encoded[:, 1], fresh["age"].isna())


def test_rare_and_unseen_categories_share_a_feature():
    table = pd.DataFrame({"category": ["a"] * 5 + ["b"] * 4 + ["c", "d", None, None, None]})
    encoder = Encoder.fit(table)
    assert encoder.names == [
        "category = a",
        "category = b",
        "category = missing",
        "category = other",
        "surprise",
    ]
    encoded = encoder.transform(pd.DataFrame({"category": ["b", "c", "never", None]}))[:, :-1]
    assert encoded.argmax(1).tolist() == [1, 3, 3, 2] and (encoded.sum(1) == 1).all()


def test_number_of_categories_is_bounded():
    table = pd.DataFrame({"name": [f"n{i // 3}" for i in range(1200)]})
    assert Encoder.fit(table).width == 300 + 1


def test_encoder_config_round_trips_through_json():
    encoder = Encoder.fit(frame())
    again = Encoder.from_config(json.loads(json.dumps(encoder.to_config())))
    assert again == encoder
    assert np.array_equal(again.transform(frame(seed=2)), encoder.transform(frame(seed=2)))


def test_arrays_and_data_frames_are_encoded_alike():
    values = np.random.default_rng(0).normal(size=(20, 3)) * [1, 1e9, 1e-9]
    values[3, 1] = np.nan
    encoded = Encoder.fit(values).transform(values)
    np.testing.assert_array_equal(Encoder.fit(pd.DataFrame(values)).transform(pd.DataFrame(values)), encoded)
    assert (np.abs(encoded.mean(0)) < 1e-6).tolist() == [
        True,
        True,
        False,
        True,
        True,
    ]  # the third tells where the gap is, the last is the surprise


def test_extreme_numbers_saturate_and_infinite_ones_are_rejected():
    encoder = Encoder.fit(np.array([[0.0], [1.0]]))
    assert encoder.transform(np.array([[1e300], [-1e300]])).tolist() == [[1e4, SURE], [-1e4, SURE]]
    with pytest.raises(ValueError, match="'x0' holds numbers too large"):
        Encoder.fit(np.array([[1e200], [-1e200]]))
    with pytest.raises(ValueError, match="'a' holds inf at row 1"):
        Encoder.fit(pd.DataFrame({"a": [0.0, np.inf]}))


def surprise(encoder, **changes):
    """The surprise of one ordinary row with these values changed."""
    row = {"age": 50.0, "often": 1.0, "city": "Bern", "note": "n3"} | changes
    return encoder.transform(pd.DataFrame({name: [value] for name, value in row.items()}))[0, -1]


def test_surprise_is_zero_for_ordinary_rows_and_sure_for_new_kinds_of_values():
    n = 1000
    table = pd.DataFrame(
        {
            "age": np.linspace(0, 100, n),  # never missing
            "often": np.where(np.arange(n) % 3, 1.0, np.nan),
            "city": np.array(["Bern", "Oslo", "Rome"] * n)[:n],
            "note": [f"n{i}" for i in range(n)],  # every row brings a new value
        }
    )
    encoder = Encoder.fit(table)
    assert not encoder.transform(table)[:, -1].any()
    assert surprise(encoder) == 0 and surprise(encoder, often=np.nan) == 0
    assert (
        surprise(encoder, age=np.nan)
        == surprise(encoder, city="Lima")
        == surprise(encoder, city=None)
        == SURE
    )
    assert surprise(encoder, note="new") == 0  # ordinary in this column, but for a gap
    assert surprise(encoder, note=None) == SURE
    gaps = Encoder.fit(table.assign(note=table["note"].mask(table.index == 5)))
    assert surprise(gaps, note=None) == 0
    margin = 100 * 10 / n
    width = 100 + 2 * margin
    for excess in (0.1, 0.25, 0.5):
        expected = SURE * (2 * excess) ** 3
        assert surprise(encoder, age=100 + margin + excess * width) == pytest.approx(expected, rel=1e-5)
        assert surprise(encoder, age=-margin - excess * width) == pytest.approx(expected, rel=1e-5)
    assert surprise(encoder, age=1e300) == SURE
    assert surprise(encoder, age=np.nan, city="Lima") == 2 * SURE


def test_a_category_without_an_indicator_is_no_surprise_if_training_had_it():
    encoder = Encoder.fit(pd.DataFrame({"city": ["Bern"] * 500 + ["Oslo"] * 498 + ["Rome"] * 2}))
    assert encoder.names == ["city = Bern", "city = Oslo", "city = other", "surprise"]
    assert encoder.transform(pd.DataFrame({"city": ["Rome", "Lima"]}))[:, -1].tolist() == [0, SURE]


@pytest.mark.parametrize("kind", ["Int64", "boolean", "category", "string", "datetime", "Float64"])
def test_columns_of_every_dtype_are_encoded(kind):
    values = {
        "category": ["a", "b", None] * 3,
        "string": ["a", "b", None] * 3,
        "boolean": [True, False, None] * 3,
    }
    table = pd.DataFrame({"c": values.get(kind, [3, 4, None] * 3)})
    table["c"] = pd.to_datetime(table["c"], unit="D") if kind == "datetime" else table["c"].astype(kind)
    coded = Encoder.fit(table).transform(table)
    assert (
        np.array_equal(coded[0], coded[3])
        and not np.array_equal(coded[0], coded[1])
        and not np.array_equal(coded[1], coded[2])
    )


def test_polars_frames_are_accepted():
    polars = pytest.importorskip("polars")
    table = frame()
    pd.testing.assert_frame_equal(as_frame(polars.from_pandas(table)), table, check_dtype=False)
    assert as_frame(np.zeros((2, 2))) is None


def written(table: pd.DataFrame, path) -> None:
    if path.name.endswith(".parquet"):
        table.to_parquet(path, index=False)
    else:
        table.to_csv(path, index=False, sep="\t" if ".tsv" in path.name else ",")


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "t.parquet"])
def test_every_format_gives_the_same_rows_at_once_or_in_chunks(name, tmp_path):
    table = frame()
    written(table, tmp_path / name)
    encoder = Encoder.fit(table)
    at_once = infer_table(tmp_path / name).frame
    assert np.array_equal(encoder.transform(at_once), encoder.transform(table))
    chunks = [chunk.frame for chunk in read_chunks(tmp_path / name, encoder.types(), rows=7)]
    assert max(map(len, chunks)) <= 7
    assert np.array_equal(
        np.concatenate([encoder.transform(chunk) for chunk in chunks]), encoder.transform(table)
    )


BAD = {
    "a row too short": (b"a,b\n1,2\n\n3\n", "line 4 has 1 entries, the header 2"),
    "a row too long": (b"a,b\n1,2\n3,4,5\n", "line 3 has 3 entries, the header 2"),
    "empty": (b"", "is empty"),
    "a header alone": (b"a,b\n", "no rows"),
    "not UTF-8": (b"a,b\n1,x\n2,\xff\n", "line 3, column 'b' is not UTF-8"),
    "header not UTF-8": (b"a,\xff\n1,2\n", "line 1 is not UTF-8"),
    "two of a name": (b"a,a\n1,2\n", "two columns 'a'"),
    "a typo": (b"a\n" + b"1\n" * 12 + b"x\n" + b"2\n" * 12, "line 14, column 'a' holds 'x'"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("packed", [False, True])
def test_bad_files_are_rejected_with_line_and_column(name, packed, tmp_path):
    content, message = BAD[name]
    path = tmp_path / ("bad.csv.gz" if packed else "bad.csv")
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(ValueError, match=message) as raised:
        infer_table(path)
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


def test_given_types_are_not_inferred(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b'a,b\n1,"two\nlines"\n,7\nz,8\n')
    with pytest.raises(ValueError, match="line 5, column 'a' holds 'z': it must be a number"):
        list(read_chunks(path, {"a": "number", "b": "text"}))
    with pytest.raises(ValueError, match="no column 'c'"):
        list(read_chunks(path, {"c": "number"}))
    path.write_bytes(b"a,b\n1,007\n?,8\n")
    ((_, table),) = read_chunks(path, {"a": "number", "b": "text"})
    assert table["b"].tolist() == ["007", "8"] and np.isnan(table["a"][1])


def test_unknown_missing_and_truncated_files_are_rejected(tmp_path):
    with pytest.raises(ValueError, match="unknown format"):
        infer_table(tmp_path / "t.xlsx")
    with pytest.raises(ValueError, match="missing"):
        infer_table(tmp_path / "t.csv")
    content = gzip.compress(b"a,b\n" + b"1,2\n" * 100)
    (tmp_path / "t.csv.gz").write_bytes(content[:-12])
    with pytest.raises(ValueError, match=r"truncated|damaged|complete"):
        infer_table(tmp_path / "t.csv.gz")
    (tmp_path / "t.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="cannot be read"):
        infer_table(tmp_path / "t.parquet")


def test_real_tables_are_read(data_dir):
    titanic = infer_table(data_dir / "tables" / "titanic.csv.gz").frame
    assert len(titanic) == 891 and titanic["age"].isna().sum() == 177
    encoder = Encoder.fit(titanic)
    assert np.isfinite(encoder.transform(titanic)).all() and "sex = male" in encoder.names
