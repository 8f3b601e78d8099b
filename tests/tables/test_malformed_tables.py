"""Malformed, hand-made and oversized tables: read correctly or rejected in one sentence."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from table_commands import assert_rejected, run, run_ok, write

from compound import CompoundClassifier, CompoundRegressor, Method, load, named_generator
from compound.estimators.encoder import Encoder
from compound.estimators.encoder_columns import CategoricalColumn, NumericColumn
from compound.tables import explain_report, explaining, model_inputs, table_files
from compound.tables.table_files import column_names, infer_table, read_chunks

SMALL = {"max_epochs": 1, "random_state": 0}


pytestmark = pytest.mark.usefixtures("here")


# quotes


@pytest.mark.parametrize(
    "lines,line",
    [
        (
            ["1,x"] * 20 + ['1,"x'] + ["2,y"] * 20 + ['3,"z'] + ["4,x"] * 18,
            22,
        ),  # closed inside a value
        (['1,"', '2,"'] * 30, 2),  # inches without a number: 60 rows would be read as 30
        (["1,5"] * 9 + ['2,"5', "3,6", '4,7"'] + ["5,8"] * 9, 11),  # spans numbers
        (["1,x"] * 20 + ['1,"x'] + ["2,y"] * 20, 22),  # never closed
        (["1,x"] * 20 + ['1,"x'] + ["2,y"] * 200_000, 22),  # never closed, beyond the reader's block
    ],
)
@pytest.mark.parametrize("drop", [False, True])
def test_stray_quotes_are_rejected_with_their_line(lines: list[str], line: int, drop: bool):
    path = write("t.csv", "\n".join(["a,b", *lines]) + "\n")
    with pytest.raises(ValueError, match=rf"line {line} (has a stray|opens a quote)"):
        infer_table(path, ["a"] if drop else None)
    with pytest.raises(ValueError, match=rf"line {line} (has a stray|opens a quote)"):
        list(read_chunks(path, {"a": "number"}))


def test_valid_quotes_are_read():
    path = write(
        "t.csv", 'id,text,n\n7,"Hello, dear,\nbye, you",3\n8,"5"" pipe",4\n9,5" pipe,5\n10,"a\n\nb",6\n'
    )
    table = infer_table(path).frame
    assert table["text"].tolist() == ["Hello, dear,\nbye, you", '5" pipe', '5" pipe', "a\n\nb"]
    assert table["n"].tolist() == [3, 4, 5, 6]
    path = write(
        "t.csv", 'id,text\n7,"Hello\nDear Ann, bye"\n'
    )  # two lines of two entries, but a row starts with a number
    assert infer_table(path).frame["text"].tolist() == ["Hello\nDear Ann, bye"]


# dropped columns are not parsed


@pytest.mark.parametrize("value", ["inf", "2024-02-31", "10:30:00", "1/2/2024", "$5 or 6", "\udcff"])
def test_any_column_can_be_dropped(value: str):
    rows = "".join(f"{i % 7},{value if i == 17 or value[0] in '21' else i},{i}.5\n" for i in range(30))
    Path("t.csv").write_bytes(f"a,odd,y\n{rows}".encode("utf-8", "surrogateescape"))
    assert_rejected(run("fit", "t.csv", "--target", "y"), "'odd'")
    run_ok("fit", "t.csv", "--target", "y", "--drop", "odd", "--method", "map", "--epochs", 1)
    run_ok("predict", "t.model", "t.csv", "--out", "only.csv", "--only")
    if value.isascii():
        run_ok("predict", "t.model", "t.csv", "--out", "a.csv")
        assert [line.split(",")[1] for line in Path("a.csv").read_text().splitlines()] == [
            line.split(",")[1] for line in Path("t.csv").read_text().splitlines()
        ]


def test_typos_in_dropped_columns_are_ignored():
    write("t.csv", "a,odd,y\n" + "".join(f"{i % 7},{'x' if i == 17 else i},{i}.5\n" for i in range(30)))
    with pytest.raises(ValueError, match="line 19, column 'odd' holds 'x'"):
        model_inputs.read_training_table(Path("t.csv"), "y")
    assert list(model_inputs.read_training_table(Path("t.csv"), "y", ["odd"]).x) == ["a"]


NESTED = {
    "list": pa.array([[1, 2]] * 20),
    "struct": pa.array([{"a": 1}] * 20),
    "binary": pa.array([b"ab"] * 20),
    "map": pa.array([[("a", 1)]] * 20, pa.map_(pa.string(), pa.int64())),
    "duration": pa.array(range(20), pa.duration("s")),
}


@pytest.mark.parametrize("kind", NESTED)
def test_nested_and_temporal_parquet_columns_are_rejected_or_dropped(kind: str):
    table = pa.table(
        {"a": [float(i % 6) for i in range(20)], "odd": NESTED[kind], "y": [i / 2 for i in range(20)]}
    )
    pyarrow.parquet.write_table(table, "t.parquet")
    assert_rejected(
        run("fit", "t.parquet", "--target", "y"),
        "t.parquet",
        "'odd'",
        "times" if kind == "duration" else kind,
        "--drop",
    )
    assert_rejected(run("fit", "t.parquet", "--target", "odd"), "'odd'")
    run_ok("fit", "t.parquet", "--target", "y", "--drop", "odd", "--method", "map", "--epochs", 1)
    run_ok("predict", "t.model", "t.parquet", "--out", "a.parquet")
    assert pyarrow.parquet.read_table("a.parquet")["odd"].equals(table["odd"])
    other = table.rename_columns(["odd", "a", "y"])
    pyarrow.parquet.write_table(other, "other.parquet")
    assert_rejected(run("predict", "t.model", "other.parquet"), "'a'", kind)


# booleans, codes, 1 and 1.0


def test_the_training_file_can_be_predicted():
    write("t.csv", "a,sold,y\n" + "".join(f"{i % 7},{i % 2 == 0},{i % 5}.5\n" for i in range(40)))
    run_ok("fit", "t.csv", "--target", "y", "--method", "map", "--epochs", 1)
    run_ok("predict", "t.model", "t.csv", "--out", "a.csv")
    assert load("t.model").encoder_.columns[1].boolean
    codes = Path("t.csv").read_text().replace("True", "1").replace("False", "0.0")
    write("codes.csv", codes)
    run_ok("predict", "t.model", "codes.csv", "--out", "b.csv")
    one, other = pd.read_csv("a.csv"), pd.read_csv("b.csv")
    assert one["sold"].dtype == bool and one["mean"].equals(other["mean"])
    assert np.array_equal(one["mean"], load("t.model").predict(pd.read_csv("t.csv")[["a", "sold"]]))
    run_ok("evaluate", "t.model", "codes.csv")
    result = run_ok("explain", "t.model", "codes.csv", "--row", 1)
    assert "True" in result.output and "e-0" not in result.output.split("Nearest prototypes")[1]


FORMS = {
    "categories": lambda x: pd.Series(pd.Categorical(x)),
    "integers": lambda x: pd.Series(x, dtype="int64"),
    "floats": lambda x: pd.Series(x, dtype="float64"),
    "nullable": lambda x: pd.Series(x, dtype="Int64"),
    "text": lambda x: pd.Series([str(v) for v in x]),
    "text of floats": lambda x: pd.Series([f"{v}.0" for v in x]),
    "objects": lambda x: pd.Series(x, dtype=object),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("codes", [[1, 2, 30], [0, 1, 10]])
def test_codes_are_encoded_alike_in_every_dtype(form: str, codes: list[int]):
    column = codes * 4
    encoder = Encoder.fit(pd.DataFrame({"c": FORMS["categories"](column)}))
    assert isinstance(encoder.columns[0], CategoricalColumn) and encoder.width == 4
    assert np.array_equal(
        encoder.transform(pd.DataFrame({"c": FORMS[form](column)})), np.tile(np.eye(3, 4), (4, 1))
    )
    numbers = Encoder.fit(pd.DataFrame({"c": FORMS["integers"](column)}))
    assert isinstance(numbers.columns[0], NumericColumn)
    exact = numbers.transform(pd.DataFrame({"c": FORMS["floats"](column)}))
    assert np.array_equal(numbers.transform(pd.DataFrame({"c": FORMS[form](column)})), exact)


def test_booleans_are_encoded_alike_in_every_dtype():
    values = [True, False, True, False]
    for form in (
        pd.Series(values),
        pd.Series(pd.Categorical(values)),
        pd.Series([*values[:3], None], dtype=object),
    ):
        table = pd.DataFrame({"c": form, "d": [0.0, 1.0, 2.0, 3.0]})
        model = CompoundRegressor(Method("map", widths=(3,)), **SMALL).fit(table, [0.0, 1.0, 2.0, 3.0])
        as_ones = table.assign(c=[1.0, 0.0, 1.0, np.nan if form.isna().any() else 0.0])
        assert np.array_equal(model.predict(table), model.predict(as_ones))


def test_leading_zeros_of_codes_are_significant():
    encoder = Encoder.fit(pd.DataFrame({"zip": ["007", "7", "x"] * 3}))
    assert encoder.transform(pd.DataFrame({"zip": ["007", "7", "07"]})).argmax(1).tolist() == [0, 1, 3]
    assert not encoder.transform(pd.DataFrame({"zip": ["07"]}))[:, :-1].any()


# targets


def test_uninformative_targets_are_rejected_before_any_work():
    write("t.csv", "name,a,five,y\n" + "".join(f"n{i},{i % 7},5.0,{i}.5\n" for i in range(2000)))
    assert_rejected(run("fit", "t.csv", "--target", "name"), "'name'", "2,000 classes in 2,000 rows")
    line = assert_rejected(run("fit", "t.csv", "--target", "five"), "'five'", "one class only, 5")
    assert "float64" not in line
    assert_rejected(
        run("fit", "t.csv", "--target", "y", "--task", "classification"),
        "line 2",
        "'y'",
        "0.5",
        "--task regression",
    )
    with pytest.raises(ValueError, match=r"one class only, 5\.0:"):
        CompoundClassifier(**SMALL).fit(np.arange(4.0)[:, None], np.full(4, 5.0))


def test_other_delimiters_get_a_hint():
    write("t.csv", "a|b|y\n1|2|3\n")
    assert_rejected(run("fit", "t.csv", "--target", "y"), "no column 'y'", "separated by '|'", "commas")
    write("t.tsv", "a,b,y\n1,2,3\n")
    assert_rejected(run("fit", "t.tsv", "--target", "y"), "separated by ','", "tabs")


def test_a_column_named_distance_is_a_column(here: Path):
    random = np.random.default_rng(0)
    table = pd.DataFrame({"distance": random.normal(700, 1, 60), "b": random.normal(0, 1, 60)})
    model = CompoundRegressor(Method("map", widths=(3,)), **SMALL).fit(table, table["b"])
    explanation = explaining.explain(model, table.head(1), named_generator(0))
    assert all(690 < float(value) < 710 for value in explanation.prototypes["distance"])
    _, _, (_, columns, rows) = explain_report.explanation_tables(explanation)
    assert sorted(row[0] for row in rows) == ["b", "distance"]
    assert all("at distance" in head for head in columns[1:])


# size


@pytest.mark.parametrize("packed", [False, True])
def test_tables_larger_than_memory_are_rejected_while_read(packed: bool, monkeypatch: pytest.MonkeyPatch):
    content = b"a,b,y\n" + b"1.5,2,3\n" * 2_000_000  # 16 MB of text, 40 kB packed
    path = Path("t.csv.gz" if packed else "t.csv")
    path.write_bytes(gzip.compress(content) if packed else content)
    seen = []
    read_batches = table_files.read_batches
    monkeypatch.setattr(
        table_files,
        "read_batches",
        lambda *a: (seen.append(len(part[0])) or part for part in read_batches(*a)),
    )
    monkeypatch.setattr(model_inputs.memory, "available", lambda: 50_000_000)
    with pytest.raises(
        ValueError, match=rf"{path} holds about .* rows of 3 columns.*0\.1 GB are free.*sample"
    ):
        model_inputs.read_training_table(path, "y")
    assert sum(seen) < 500_000  # a few blocks, some of them read ahead


@pytest.mark.parametrize("start", [b"", b'"a', b"a,b,y\n", b'a,b,y\n1,"', b"\n", b'a,b,y\n"1"'])
@pytest.mark.parametrize("filling", [b"\0", b"x,", b"\n", b'"\n",', b"1,2,3"])
def test_decompression_bombs_are_rejected_at_once(start: bytes, filling: bytes):
    Path("t.csv.gz").write_bytes(gzip.compress(start + filling * (4_000_000 // len(filling))))
    assert_rejected(run("fit", "t.csv.gz", "--target", "y"), "t.csv.gz")


def test_tables_with_too_many_columns_are_rejected(monkeypatch: pytest.MonkeyPatch):
    def table(columns: int) -> Path:
        names = ",".join(f"c{i}" for i in range(columns))
        return write("t.csv", f"{names}\n" + ("1," * columns)[:-1] + "\n")

    assert_rejected(run("fit", table(100_000), "--target", "c0"), "100,000 columns", "at most 20,000")
    assert_rejected(run("fit", table(20_000), "--target", "c0"), "19,999 feature columns", "at most 10,000")
    monkeypatch.setattr(model_inputs.memory, "available", lambda: 1_000_000_000)
    assert_rejected(
        run("fit", table(6000), "--target", "c0"),
        "5,999 feature columns",
        "at least 1.4 GB",
        "1.0 GB are free",
    )
    assert_rejected(run("fit", table(6000), "--target", "y"), "no column 'y'", "and 5,990 more")
    assert len(column_names(table(20_000))) == 20_000


INVALID_OPTIONS = [
    *("name=3", "self=1", "lam=abc", "lam=Infinity", "lam={}", "lam=" + "[" * 5000, "log_col=[]"),
    *("members=-1", "members=1.5", "members=true", "members=NaN", "members=1000000000"),
    *("widths=5", "widths=[0]", "widths=[[1]]", 'widths=["a"]', "widths=null5", "far=99999999999999999999"),
]


@pytest.mark.parametrize("option", INVALID_OPTIONS)
def test_invalid_options_are_rejected(option: str):
    write("t.csv", "a,y\n" + "".join(f"{i},{i}.5\n" for i in range(20)))
    assert_rejected(run("fit", "t.csv", "--target", "y", "--option", option), option.partition("=")[0])


def test_valid_options_are_accepted():
    numbers = ({"lam": [1e-3, 1e-5]}, {"lam": 1}, {"members": None}, {"far": np.float32(2)})
    for options in (*numbers, {"widths": (np.int64(5),)}, {"widths": ()}):
        assert Method("ml-cdn", **options).options == options
