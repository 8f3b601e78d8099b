"""Fourteen real tables of mixed columns: the estimators with their defaults beside boosted trees.

Every split of a table is a run; its number is the seed. Baselines hold a tenth of the training rows out, by
which they stop early and by which their 90% intervals are calibrated.
"""

import math
import time
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits
from torch import Tensor

from compound import metrics
from compound.datasets import tables as datasets
from compound.datasets.tables import TABLES, TEST_FRACTION, Array, Split
from compound.estimators.classifier import CompoundClassifier
from compound.estimators.regressor import CompoundRegressor
from compound.experiments.base import ALL_METHODS, PRESETS, Experiment
from compound.experiments.identity import Run
from compound.experiments.run_memory import DataSize
from compound.experiments.runs import Outcome, Result, RunContext
from compound.experiments.tables import baselines
from compound.experiments.tables.baselines import BASELINES, Moments, Rows
from compound.experiments.tables.page import DEFAULT, draw_page
from compound.predictive import CategoricalPredictive, GaussianPredictive
from compound.report.page import Claim, Page
from compound.train.config import table_train_config
from compound.types import Task

QUICK, PAPER = PRESETS
QUICK_TABLES = ("computers", "hpc")
QUICK_ROWS = 1000  # of a table, at most
QUICK_EPOCHS = 20
HELD_OUT = 0.1  # of the training rows, by baselines; the estimators' default is the same
COVERAGE = 0.9
MAX_WIDTH = 200  # numbers per row after encoding: categories have a column for each of their values


@dataclass(frozen=True, kw_only=True)
class TablesExperiment(Experiment):
    """The estimators and baselines of other libraries on splits of every table."""

    def grid(self, preset: str, seeds: int, methods: Sequence[str]) -> list[Run]:
        """Runs on splits 0, ..., seeds - 1; quick: on split 0 of a part of two tables, for few epochs."""
        quick = preset == QUICK
        return [
            Run(self.name, method, data, split, {}, settings(method, data, preset))
            for data in (QUICK_TABLES if quick else TABLES)
            for split in range(1 if quick else seeds)
            for method in methods
            if is_regression(data) or method not in BASELINES or BASELINES[method].classifier is not None
        ]

    def work(self, run: Run, context: RunContext) -> Outcome:
        split = datasets.load(run.data, run.seed, context.data_dir, run.settings.get("max_rows"))
        fit_and_predict = _baseline if run.method in BASELINES else _estimator
        return evaluate(fit_and_predict(run, context, split), split)

    def data_size(self, run: Run) -> DataSize:
        table = TABLES[run.data]
        return DataSize(min(table.rows, run.settings.get("max_rows", table.rows)), MAX_WIDTH, _task(run.data))

    def fill_page(self, results: Sequence[Result], page: Page) -> list[Claim]:
        return draw_page(results, page, self.not_installed)


def is_regression(data: str) -> bool:
    """Whether the target of the table `data` is a number, not a class."""
    return TABLES[data].kind == "regression"


def settings(method: str, data: str, preset: str) -> dict[str, Any]:
    """What determines the result of a run besides its method, to be part of its key.

    These are the default training options of the estimators, or the constants of a baseline.
    """
    rows = min(TABLES[data].rows, QUICK_ROWS) if preset == QUICK else TABLES[data].rows
    limits = {"max_rows": QUICK_ROWS} if preset == QUICK else {}
    if method in BASELINES:
        return {**baselines.settings(method), **limits}
    config = table_train_config(_task(data), rows - math.ceil(TEST_FRACTION * rows))
    return {**asdict(config), **limits, **({"max_epochs": QUICK_EPOCHS} if preset == QUICK else {})}


def _task(data: str) -> Task:
    return Task(TABLES[data].kind, TABLES[data].classes)


class Prediction(NamedTuple):
    """What a fitted method says of the test rows."""

    predictive: GaussianPredictive | CategoricalPredictive
    interval: tuple[Tensor, Tensor] | None  # bounds (rows,) of the calibrated interval; None for classes
    fit_seconds: float  # of processor time
    predict_seconds: float


def evaluate(prediction: Prediction, split: Split) -> Outcome:
    """Scores of the test rows, in the unit of the target, with processor time and sizes."""
    numbers: dict[str, Any] = {
        "fit_seconds": prediction.fit_seconds,
        "predict_seconds": prediction.predict_seconds,
        "rows": len(split.y),
        "test_rows": len(split.y_test),
        "columns": split.x.shape[1],
    }
    y = torch.from_numpy(split.y_test)
    predictive = prediction.predictive
    if isinstance(predictive, CategoricalPredictive):
        numbers["log_loss"] = metrics.nll(predictive, y)
        numbers["accuracy"] = metrics.accuracy(predictive, y)
        numbers["brier"] = metrics.brier(predictive, y)
        numbers["ece"] = metrics.ece(predictive, y)
        return Outcome(numbers, {})
    numbers["crps"] = metrics.crps(predictive, y.unsqueeze(-1))
    numbers["rmse"] = metrics.rmse(predictive, y.unsqueeze(-1))
    numbers["nll"] = metrics.nll(predictive, y.unsqueeze(-1))
    assert prediction.interval is not None
    lower, upper = prediction.interval
    numbers["coverage"] = ((lower <= y) & (y <= upper)).double().mean().item()
    numbers["width"] = (upper - lower).mean().item()
    numbers["interval_score"] = metrics.interval_score(lower, upper, y, COVERAGE)
    return Outcome(numbers, {})


