"""Options of `compound fit` for targets: kinds, several, events, groups, time, weights; recalibration."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from table_commands import assert_rejected, run, run_ok

import compound
from compound.estimators.browser import check_explorable

FAST = ("--method", "map", "--epochs", 3)


@pytest.fixture
def table(here: Path) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    load = rng.normal(size=400)
    time, end = 10 * np.exp(load) * rng.weibull(1.5, 400), rng.uniform(2, 60, 400)
    frame = pd.DataFrame(
        {
            "load": load.round(3),
            "region": rng.choice(["north", "south"], 400),
            "week": rng.permutation(400) % 200,
            "w": rng.integers(1, 4, 400),
            "visits": rng.poisson(np.exp(1.5 + 0.5 * load)),
            "price": np.exp(3 + 2 * load + 0.2 * rng.normal(size=400)).round(3),
            "time": np.minimum(time, end).round(3),
            "died": (time <= end).astype(int),
        }
    )
    frame.to_csv("t.csv", index=False)
    return frame


def drop(*kept: str) -> list[str]:
    targets = ("visits", "price", "time", "died", "w")
    return [word for name in targets if name not in kept for word in ("--drop", name)]


def test_counts_with_groups_time_and_weights(table: pd.DataFrame):
    table.loc[::40, "visits"] = np.nan
    table.to_csv("t.csv", index=False)
    roles = ("--group", "region", "--time", "week", "--weight", "w")
    options = (*FAST, *drop("visits", "w"), *roles, "--target-kind", "negative-binomial")
    done = run_ok("fit", "t.csv", "--target", "visits", *options)
    for text in ("10 rows left out", "negative-binomial", "region", "week: the newest", "weights"):
        assert text in done.output
    model = compound.load("t.model")
    assert model.feature_names_in_.tolist() == ["load", "region", "week"]
    assert model.roles_ == {"weight": "w", "group": "region", "time": "week"}
    run_ok("predict", "t.model", "t.csv", "--out", "p.csv", "--only")
    predicted = pd.read_csv("p.csv")
    assert (predicted[["lower", "upper"]] % 1 == 0).all(axis=None)
    run_ok("evaluate", "t.model", "t.csv")


def test_the_newest_rows_judge(table: pd.DataFrame):
    from compound.tables.fitting import FitRequest, choose_test_rows
    from compound.tables.model_inputs import read_training_table
    from compound.tables.roles import Roles

    roles = Roles(time="week")
    read = read_training_table(Path("t.csv"), "price", roles=roles)
    chosen = choose_test_rows(read, False, FitRequest("price", roles=roles))
    assert chosen.sum() == 40 and table["week"][chosen].min() >= table["week"][~chosen].max()


def test_prices_are_proposed_as_log_normal(table: pd.DataFrame):
    done = run_ok("fit", "t.csv", "--target", "price", *FAST, *drop("price"))
    assert "log-normal: positive, from" in done.output
    assert compound.load("t.model").target_kind_ == "log-normal"


def test_censored_times_and_recalibration(table: pd.DataFrame):
    run_ok("fit", "t.csv", "--target", "time", "--event", "died", *FAST, *drop("time", "died"))
    run_ok("predict", "t.model", "t.csv", "--out", "p.csv", "--only")
    predicted = pd.read_csv("p.csv")
    later = [name for name in predicted if name.startswith("p(>")]
    assert "median" in predicted and len(later) == 3
    assert (predicted[later].diff(axis=1).iloc[:, 1:] <= 0).all(axis=None)  # fewer and fewer remain
    run_ok("evaluate", "t.model", "t.csv", "--out", "e.html")
    done = run_ok("recalibrate", "t.model", "t.csv")
    assert "400 rows" in done.output and Path("t.model/report.html").is_file()
    run_ok("predict", "t.model", "t.csv", "--out", "p2.csv", "--only")


def test_several_targets_have_columns_of_their_own(table: pd.DataFrame):
    options = (*FAST, *drop("price", "visits"), "--target-kind", "gaussian")
    done = run_ok("fit", "t.csv", "--target", "price", "--target", "visits", *options)
    assert "visits " in done.output
    run_ok("predict", "t.model", "t.csv", "--out", "p.csv", "--only")
    predicted = pd.read_csv("p.csv")
    assert {"mean(price)", "upper(visits)", "epistemic(visits)", "ood_score"} <= set(predicted)
    model = compound.load("t.model")
    np.testing.assert_allclose(
        predicted["mean(visits)"], model.predict(table[["load", "region", "week"]])[:, 1]
    )
    run_ok("evaluate", "t.model", "t.csv", "--target", "visits")
    run_ok("explain", "t.model", "t.csv", "--row", 3)


def test_wrong_roles_are_refused(table: pd.DataFrame):
    def refused(*options: object, **expected: str) -> None:
        assert_rejected(run("fit", "t.csv", "--target", "price", *FAST, *options), *expected.values())

    refused("--weight", "nobody", a="nobody")
    refused("--weight", "region", a="'region'", b="must hold numbers")
    refused("--event", "w", a="'w'", b="give 1 or true")
    refused("--weight", "price", a="two roles")
    refused("--group", "region", "--drop", "region", a="has a role and is dropped")
    refused("--event", "died", "--target", "time", a="--event needs one --target")
    refused("--target-kind", "poisson", a="t.csv, line 2, column 'price'", b="needs whole numbers")
    refused("--class-weight", "balanced", "--task", "regression", a="--class-weight is for classes")
    table.loc[3, ["price", "load"]] = np.nan, -1.0  # lines are those of the file, though a row is left out
    table.loc[7, "price"] = -2.0
    table.assign(w=0).to_csv("t.csv", index=False)
    refused("--target-kind", "log-normal", a="t.csv, line 9, column 'price' holds -2", b="above 0")
    refused("--weight", "w", a="'w' of --weight is 0 in every row")
    refused("--target-kind", "ordinal", "--task", "regression", a="does not suit regression")
    refused("--method", "laplace", "--target-kind", "student-t", a="laplace predicts Gaussian targets")


def test_auto_is_gaussian_where_the_method_knows_no_other_kind(table: pd.DataFrame):
    done = run_ok("fit", "t.csv", "--target", "price", "--method", "pbp", "--epochs", 1, *drop("price"))
    assert "the kind that pbp predicts" in done.output
    assert compound.load("t.model").target_kind_ == "gaussian"


def test_pages_to_explore_refuse_what_they_do_not_compute(table: pd.DataFrame):
    small = ("--option", "members=1", "--option", "widths=[4]", "--option", "hyper=[3]", "--epochs", 1)
    for kind, target, sentence in (
        ("weibull", "price", "LastLayerFamily"),
        ("ordinal", "w", "LastLayerOrdinal"),
    ):
        run_ok("fit", "t.csv", "--target", target, "--target-kind", kind, *small, *drop(target))
        assert_rejected(run("explore", "t.model"), sentence)
    run_ok("fit", "t.csv", "--target", "price", "--target", "load", "--target-kind", "gaussian", *small)
    assert_rejected(run("explore", "t.model"), "predicts 2 targets", "one --target")
    model = compound.load("t.model")
    model.group_calibrations_ = {"north": model.intervals_}
    with pytest.raises(ValueError, match="without --group"):
        check_explorable(model, "t.model")
