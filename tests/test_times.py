"""Dates and times: the calendar, equal encoding of every form, errors that name the column."""

import datetime
import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compound import CompoundRegressor, Method, named_generator
from compound.estimators.encoder import Encoder
from compound.estimators.encoder_columns import SURE
from compound.estimators.time_column import KINDS, calendar
from compound.estimators.times import format_time, time_values
from compound.tables import explaining

PROFILE = settings(max_examples=60, deadline=None)
moments = st.datetimes(datetime.datetime(1, 1, 2), datetime.datetime(9999, 12, 30))


def column(values) -> pd.DataFrame:
    return pd.DataFrame({"day": values})


@PROFILE
@given(moments)
def test_calendar_is_that_of_the_standard_library(moment):
    days = time_values(pd.Series([moment], dtype="datetime64[us]"), "day")
    parts = {kind: float(numbers[0]) for kind, numbers in calendar(days).items()}
    assert parts.keys() == set(KINDS)
    clock = datetime.timedelta(
        hours=moment.hour, minutes=moment.minute, seconds=moment.second, microseconds=moment.microsecond
    )
    hour = clock / datetime.timedelta(hours=1)
    year = datetime.datetime(moment.year, 1, 1)
    length = 366 if moment.year % 4 == 0 and (moment.year % 100 or moment.year % 400 == 0) else 365
    angles = {
        "year": (moment - year) / datetime.timedelta(days=length),
        "week": moment.weekday() / 7,
        "day": hour / 24,
    }
    for name, turn in angles.items():
        assert parts[f"{name} sin"] == pytest.approx(np.sin(2 * np.pi * turn), abs=1e-6)
        assert parts[f"{name} cos"] == pytest.approx(np.cos(2 * np.pi * turn), abs=1e-6)
    # days are in float64: a microsecond more or less at the end of a day
    assert parts["hour"] == pytest.approx(hour, abs=1e-6)
    assert (parts["year"], parts["month"], parts["weekday"]) == (moment.year, moment.month, moment.weekday())
    assert days[0] == pytest.approx((moment - datetime.datetime(1970, 1, 1)) / datetime.timedelta(days=1))


DAYS = pd.Series(pd.date_range("2023-01-01", periods=200, freq="37h30min"))
FORMS = {
    "ns": DAYS.astype("datetime64[ns]"),
    "s": DAYS.astype("datetime64[s]"),
    "text": DAYS.astype(str),
    "objects of text": DAYS.map(lambda moment: moment.isoformat()).astype(object),
    "slashes": DAYS.dt.strftime("%Y/%m/%d %H:%M"),
    "UTC": DAYS.dt.tz_localize("UTC"),
    "Berlin": DAYS.dt.tz_localize("UTC").dt.tz_convert("Europe/Berlin"),
    "text with zone": DAYS.dt.tz_localize("UTC")
    .dt.tz_convert("Europe/Berlin")
    .map(lambda moment: moment.isoformat()),
    "datetime": pd.Series(list(DAYS.dt.to_pydatetime()), dtype=object),
    "timestamps": pd.Series(list(DAYS), dtype=object),
    "periods": DAYS.dt.to_period("min"),
    "period objects": pd.Series(list(DAYS.dt.to_period("min")), dtype=object),
    "arrow": DAYS.astype("timestamp[us][pyarrow]"),
    "categories": pd.Series(pd.Categorical(DAYS.astype(str))),
}


@pytest.mark.parametrize("form", FORMS)
def test_times_are_encoded_alike_in_every_form(form):
    encoder = Encoder.fit(column(DAYS))
    assert np.array_equal(encoder.transform(column(FORMS[form])), encoder.transform(column(DAYS)))
    if form != "categories":  # who says categories gets them
        assert Encoder.fit(column(FORMS[form])) == encoder
    missing = FORMS[form].astype(object).where(DAYS.index != 3, None)
    values = time_values(missing, "day")
    assert np.isnan(values).nonzero()[0].tolist() == [3]
    assert np.array_equal(np.delete(values, 3), np.delete(time_values(DAYS, "day"), 3))


def test_parts_that_did_not_vary_are_left_out():
    def parts(days) -> list[str]:
        return [name.removeprefix("day ") for name in Encoder.fit(column(days)).names[1:-1]]

    every_year = pd.date_range("2020-06-01", periods=4, freq="YS-JUN")
    assert parts(pd.date_range("2024-01-01", periods=5)) == ["weekday", "week sin", "week cos"]
    assert parts(pd.date_range("2024-01-01", periods=5, freq="h")) == ["hour", "day sin", "day cos"]
    assert parts(pd.date_range("2024-01-01", periods=40, freq="7D")) == ["month", "year sin", "year cos"]
    assert [name for name in parts(every_year) if name in ("year", "month", "hour")] == ["year"]
    assert parts([datetime.date(2024, 5, 1)] * 5) == []
    assert parts(["2024-05-01", None, "2024-05-02"])[0] == "missing"
    assert Encoder.fit(column(pd.to_datetime([None, None]))).names == ["day", "day missing", "surprise"]


