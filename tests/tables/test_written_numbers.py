"""Numbers as people write them, semicolons, dates in files, columns that name rows."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_commands import assert_rejected, run, run_ok, write

from compound import load
from compound.estimators.number_forms import FORMS, SYMBOLS, AmbiguousNumbersError, NumberForm, find_form
from compound.tables.column_types import parse_form
from compound.tables.id_columns import id_columns
from compound.tables.table_files import infer_table, read_table

pytestmark = pytest.mark.usefixtures("here")
PROFILE = settings(max_examples=100, deadline=None)
FAST = ("--method", "map", "--epochs", "1", "--option", "widths=[3]")

numbers = st.decimals(-(10**7), 10**7, places=2)
forms = st.builds(
    lambda symbol, form: NumberForm(symbol, *form), st.sampled_from(SYMBOLS), st.sampled_from(FORMS)
)


def written(value, form: NumberForm) -> str:
    """A number in a form, by Python's own formatting."""
    swap = {",": form.thousands, ".": form.decimal}
    digits = "".join(swap.get(sign, sign) for sign in f"{abs(value):,}")
    sign = "-" if value < 0 else ""
    return f"{sign}{digits}%" if form.symbol == "%" else f"{sign}{form.symbol}{digits}"


@PROFILE
@given(st.lists(numbers, min_size=1, max_size=8), forms)
def test_written_numbers_are_read_as_they_were(values, form):
    texts = [written(value, form) for value in values]
    parsed = parse_form(pa.array([*texts, "", "NA"]), form)
    assert not parsed.invalid.any()
    assert parsed.values.to_pylist() == [*(float(value) for value in values), None, None]
    found = find_form(texts, comma_separates=True)
    if found is not None:  # else plain numbers, or thousands in spaces that may be codes
        again = parse_form(pa.array(texts), found)
        assert not again.invalid.any() and again.values.to_pylist() == [float(value) for value in values]
    else:
        assert form.symbol == "" and all("," not in text for text in texts)


@PROFILE
@given(st.lists(st.text("0123456789,.' $€%-", min_size=1, max_size=9), min_size=1, max_size=4))
def test_what_has_a_form_is_read_by_it(texts):
    for comma_separates in (True, False):
        try:
            form = find_form(texts, comma_separates)
        except AmbiguousNumbersError:
            continue
        if form is not None:
            parsed = parse_form(pa.array(texts), form)
            assert not parsed.invalid.any() and np.isfinite(parsed.values.to_numpy()).all()


@pytest.mark.parametrize(
    "values, expected",
    [
        (["1,234", "56"], "1,234.5"),
        (["1.234,5 €", "3 €"], "€1.234,5"),
        (["0,125", "1,250"], "1.234,5"),  # no thousands begin with 0
        (["5%", "12.5%"], "1,234.5%"),
        (["12'345"], "1'234.5"),
        (["$5", "$1,200"], "$1,234.5"),
        (["1,2,3", "1"], None),  # codes
        (["110 001", "110 002"], None),  # codes
        (["555-1234"], None),
        (["192.168.0.1"], None),
        (["1.5", "2"], None),  # plain
    ],
)
def test_forms_that_are_certain(values, expected):
    form = find_form(values, comma_separates=True)
    assert (form and form.example) == expected


@pytest.mark.parametrize("values", [["$5", "€5"], ["$5", "5"], ["5%", "5"]])
def test_mixed_signs_are_refused(values):
    write("t.csv", "a,y\n" + "".join(f"{value},1\n" for value in values))
    assert_rejected(run("fit", "t.csv", "--target", "y"), "'a'", f"'{values[0]}'", "one unit", "--drop")


def test_one_comma_is_ambiguous_unless_commas_separate_columns():
    write("t.csv", 'a,y\n"1,234",1\n"5,678",2\n')
    assert infer_table("t.csv").frame["a"].tolist() == [1234, 5678]
    for name, text in {"t.tsv": "a\ty\n1,234\t1\n5,678\t2\n", "s.csv": "a;y\n1,234;1\n5,678;2\n"}.items():
        write(name, text)
        assert_rejected(
            run("fit", name, "--target", "y"), "'a'", "'1,234'", "thousands or decimals", "--drop"
        )
    write("s.csv", "a;b;y\n1.234;1,5;1\n5.678;2,5;2\n")
    assert_rejected(run("fit", "s.csv", "--target", "y"), "'a'", "'1.234'", "decimal commas")
    write("s.csv", "a;b;y\n1.234;1.5;1\n5.678;2.5;2\n")  # points are decimal in all columns
    assert infer_table("s.csv").frame["a"].tolist() == [1.234, 5.678]


