"""`compound tune`: the best settings are found and saved, a study goes on where it was stopped."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from compound.cli.app import main
from compound.estimators import load
from compound.models import Method
from compound.tables import tuning
from compound.tables.fitting import FitRequest
from compound.tables.search_space import Choices, Interval, combinations, default_space, parse_space, settings
from compound.train.progress import FitProgress

optuna = pytest.importorskip("optuna", reason="Optuna is not installed: pip install 'compound-torch[tune]'")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2))
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": x[:, 0] + 0.1 * rng.normal(size=200)})
    path = tmp_path_factory.mktemp("tune") / "line.csv"
    frame.to_csv(path, index=False)
    return path


def request(trials: int = 4, prune: bool = False) -> tuning.TuneRequest:
    fit = FitRequest("y", method="map", max_epochs=5, verbose=False)
    return tuning.TuneRequest(fit, {"lr": Interval(1e-5, 1e-2, True, False)}, trials, prune)


def test_spaces_are_read_as_they_are_written():
    method = Method("ml-cdn")
    space = parse_space(["lam=1e-8..1e-2", "members=1..5", "widths=[64],[128,64]", "lr=.001,.01"], method)
    assert space["lam"] == Interval(1e-8, 1e-2, True, False)
    assert space["members"] == Interval(1, 5, False, True)
    assert space["widths"] == Choices(("[64]", "[128, 64]"))
    assert combinations(space) is None
    assert settings(space, {"widths": "[128, 64]", "lam": 0.1}) == {"widths": (128, 64), "lam": 0.1}
    assert set(default_space(method)) == {"lam", "lr"}
    assert set(default_space(Method("map"))) == {"lr"}
    grid = parse_space(["lam=1e-5,1e-4", "members=1,2"], method)
    assert [tuple(point.values()) for point in combinations(grid) or []] == [
        ("1e-05", "1"),
        ("1e-05", "2"),
        ("0.0001", "1"),
        ("0.0001", "2"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lam", "write NAME=LOW..HIGH"),
        ("lamb=1,2", "--search lamb: ml-cdn has widths"),
        ("lam=1..a", "LOW and HIGH are numbers"),
        ("lam=2..1", "LOW must be smaller"),
    ],
)
def test_wrong_spaces_are_refused(text: str, message: str):
    with pytest.raises(ValueError, match=message):
        parse_space([text], Method("ml-cdn"))


def test_best_settings_are_saved_as_a_model(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    study, out = tmp_path / "study", tmp_path / "model"
    words = ["tune", table, "--target", "y", "--method", "map", "--epochs", 5, "--search", "lr=1e-6,1e-2"]
    words += ["--study", study, "--out", out, "--no-prune"]
    main([str(word) for word in words], standalone_mode=False)
    shown = capsys.readouterr()
    assert "trial 2 of 2" in shown.err
    assert "2 trials" in shown.out
    assert load(out).lr == 1e-2  # with the other a fit of five epochs does not move
    main([str(word) for word in words], standalone_mode=False)
    assert "trial" not in capsys.readouterr().err  # both are there


def test_interrupted_study_ends_like_an_undisturbed_one(table: Path, tmp_path: Path):
    calm = tuning.tune(table, request(), tmp_path / "calm")
    lines = []

    def interrupt(line: str) -> None:
        lines.append(line)
        if len(lines) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuning.tune(table, request(), tmp_path / "study", callback=interrupt)
    resumed = tuning.tune(table, request(), tmp_path / "study", callback=lines.append)
    assert len(lines) == 4
    assert [trial[1:] for trial in resumed.trials] == [trial[1:] for trial in calm.trials]


def test_trial_whose_process_died_is_repeated_with_its_settings(table: Path, tmp_path: Path):
    calm = tuning.tune(table, request(1), tmp_path / "calm")

    class Dying(tuning.LocalRunner):
        def start(self, trial_id: int, values: dict) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuning.tune(table, request(1), tmp_path / "study", Dying)
    resumed = tuning.tune(table, request(1), tmp_path / "study")
    assert resumed.settings == calm.settings
    assert resumed.value == calm.value


def test_study_of_another_request_or_process_is_refused(table: Path, tmp_path: Path):
    study = tmp_path / "study"
    tuning.tune(table, request(1), study)
    other = replace(request(1), space={"lr": Interval(1e-5, 1e-3, True, False)})
    with pytest.raises(ValueError, match="holds trials for another table"):
        tuning.tune(table, other, study)
    with tuning._locked(study), pytest.raises(ValueError, match="used by another process"):
        tuning.tune(table, request(1), study)


def test_failed_trials_do_not_stop_the_others(table: Path, tmp_path: Path):
    space = {"batch_size": Choices(("-1", "32"))}
    tuned = tuning.tune(table, replace(request(), space=space), tmp_path / "study")
    assert tuned.settings == {"batch_size": 32}
    assert [trial[1] for trial in tuned.trials] == ["complete", "fail"]
    with pytest.raises(ValueError, match="all trials have failed"):
        space = {"batch_size": Choices(("-1", "-2"))}
        tuning.tune(table, replace(request(), space=space), tmp_path / "other")


def test_fit_worse_than_the_median_is_pruned(tmp_path: Path):
    study = optuna.create_study(pruner=optuna.pruners.MedianPruner(n_startup_trials=2))
    for value in (1.0, 2.0):
        trial = study.ask()
        for rung in range(tuning.FIRST_RUNG, tuning.RUNGS + 1):
            trial.report(value, rung)
        study.tell(trial, value)
    good, bad = (tuning.Pruning(study.ask(), optuna.TrialPruned) for _ in range(2))
    for step in range(101):
        good(FitProgress(step, 100, 0.0, 1.4, 1.0))
    bad(FitProgress(19, 100, 0.0, 1.6, 1.0))  # before the first rung
    with pytest.raises(optuna.TrialPruned):
        bad(FitProgress(20, 100, 0.0, 1.6, 1.0))


def test_validation_rows_are_neither_test_nor_training_rows(table: Path):
    rows = tuning.read_rows(table, request().fit)
    assert (len(rows.train.y), len(rows.validation.y)) == (144, 36)
    values = pd.read_csv(table)["y"]
    assert len({*rows.train.y, *rows.validation.y} & {*values}) == 180
