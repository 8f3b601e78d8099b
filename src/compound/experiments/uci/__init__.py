"""The nine UCI regression tables with the standard splits: accuracy, calibration, detection of outliers.

Every split of a table is a run; its number is the seed. A second fit, the variant "region", leaves out the
tenth of the rows farthest along the first principal component, and measures whether the predictive variance
of these rows is larger.
Splits: Hernández-Lobato and Adams (2015).
"""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from compound import metrics
from compound.datasets import uci as datasets
from compound.estimators.calibration import ConformalIntervals
from compound.estimators.conformal_scores import z_score
from compound.estimators.member_holdout import calibration_scores, member_holdout_weights
from compound.estimators.prediction import to_float64
from compound.experiments.base import ALL_METHODS, PRESETS, Experiment
from compound.experiments.identity import REGION, Run
from compound.experiments.run_memory import DataSize
from compound.experiments.runs import Outcome, Result, RunContext, fit_run
from compound.experiments.uci import baselines
from compound.experiments.uci.baselines import BASELINES, Predict
from compound.experiments.uci.page import draw_page
from compound.models import METHODS, Method
from compound.models.noisy import Noisy
from compound.ood.detector import OODDetector
from compound.predictive import GaussianPredictive
from compound.random import named_generator
from compound.report.page import Claim, Page
from compound.train.config import TrainConfig, default_train_config
from compound.train.holdout import holdout_weights
from compound.types import Task, make_dataset


class Table(NamedTuple):
    """A UCI data set."""

    file: str  # name in the catalogue
    n_train: int  # training rows of a split; given here so that a grid can be planned without the files


TABLES = {  # by the names that papers use, small ones first
    "boston": Table("bostonHousing", 455),
    "yacht": Table("yacht", 277),
    "energy": Table("energy", 691),
    "concrete": Table("concrete", 927),
    "wine": Table("wine-quality-red", 1439),
    "kin8nm": Table("kin8nm", 7373),
    "power": Table("power-plant", 8611),
    "naval": Table("naval-propulsion-plant", 10741),
    "protein": Table("protein-tertiary-structure", 41157),
}
QUICK, PAPER = PRESETS
QUICK_SPLITS = 1
QUICK_STEPS = 200
QUICK_REGION_ROWS = 500  # the quick preset has the variant "region" only for tables with at most as many rows
QUICK_BASELINE_ROWS = 1000  # and baselines, whose training is not shortened, for at most as many
TASK = Task("regression", 1)
MAX_INPUTS = 20  # of a table
HELD_OUT = 0.1
N_SAMPLES = 40  # of `Model.predict`
FALSE_POSITIVE_RATE = 0.01
SHIFT = 5.0  # norm of the vector that makes a row an outlier, in standard units


def train_config(method: str, data: str, preset: str) -> TrainConfig:
    """Training of a method on the table `data`: the default, shortened in the quick preset."""
    config = default_train_config(TASK, TABLES[data].n_train)
    if preset == QUICK:
        config = replace(config, steps=min(config.steps, QUICK_STEPS))
    # noisy methods have a trust region in place of clipping
    return replace(config, clip_norm=None) if issubclass(METHODS[method], Noisy) else config


@dataclass(frozen=True, kw_only=True)
class UciExperiment(Experiment):
    """Methods and baselines of other libraries on the splits of every table."""

    def grid(self, preset: str, seeds: int, methods: Sequence[str]) -> list[Run]:
        """Runs on the first `seeds` splits of each table; in the quick preset on the first split only."""
        quick = preset == QUICK
        runs = []
        for (data, table), variant in product(TABLES.items(), ("", REGION)):
            if quick and variant and table.n_train > QUICK_REGION_ROWS:
                continue
            splits = min(seeds, datasets.SPLITS[table.file], QUICK_SPLITS if quick else seeds)
            for split, method in product(range(splits), methods):
                if method not in BASELINES:
                    settings = asdict(train_config(method, data, preset))
                elif quick and table.n_train > QUICK_BASELINE_ROWS:
                    continue
                else:
                    settings = baselines.settings(method)
                runs.append(Run(self.name, method, data, split, {}, settings, variant=variant))
        return runs

    def work(self, run: Run, context: RunContext) -> Outcome:
        split = datasets.load(TABLES[run.data].file, run.seed, context.data_dir)
        evaluate = evaluate_region if run.variant == REGION else evaluate_split
        return evaluate(run, context, split)

    def data_size(self, run: Run) -> DataSize:
        return DataSize(2 * TABLES[run.data].n_train, MAX_INPUTS, TASK)  # training and test rows

    def fill_page(self, results: Sequence[Result], page: Page) -> list[Claim]:
        return draw_page(results, page)


def evaluate_split(run: Run, context: RunContext, split: datasets.Split) -> Outcome:
    """Metrics of the test rows, in the unit of the target, and how many rows `OODDetector` flags."""
    start = time.process_time()
    predict, intervals = _fit(run, context, split.x, split.y)
    seconds = time.process_time() - start
    standardised = predict(split.x_test)
    predictive = standardised.rescale(0.0, split.scale)
    y = split.y_test * split.scale  # y and predictive lack the training mean: no metric depends on it
    numbers: dict[str, Any] = {
        "nll": metrics.nll(standardised, split.y_test) + math.log(split.scale),
        "rmse": metrics.rmse(predictive, y),
        "crps": metrics.crps(predictive, y),
        "coverage": metrics.coverage(standardised, split.y_test),
        **_calibrated_coverage(intervals, standardised, split.y_test),
        "aleatoric": predictive.aleatoric.double().mean().item(),
        "epistemic": predictive.epistemic.double().mean().item(),
        "cpu_seconds": seconds,
        "rows": len(y),
    }
    if run.method not in BASELINES:  # the detector depends on the inputs alone, not on the method
        detector = _detector(split.x, run.seed)
        outliers = split.x_test + SHIFT * unit_vectors(split.x_test, run.seed)
        numbers["false_alarms"] = int((detector.scores(split.x_test) > detector.threshold).sum())
        numbers["moved_flagged"] = int((detector.scores(outliers) > detector.threshold).sum())
    return Outcome(numbers, {"cdf": standardised.cdf(split.y_test).squeeze(-1).numpy()})