ROWS = 60


def plain() -> pd.DataFrame:
    """A table of plain numbers and dates."""
    draw = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "size": draw.uniform(800, 3000, ROWS).round(2),
            "share": draw.uniform(0, 100, ROWS).round(1),
            "day": pd.date_range("2023-01-30", periods=ROWS, freq="31h").floor("min"),
        }
    )
    table["price"] = (1000 * table["size"]).round(2)
    table.loc[3, "day"] = pd.NaT
    table.loc[5, "share"] = np.nan
    return table


def in_words(table: pd.DataFrame, decimal: str) -> pd.DataFrame:
    """The table with written numbers and dates as text."""
    form = NumberForm("", *((",", ".") if decimal == "." else (".", ",")))
    return pd.DataFrame(
        {
            "size": [written(value, form) for value in table["size"]],
            "share": [
                "" if value != value else written(value, form._replace(symbol="%"))
                for value in table["share"]
            ],
            "day": table["day"].map(lambda day: "" if pd.isna(day) else day.isoformat()),
            "price": [written(value, form._replace(symbol="$")) for value in table["price"]],
        }
    )


@pytest.mark.parametrize("kind", ["commas", "semicolons", "parquet"])
def test_fit_and_predict_agree_in_every_form(kind: str):
    table = plain()
    words = in_words(table, "," if kind == "semicolons" else ".")
    if kind == "parquet":
        words.replace("", None).to_parquet("words.parquet")
        path = "words.parquet"
    else:
        words.to_csv("words.csv", index=False, sep=";" if kind == "semicolons" else ",")
        path = "words.csv"
    table.to_csv("plain.csv", index=False)
    table.to_parquet("plain.parquet")
    result = run_ok("fit", path, "--target", "price", *FAST)
    assert "read as numbers" in result.output and "price (as $" in result.output
    run_ok("fit", "plain.csv", "--target", "price", *FAST)
    assert load("plain.model").encoder_ == load("words.model").encoder_
    expected = load("plain.model").predict(table[["size", "share", "day"]])
    for model, source in [(m, s) for m in ("plain", "words") for s in ("plain.csv", "plain.parquet")] + [
        ("words", path)
    ]:
        if (kind, model, source) == ("semicolons", "words", "plain.csv"):  # 1.234 would be 1234
            assert_rejected(run("predict", "words.model", source), "line 2", "'size'", "such as 1.234,5")
            continue
        run_ok("predict", f"{model}.model", source, "--only", "--out", "out.csv")
        assert np.array_equal(pd.read_csv("out.csv")["mean"], expected), (model, source)
    run_ok("evaluate", "words.model", path, "--slice", "day")
    run_ok("explain", "words.model", path, "--row", 4)
    words.loc[7, "size"] = "$8"
    words.to_csv("words.csv", index=False)
    assert_rejected(run("predict", "words.model", "words.csv"), "line 9", "'size'", "'$8'", "such as 1")


def test_a_remembered_decimal_comma_holds_for_ambiguous_values():
    write("t.csv", "a;y\n" + "".join(f"{i},{i % 10}25;{i}\n" for i in range(ROWS)))
    run_ok("fit", "t.csv", "--target", "y", *FAST)
    write("new.csv", 'a,y\n"1,234",1\n')  # 1234 to a fit, but not to this model
    model = load("t.model")
    run_ok("predict", "t.model", "new.csv", "--only", "--out", "out.csv")
    assert pd.read_csv("out.csv")["mean"][0] == model.predict(pd.DataFrame({"a": [1.234]}))[0]


