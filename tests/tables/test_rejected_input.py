"""Invalid files and arguments of table commands: one sentence, before any work, no file left behind."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from table_commands import NUMBERS, assert_rejected, houses, run, run_ok, write

from compound.tables import (
    evaluating,
    explaining,
    fitting,
    model_inputs,
    streaming,
)


def spoil(text: str, line: int, old: str, new: str) -> str:
    lines = text.splitlines()
    assert old in lines[line - 1]
    lines[line - 1] = lines[line - 1].replace(old, new, 1)
    return "\n".join(lines) + "\n"


TABLE = "size,weight,city,garden,price\n" + "".join(
    f"{40 + i}.5,{i % 7},Ulm,true,{100 + i}.25\n" for i in range(30)
)
BAD = {
    "no-target": (TABLE.replace("price", "cost"), ["no column 'price'", "cost"]),
    "empty": ("", ["is empty"]),
    "no-rows": ("size,weight,city,garden,price\n", ["no rows"]),
    "short": (spoil(TABLE, 17, ",Ulm", ""), ["line 17", "4 entries"]),
    "word": (spoil(TABLE, 12, "50.5", "big"), ["line 12", "'size'", "'big'"]),
    "not-utf8": (spoil(TABLE, 9, "Ulm", "Köln").encode("latin-1"), ["line 9", "'city'", "UTF-8"]),
    "infinite": (spoil(TABLE, 12, "50.5", "inf"), ["line 12", "'size'", "infinite"]),
    "twice": (TABLE.replace("weight", "size"), ["two columns 'size'"]),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("packed", [False, True])
def test_bad_files_are_rejected_by_fit(here: Path, name: str, packed: bool):
    content, expected = BAD[name]
    path = "t.csv.gz" if packed else "t.csv"
    data = content if isinstance(content, bytes) else content.encode()
    Path(path).write_bytes(gzip.compress(data) if packed else data)
    assert_rejected(run("fit", path, "--target", "price"), path, *expected)
    assert [entry.name for entry in here.iterdir()] == [path]


@pytest.mark.parametrize("name", ["empty", "no-rows", "short", "word", "not-utf8", "infinite", "no-column"])
def test_bad_files_are_rejected_by_predict_and_evaluate(home: Path, here: Path, name: str):
    bad = {
        **BAD,
        "no-column": (TABLE.replace("city", "town"), ["no column 'city'", "size, weight, city, garden"]),
    }
    content, expected = bad[name]
    write("t.csv", content)
    assert_rejected(run("predict", home / "price.model", "t.csv"), "t.csv", *expected)
    assert_rejected(run("evaluate", home / "price.model", "t.csv", "--out", "page.html"), "t.csv", *expected)
    assert_rejected(run("explain", home / "price.model", "t.csv", "--row", "1"), "t.csv", *expected)
    assert [entry.name for entry in here.iterdir()] == ["t.csv"]


def test_an_error_in_the_last_row_keeps_the_previous_output(
    home: Path, here: Path, monkeypatch: pytest.MonkeyPatch
):
    row = "{}.5,{},Ulm,true,{}.25\n"  # 60,000 rows are more than one block of the reader
    lines = "".join(row.format(40 + i % 20, i % 7, 100 + i % 50) for i in range(60_000))
    write("t.csv", "size,weight,city,garden,price\n" + lines + "1,2,Ulm,true,maybe\n1,many,Ulm,true,4\n")
    Path("a.csv").write_text("previous")
    predictions = pd.DataFrame({name: np.zeros(streaming.CHUNK_ROWS) for name in NUMBERS})
    monkeypatch.setattr(
        streaming, "predict_frame", lambda model, table, coverage: predictions.head(len(table))
    )
    assert_rejected(
        run("predict", home / "price.model", "t.csv", "--out", "a.csv"),
        "t.csv",
        "line 60003",
        "'weight'",
        "'many'",
    )
    assert Path("a.csv").read_text() == "previous"
    assert sorted(entry.name for entry in here.iterdir()) == ["a.csv", "t.csv"]


def test_line_numbers_are_right_in_later_chunks(home: Path, here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(streaming, "CHUNK_ROWS", 10)
    write("t.csv", spoil(TABLE, 27, "65.5", "inf"))
    assert_rejected(run("predict", home / "price.model", "t.csv"), "line 27", "'size'", "infinite")


def test_text_in_a_numeric_parquet_column_is_rejected(home: Path, here: Path):
    table = houses(50).astype({"size": str})
    table.loc[20, "size"] = "big"
    table.to_parquet("t.parquet")
    assert_rejected(
        run("predict", home / "price.model", "t.parquet"), "t.parquet", "row 21", "'size'", "'big'"
    )
    content = Path("t.parquet").read_bytes()
    Path("t.parquet").write_bytes(content[: len(content) // 2])
    assert_rejected(run("predict", home / "price.model", "t.parquet"), "t.parquet")
    assert [entry.name for entry in here.iterdir()] == ["t.parquet"]


def test_invalid_arguments_are_rejected_before_any_work(
    home: Path, here: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fitting, "score_frame", None)
    write("t.csv", TABLE)
    Path("full").mkdir()
    Path("full/notes.txt").write_text("text")
    table, model, new = ("t.csv", "--target", "price"), home / "price.model", home / "new.csv"
    for arguments, *expected in (
        (("fit", "nothing.csv", "--target", "price"), "nothing.csv", "missing"),
        (("fit", "t.xlsx", "--target", "price"), "t.xlsx", ".parquet"),
        (("fit", "t.csv", "--target", "cost"), "no column 'cost'", "size, weight"),
        (("fit", *table, "--drop", "cost"), "no column 'cost'"),
        (("fit", *table, "--drop", "price"), "both target and dropped"),
        (("fit", *table, "--method", "magic"), "method is 'magic'"),
        (("fit", *table, "--option", "lam"), "NAME=VALUE"),
        (("fit", *table, "--option", "speed=3"), "no option 'speed'"),
        (("fit", *table, "--held-out", "1"), "--held-out is 1"),
        (("fit", *table, "--false-alarms", "2"), "false_positive_rate is 2"),
        (("fit", *table, "--out", "full"), "full", "notes.txt"),
        (("fit", *table, "--out", "t.csv"), "t.csv is a file"),
        (
            ("fit", "t.csv", "--target", "city", "--task", "regression"),
            "line 2",
            "'Ulm'",
            "--task classification",
        ),
        (("predict", "nothing", new), "nothing"),
        (("predict", model, new, "--out", "a.doc"), "a.doc", ".parquet"),
        (("predict", model, new, "--out", "no/a.csv"), "no is not a folder"),
        (("predict", model, new, "--coverage", "90"), "coverage is 90"),
        (("evaluate", model, new, "--slice", "colour"), "'colour'", "size, weight, city, garden"),
        (("evaluate", model, new, "--target", "cost"), "no column 'cost'"),
        (("evaluate", home / "dear.model", new, "--target", "city"), "line 2", "'city'", "no, yes"),
        (("explain", model, new, "--row", "121"), "has 120 rows"),
        (("explain", model, new, "--row", "1", "--out", "why.pdf"), "why.pdf", ".png"),
        (("export", "nothing"), "nothing"),
    ):
        assert_rejected(run(*arguments), *expected)
    assert sorted(entry.name for entry in here.iterdir()) == ["full", "t.csv"]


def test_name_clashes_and_columns_without_any_target_are_rejected(home: Path, here: Path):
    empty = [",".join([*line.split(",")[:-1], ""]) for line in TABLE.splitlines()[1:]]
    write("t.csv", "\n".join([TABLE.splitlines()[0], *empty]) + "\n")
    assert_rejected(run("fit", "t.csv", "--target", TABLE.splitlines()[0].split(",")[-1]), "empty")
    write("t.csv", TABLE.replace("price", "mean"))
    assert_rejected(run("predict", home / "price.model", "t.csv"), "'mean'", "--only")
    run_ok("predict", home / "price.model", "t.csv", "--only")
    assert_rejected(
        run("predict", home / "price.model", "t.csv", "--only", "--out", "t.csv"), "the input table itself"
    )


DATES = {
    "10:30:00": ["'city'", "times without a date", "--drop"],
    "1/2/2024": ["'city'", "'1/2/2024'", "write them as 2024-05-01", "--drop"],
    "31.1.2024 10:30": ["'city'", "'31.1.2024 10:30'", "--drop"],
    "2024-02-31": ["line 2", "'city'", "'2024-02-31'", "no date"],
}


@pytest.mark.parametrize("value", DATES)
def test_times_that_are_no_iso_dates_are_rejected_by_fit(here: Path, value: str):
    write("t.csv", TABLE.replace("Ulm", value))
    assert_rejected(run("fit", "t.csv", "--target", "price"), "t.csv", *DATES[value])


def test_a_typo_among_dates_is_rejected(here: Path):
    table = TABLE.replace("Ulm", "2024-05-01")
    write("t.csv", spoil(table, 12, "2024-05-01", "May"))
    assert_rejected(run("fit", "t.csv", "--target", "price"), "line 12", "'city'", "'May'", "are dates")
    write("t.csv", table)
    assert_rejected(run("fit", "t.csv", "--target", "city"), "'city'", "times", "another --target")


def test_unwritable_outputs_are_rejected_before_any_work(
    home: Path, here: Path, monkeypatch: pytest.MonkeyPatch
):
    work = (
        (fitting, "fit_table"),
        (model_inputs, "load_estimator"),
        (evaluating, "load_estimator"),
        (explaining, "explain_row"),
    )
    for module, name in work:  # all imported by now: a module imported while patched would stay patched
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("started before the check"))
    Path("file").write_text("")
    model, new = home / "price.model", home / "new.csv"
    assert_rejected(
        run("fit", home / "houses.csv", "--target", "price", "--out", "file/m"), "cannot be written to"
    )
    assert_rejected(run("evaluate", model, new, "--json", "file/a.json"), "cannot be written to")
    assert_rejected(run("evaluate", model, new, "--out", here), "is a folder")
    assert_rejected(run("explain", model, new, "--row", 1, "--out", "file/a.html"), "cannot be written to")
    assert_rejected(run("export", model, "--out", "file/a.pt2"), "cannot be written to")
    assert_rejected(run("export", model, "--rows", 1_000_000_000), "rows is 1,000,000,000", "4,096")