def test_encoded_times_are_standardised_and_survive_json():
    table = column(FORMS["text"].where(DAYS.index % 9 != 0, None))
    encoder = Encoder.fit(table)
    encoded = encoder.transform(table)
    numbers = [i for i, name in enumerate(encoder.names) if name not in ("day missing", "surprise")]
    np.testing.assert_allclose(encoded[:, numbers].mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(encoded[:, numbers].std(0), 1, atol=1e-6)
    assert encoded[:, 1].tolist() == table["day"].isna().tolist() and not encoded[:, -1].any()
    again = Encoder.from_config(json.loads(json.dumps(encoder.to_config())))
    assert again == encoder and np.array_equal(again.transform(table), encoded)


def test_surprise_of_times_is_that_of_the_elapsed_time():
    encoder = Encoder.fit(column(pd.date_range("2020-01-01", "2023-12-31")))

    def surprise(day: str | None) -> float:
        return float(encoder.transform(column(pd.to_datetime([day])))[0, -1])

    assert surprise("2022-02-02") == surprise("2024-01-08") == 0  # the next days are none
    assert 0 < surprise("2024-03-01") < 1 < surprise("2025-01-01") < SURE
    assert surprise("2027-01-01") == surprise("2000-01-01") == surprise(None) == SURE
    constant = Encoder.fit(column(["2024-05-01"] * 9)).transform(column(["2024-05-02"]))
    assert constant[0, -1] == 0


@pytest.mark.parametrize(
    "values, message",
    [
        (["2020-02-29", "2020-02-31"], "'day' holds '2020-02-31' at row 1, which is no date"),
        (["2020-02-29", "2020-02-28 25:00"], "'day' holds '2020-02-28 25:00' at row 1"),
        (["1/2/2020", "3/4/2020"], "'day' holds dates such as '1/2/2020', whose order is not certain"),
        (["1.2.2020", None], "'day' holds dates such as '1.2.2020'"),
        (["1 Feb 2020", "12 March 2021"], "'day' holds dates such as '1 Feb 2020'"),
        ([datetime.time(10, 30)] * 2, "'day' holds times without a date"),
        ([pd.Timedelta("1D")] * 2, "'day' holds times without a date"),
    ],
)
def test_impossible_and_ambiguous_dates_are_refused(values, message):
    model = CompoundRegressor(Method("map", widths=(3,)), max_epochs=1, random_state=0)
    with pytest.raises(ValueError, match=message):
        model.fit(pd.DataFrame({"day": values, "a": [1.0, 2.0]}), [1.0, 2.0])


@pytest.mark.parametrize("value", ["soon", "2020-02-31", 17, "1/2/2020", datetime.time(1)])
def test_other_values_in_a_column_of_times_are_refused(value):
    encoder = Encoder.fit(column(["2020-01-01", "2020-02-01"]))
    with pytest.raises(ValueError, match="column 'day' holds"):
        encoder.transform(column(["2020-01-01", value]))
    with pytest.raises(ValueError, match="column 'day' holds"):
        encoder.transform(column([value]))


def test_times_in_a_column_of_numbers_are_refused():
    encoder = Encoder.fit(column([1.0, 2.0]))
    for values in (DAYS, DAYS - DAYS[0], FORMS["text"], FORMS["datetime"]):
        with pytest.raises(ValueError, match=r"column 'day' holds .*: it was numeric in training"):
            encoder.transform(column(values))


def test_a_time_of_the_year_is_learnt_and_explained(tmp_path):
    table = pd.DataFrame({"day": pd.date_range("2018-01-01", periods=500, freq="61h"), "a": 1.0})
    table.loc[::50, "day"] = pd.NaT
    season = calendar(time_values(table["day"].bfill(), "day"))["year cos"]
    table["a"] = np.random.default_rng(0).normal(size=500)
    model = CompoundRegressor(Method("map", widths=(20,)), max_epochs=60, random_state=0)
    known = table["day"].notna()
    model.fit(table, season)
    assert np.corrcoef(model.predict(table)[known], season[known])[0, 1] > 0.95
    model.save(tmp_path / "model")
    again = CompoundRegressor.load(tmp_path / "model")
    assert np.array_equal(again.predict(table), model.predict(table))
    with pytest.raises(ValueError, match="give a data frame"):
        model.predict(np.zeros((2, 2)))
    row = pd.DataFrame({"day": ["2031-07-09 12:00"], "a": [0.0]})
    explanation = explaining.explain(model, row, named_generator(0))
    first = explanation.contributions[0]
    assert first.column == "day" and first.value == "2031-07-09 12:00" and first.distance > 0.9
    assert all("2018" <= day[:4] <= "2021" for day in explanation.prototypes["day"] if day != "missing")
    increase = explanation.prediction["epistemic"].iloc[0] - explanation.prototype_epistemic
    assert sum(c.epistemic for c in explanation.contributions) == pytest.approx(increase, rel=1e-4, abs=1e-9)


@PROFILE
@given(moments)
def test_times_are_shown_to_the_day_or_minute(moment):
    days = time_values(pd.Series([moment], dtype="datetime64[us]"), "day")[0]
    shown = datetime.datetime.fromisoformat(format_time(days, True))
    assert abs(shown - moment) <= datetime.timedelta(minutes=1)
    assert format_time(np.floor(days), False) == moment.date().isoformat()


def test_text_that_seems_to_hold_numbers_is_a_category_with_a_warning():
    with pytest.warns(UserWarning, match=r"column 'day' holds text such as '\$5', .*categories"):
        encoder = Encoder.fit(column(["$5", "$7"] * 4))
    assert encoder.types() == {"day": "text"}
    Encoder.fit(column(pd.Categorical(["$5", "$7"] * 4)))  # who says categories means them