def test_a_semicolon_file_is_read_with_its_lines_and_quotes():
    write("t.csv", 'a;"b;c";y\n1;"x, y;\nz";3\n2;"q";maybe\n' + "3;q;4\n" * 20)
    table = infer_table("t.csv", ["a", "b;c"]).frame
    assert table["b;c"].tolist()[:2] == ["x, y;\nz", "q"] and table["a"].tolist()[:3] == [1, 2, 3]
    assert_rejected(run("fit", "t.csv", "--target", "y"), "line 4", "'y'", "'maybe'")
    write("t.csv", "a;b\n1;2\n1;2;3\n")
    assert_rejected(run("fit", "t.csv", "--target", "b"), "line 3", "3 entries, the header 2")


@pytest.mark.parametrize("value", ["2023-02-31", "soon", "17", "1/2/2023"])
def test_other_text_in_a_column_of_dates_is_rejected_with_its_line(value: str):
    write("t.csv", f"day\n2023-01-01\n\n{value}\n")
    with pytest.raises(ValueError, match=f"line 4, column 'day' holds '{value}', which is no date"):
        read_table("t.csv", {"day": "time"})
    pyarrow.parquet.write_table(pa.table({"day": [1, 2]}), "t.parquet")
    with pytest.raises(ValueError, match="column 'day' holds int64"):
        read_table("t.parquet", {"day": "time"})
    pyarrow.parquet.write_table(pa.table({"day": pa.array([None, None])}), "t.parquet")
    assert read_table("t.parquet", {"day": "time"})["day"].isna().all()


def test_dates_after_many_gaps_are_dates():
    write("t.csv", "day,y\n" + ",1\n" * 1200 + "2024-05-01,2\n2024-05-02T10:30,3\n")
    days = infer_table("t.csv").frame["day"]
    assert days.isna().sum() == 1200 and days.iloc[-1] == pd.Timestamp("2024-05-02 10:30")
    write("t.csv", "day,y\n,1\n,2\n")
    assert read_table("t.csv", {"day": "time"})["day"].isna().all()


# columns that name rows


def test_columns_that_name_rows():
    n = 150
    index = np.arange(n)
    draw = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "name": [f"row {i}" for i in index],
            "number": 5000 + 3 * index + draw.integers(0, 3, n),
            "shuffled": draw.permutation(n),
            "float": index + 0.5,
            "whole float": index.astype(float),
            "often": [f"row {min(i, n - 2)}" for i in index],
            "gaps": [None, *(f"row {i}" for i in index[1:])],
            "day": pd.date_range("2023-01-01", periods=n),
            "year": 1875 + index,
            "date": pd.date_range("2023-01-01", periods=n).strftime("%Y%m%d").astype(int),
            "constant": 1,
        }
    )
    assert id_columns(table) == ["name", "number"]
    assert id_columns(table.iloc[::-1])[1:] == []  # falling numbers are no counter
    assert id_columns(table.head(99)) == []


def test_columns_that_name_rows_are_left_out_unless_kept():
    draw = np.random.default_rng(0)
    a = draw.normal(size=200).round(4)
    table = pd.DataFrame({"id": np.arange(200), "who": [f"n{i}" for i in range(200)], "a": a, "y": 2 * a})
    table.to_csv("t.csv", index=False)
    result = run_ok("fit", "t.csv", "--target", "y", *FAST)
    assert "id, who: seems to name the rows, --keep uses it" in result.output
    assert [column.name for column in load("t.model").encoder_.columns] == ["a"]
    assert "seems to name" in Path("t.model/report.html").read_text()
    run_ok("predict", "t.model", "t.csv", "--out", "out.csv")
    assert pd.read_csv("out.csv")["id"].equals(table["id"])
    result = run_ok("fit", "t.csv", "--target", "y", "--keep", "id", "--drop", "who", *FAST)
    assert "seems to name" not in result.output
    assert [column.name for column in load("t.model").encoder_.columns] == ["id", "a"]
    assert_rejected(run("fit", "t.csv", "--target", "y", "--drop", "a"), "'id'", "--keep id")
    assert_rejected(run("fit", "t.csv", "--target", "y", "--keep", "b"), "no column 'b'")
    assert_rejected(
        run("fit", "t.csv", "--target", "y", "--keep", "a", "--drop", "a"), "both kept and dropped"
    )