def evaluate_region(run: Run, context: RunContext, split: datasets.Split) -> Outcome:
    """AUROC of rows in a region left out of training against other test rows, by variance and by distance."""
    inside, test_inside = inside_region(split.x, split.x_test)
    x, y = split.x[inside], split.y[inside]
    shift, scale = x.mean(0), x.std(0, correction=0)
    scale = torch.where(scale > 1e-6, scale, 1.0)
    x_train = (x - shift) / scale
    predict, _ = _fit(run, context, x_train, (y - y.mean()) / y.std(correction=0))
    rows = split.x_test[test_inside], torch.cat([split.x[~inside], split.x_test[~test_inside]])
    in_dist, ood = ((part - shift) / scale for part in rows)
    predictives = predict(in_dist), predict(ood)
    epistemic = metrics.auroc(*(p.epistemic.squeeze(-1).double() for p in predictives))
    predictive = metrics.auroc(*(p.variance.squeeze(-1).double() for p in predictives))
    numbers: dict[str, Any] = {"auroc_epistemic": epistemic, "auroc_predictive": predictive}
    if run.method not in BASELINES:
        detector = _detector(x_train, run.seed)
        distances = (detector.scores(part).double() for part in (in_dist, ood))
        numbers["auroc_distance"] = metrics.auroc(*distances)
    return Outcome({**numbers, "rows": len(in_dist), "beyond": len(ood)}, {})


class Fitted(NamedTuple):
    """A trained method or baseline."""

    predict: Predict
    intervals: ConformalIntervals | None  # calibrated as in the estimators; None for baselines


def _fit(run: Run, context: RunContext, x: Tensor, y: Tensor) -> Fitted:
    """Train the method or baseline of a run on x (rows, features) and y (rows, 1), standardised."""
    if run.method in BASELINES:
        data = make_dataset(x, y, TASK, holdout_weights(len(x), 1, HELD_OUT, run.seed))
        return Fitted(BASELINES[run.method](data, run.seed), None)
    x_ood = None
    if METHODS[run.method].needs_ood_rows:
        x_ood = x + SHIFT * unit_vectors(x, run.seed, "outside")
    members = Method(run.method).build(1, TASK, 0).members
    weight = member_holdout_weights(len(x), members, HELD_OUT, run.seed)
    model = fit_run(run, context, make_dataset(x, y, TASK, weight, x_ood), TASK)

    def predict(x: Tensor) -> GaussianPredictive:
        return cast(GaussianPredictive, model.predict(x, named_generator(run.seed, "predict"), N_SAMPLES))

    return Fitted(predict, ConformalIntervals.fit(calibration_scores(model, x, y, weight == 0, run.seed), 1))


def _detector(x: Tensor, seed: int) -> OODDetector:
    return OODDetector.fit(x, FALSE_POSITIVE_RATE, named_generator(seed, "strange"))


def inside_region(x: Tensor, x_test: Tensor) -> tuple[Tensor, Tensor]:  # (rows,), (test rows,)
    """Masks of the rows that are kept, of x and of x_test.

    The others are farther along the first principal component of x than nine tenths of the rows of x.
    """
    centre = x.double().mean(0)
    component = torch.linalg.svd(x.double() - centre, full_matrices=False).Vh[0]
    component = component * component[component.abs().argmax()].sign()  # its sign is arbitrary
    along, along_test = ((rows.double() - centre) @ component for rows in (x, x_test))
    edge = torch.quantile(along, 0.9)
    return along <= edge, along_test <= edge


def unit_vectors(x: Tensor, seed: int, stream: str = "moved") -> Tensor:  # as x
    """A random vector of norm 1 for every row of x; `stream` names the random stream."""
    noise = torch.randn(x.shape, generator=named_generator(seed, stream))
    return noise / noise.norm(dim=-1, keepdim=True)


def _calibrated_coverage(
    intervals: ConformalIntervals | None, predictive: GaussianPredictive, y: Tensor
) -> dict[str, float]:
    """Of conformal intervals of level 0.9: their quantile ("reach"), and the fraction of rows inside.

    Empty without intervals. Predictive and y (rows, 1) are standardised.
    """
    if intervals is None:
        return {}
    quantile = intervals.conformal_quantile(0.9)
    inside = z_score(to_float64(predictive), y.double()) <= quantile
    return {"reach": float(quantile), "coverage_calibrated": inside.double().mean().item()}


EXPERIMENTS = {
    "uci": UciExperiment(
        name="uci",
        title="UCI regression: nine tables, standard splits",
        data=("uci",),
        methods=("ml-cdn", "vb-cdn", "map", "deep-ensemble", "mc-dropout", *baselines.installed()),
        all_methods=(*ALL_METHODS, "pbp", *baselines.installed()),
        n_seeds=20,  # splits; a table that has fewer gives all
    )
}