def _estimator(run: Run, context: RunContext, split: Split) -> Prediction:
    """Fit the estimator of this library with its defaults."""
    estimator = CompoundRegressor if is_regression(run.data) else CompoundClassifier
    max_epochs, callbacks = run.settings.get("max_epochs"), [context.callback] if context.callback else None
    model: Any = estimator(run.method, max_epochs=max_epochs, random_state=run.seed, callbacks=callbacks)
    start = time.process_time()
    with context.clock.train() if context.clock else nullcontext():
        model.fit(split.x, split.y)
    fitted = time.process_time()
    predictive = model.predict_dist(split.x_test)
    predicted = time.process_time()
    interval = None
    if is_regression(run.data):
        lower, upper = model.predict_interval(split.x_test, COVERAGE)
        interval = torch.from_numpy(lower).double(), torch.from_numpy(upper).double()
    return Prediction(predictive, interval, fitted - start, predicted - fitted)


def _baseline(run: Run, context: RunContext, split: Split) -> Prediction:
    """Fit a method of another library, on one thread; warnings of the libraries are not shown."""
    regression = is_regression(run.data)
    parts = train_test_split(
        split.x, split.y, test_size=HELD_OUT, random_state=run.seed, stratify=None if regression else split.y
    )
    train, held = Rows(parts[0], parts[2]), Rows(parts[1], parts[3])
    fit_and_predict = _regression_baseline if regression else _classification_baseline
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        with context.clock.train() if context.clock else nullcontext():
            return fit_and_predict(run, train, held, split)


def _classification_baseline(run: Run, train: Rows, held: Rows, split: Split) -> Prediction:
    """Train on labels 0, 1, ...; there is no interval to calibrate."""
    fit = BASELINES[run.method].classifier
    assert fit is not None
    start = time.process_time()
    predict = fit(train, held, run.seed)
    fitted = time.process_time()
    probs = torch.from_numpy(np.array(predict(split.x_test), dtype=np.float64))
    seconds = time.process_time() - fitted
    zeros = torch.zeros(len(probs), dtype=torch.float64)
    return Prediction(CategoricalPredictive(zeros, zeros, zeros, probs), None, fitted - start, seconds)


def _regression_baseline(run: Run, train: Rows, held: Rows, split: Split) -> Prediction:
    """Train on standardised targets; held-out rows give a missing variance and calibrate the intervals."""
    shift, scale = train.y.mean(), train.y.std()
    train, held = (Rows(rows.x, (rows.y - shift) / scale) for rows in (train, held))
    start = time.process_time()
    predict = BASELINES[run.method].regressor(train, held, run.seed)
    residual_variance, quantile = calibrate(predict(held.x), held.y)
    fitted = time.process_time()
    mean, variance = predict(split.x_test)
    seconds = time.process_time() - fitted
    std = scale * np.sqrt(np.full_like(mean, residual_variance) if variance is None else variance)
    mean = shift + scale * mean
    interval = torch.from_numpy(mean - quantile * std), torch.from_numpy(mean + quantile * std)
    return Prediction(normal_predictive(mean, std), interval, fitted - start, seconds)


def calibrate(held: Moments, y: Array) -> tuple[float, float]:
    """The mean squared residual of held-out rows, and the conformal quantile of |y - mean| / std.

    std is the square root of the variance, where there is one, else of the mean squared residual.
    """
    residual_variance = float(np.mean((y - held.mean) ** 2))
    scores = np.abs(y - held.mean) / np.sqrt(residual_variance if held.variance is None else held.variance)
    rank = min(len(y), math.ceil((len(y) + 1) * COVERAGE))
    return residual_variance, float(np.sort(scores)[rank - 1])


def normal_predictive(mean: Array, std: Array) -> GaussianPredictive:
    """One normal distribution per row, mean and std (rows,)."""
    means, stds = (torch.from_numpy(values).double().unsqueeze(-1) for values in (mean, std))
    variance, zeros = stds.square(), torch.zeros_like(means)
    return GaussianPredictive(variance, zeros, zeros, means.unsqueeze(0), variance.unsqueeze(0))


INSTALLED = baselines.installed()
EXPERIMENTS = {
    "tables": TablesExperiment(
        name="tables",
        title="Real tables: fourteen of mixed columns, beside boosted trees",
        data=("tables", "tables2"),
        methods=(DEFAULT, *INSTALLED),
        quick_methods=(DEFAULT, "linear"),
        all_methods=(*ALL_METHODS, *BASELINES),
        not_installed=tuple(name for name in BASELINES if name not in INSTALLED),
        n_seeds=3,  # splits
    )
}
