"""The nine UCI regression sets with the standard splits: how good, how honest, and how well strangers are known.

Every split of a set is a run; its number is the seed. A second fit, "region", leaves out the tenth of the rows farthest along the
first principal component and asks whether they are met with more doubt. Hernández-Lobato and Adams (2015) made the splits.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from compound import metrics
from compound.datasets import uci
from compound.estimators.calibration import ConformalIntervals
from compound.estimators.conformal_scores import z_score
from compound.estimators.member_holdout import calibration_scores, member_holdout_weights
from compound.estimators.prediction import to_float64
from compound.experiments import baselines
from compound.experiments.baselines import PEERS, Answer, installed
from compound.experiments.runs import Outcome, Run, RunContext, fitted
from compound.experiments.uci_page import draw as draw
from compound.models import METHODS as ALL
from compound.models import Method
from compound.ood.detector import OODDetector
from compound.predictive import GaussianPredictive
from compound.random import named_generator
from compound.train.config import TrainConfig, default_train_config
from compound.train.holdout import holdout_weights
from compound.types import Task, make_dataset

TITLE = "UCI regression: nine tables, standard splits"
SETS = {  # as papers call them, quick ones first
    "boston": "bostonHousing",
    "yacht": "yacht",
    "energy": "energy",
    "concrete": "concrete",
    "wine": "wine-quality-red",
    "kin8nm": "kin8nm",
    "power": "power-plant",
    "naval": "naval-propulsion-plant",
    "protein": "protein-tertiary-structure",
}
ROWS = {  # training rows of a split, for the settings: no file need be here to plan
    "boston": 455,
    "yacht": 277,
    "energy": 691,
    "concrete": 927,
    "wine": 1439,
    "kin8nm": 7373,
    "power": 8611,
    "naval": 10741,
    "protein": 41157,
}
METHODS = ("ml-cdn", "vb-cdn", "map", "deep-ensemble", "mc-dropout", *installed())
ALL_METHODS = (*ALL, *installed())
PRESETS = ("quick", "paper")
SEEDS = 20  # splits; a set that has fewer gives all it has
DATA: tuple[str, ...] = ("uci",)
QUICK_SPLITS, QUICK_STEPS, QUICK_ROWS = 1, 200, 500
QUICK_PEERS = 1000  # rows up to which the quick preset has peers: they know no shorter training
TASK = Task("regression", 1)
HELD_OUT = 0.1
DRAWS = 200
REGION = ", region"
FALSE_ALARMS = 0.01
STEP = 5.0  # length of the vector that moves a row, in standard units


def grid(preset: str, seeds: int, methods: Sequence[str]) -> list[Run]:
    """Set by set and split by split; the quick preset has the first split only, regions of the smallest sets and peers on small ones."""
    runs = []
    for name, region in product(SETS, ("", REGION)):
        if preset == "quick" and region and ROWS[name] > QUICK_ROWS:
            continue
        splits = min(seeds, uci.SPLITS[SETS[name]], QUICK_SPLITS if preset == "quick" else seeds)
        for split, method in product(range(splits), methods):
            if preset == "quick" and method in PEERS and ROWS[name] > QUICK_PEERS:
                continue
            settings = (
                baselines.settings(method) if method in PEERS else asdict(_settings(method, name, preset))
            )
            runs.append(Run("uci", method, name + region, split, {}, settings))
    return runs


def _settings(method: str, name: str, preset: str) -> TrainConfig:
    settings = default_train_config(TASK, ROWS[name])
    if preset == "quick":
        settings = replace(settings, steps=min(settings.steps, QUICK_STEPS))
    if method.startswith("noisy"):
        settings = replace(settings, clip_norm=None)  # a natural gradient has its own bound
    return settings


def work(run: Run, place: RunContext) -> Outcome:
    split = uci.load(SETS[run.data.removesuffix(REGION)], run.seed, place.data_dir)
    if run.data.endswith(REGION):
        return _region(run, place, split)
    begin = time.process_time()
    ask, intervals = _learnt(run, place, split.x, split.y)
    seconds = time.process_time() - begin
    answer = ask(split.x_test)
    own = answer.rescale(0.0, split.scale)
    y = split.y_test * split.scale  # both about the training mean: no number here changes with it
    found: dict[str, Any] = {
        "nll": metrics.nll(answer, split.y_test) + math.log(split.scale),
        "rmse": metrics.rmse(own, y),
        "crps": metrics.crps(own, y),
        "coverage": metrics.coverage(answer, split.y_test),
        **_honest(intervals, answer, split.y_test),
        "aleatoric": own.aleatoric.double().mean().item(),
        "epistemic": own.epistemic.double().mean().item(),
        "cpu_seconds": seconds,
        "rows": len(y),
    }
    if run.method not in PEERS:  # the same for all of ours: it looks at the inputs alone
        known = OODDetector.fit(split.x, FALSE_ALARMS, named_generator(run.seed, "strange"))
        moved = split.x_test + STEP * directions(split.x_test, run.seed)
        found |= {
            "false_alarms": int((known.scores(split.x_test) > known.threshold).sum()),
            "moved_flagged": int((known.scores(moved) > known.threshold).sum()),
        }
    return Outcome(found, {"cdf": answer.cdf(split.y_test).squeeze(-1).numpy()})


class Learnt(NamedTuple):
    ask: Answer
    intervals: ConformalIntervals | None  # honest ones, as the estimators make them


def _learnt(run: Run, place: RunContext, x: Tensor, y: Tensor) -> Learnt:
    if run.method in PEERS:
        return Learnt(
            PEERS[run.method](
                make_dataset(x, y, TASK, holdout_weights(len(x), 1, HELD_OUT, run.seed)), run.seed
            ),
            None,
        )
    outside = x + STEP * directions(x, run.seed, "outside") if run.method == "dpn" else None
    weight = member_holdout_weights(len(x), _members(run.method), HELD_OUT, run.seed)
    model = fitted(run, place, make_dataset(x, y, TASK, weight, outside), TASK)

    def ask(asked: Tensor) -> GaussianPredictive:
        return cast(GaussianPredictive, model.predict(asked, DRAWS, named_generator(run.seed, "predict")))

    return Learnt(ask, ConformalIntervals.fit(calibration_scores(model, x, y, weight == 0, run.seed), 1))


def _members(method: str) -> int:
    return Method(method).build(1, TASK, 0).members


def _region(run: Run, place: RunContext, split: uci.Split) -> Outcome:
    """AUROC of telling rows of a region that training never saw from ordinary test rows."""
    inside, test_inside = leave_out(split.x, split.x_test)
    x, y = split.x[inside], split.y[inside]
    shift, scale = x.mean(0), x.std(0, correction=0)
    scale = torch.where(scale > 1e-6, scale, 1.0)
    known = (x - shift) / scale
    ask, _ = _learnt(run, place, known, (y - y.mean()) / y.std(correction=0))
    ordinary, beyond = split.x_test[test_inside], torch.cat([split.x[~inside], split.x_test[~test_inside]])
    answers = [ask((rows - shift) / scale) for rows in (ordinary, beyond)]
    found: dict[str, Any] = {
        f"auroc_{name}": metrics.auroc(*(getattr(answer, part).squeeze(-1).double() for answer in answers))
        for name, part in (("epistemic", "epistemic"), ("predictive", "variance"))
    }
    if run.method not in PEERS:
        scores = OODDetector.fit(known, FALSE_ALARMS, named_generator(run.seed, "strange")).scores
        found["auroc_distance"] = metrics.auroc(
            *(scores((rows - shift) / scale).double() for rows in (ordinary, beyond))
        )
    return Outcome({**found, "rows": len(ordinary), "beyond": len(beyond)}, {})


def leave_out(x: Tensor, x_test: Tensor) -> tuple[Tensor, Tensor]:
    """Which training and which test rows are not in the tenth of training rows farthest along their first principal component."""
    centre = x.double().mean(0)
    direction = torch.linalg.svd(x.double() - centre, full_matrices=False).Vh[0]
    direction = direction * direction[direction.abs().argmax()].sign()  # a component has no sign of its own
    along, along_test = ((rows.double() - centre) @ direction for rows in (x, x_test))
    edge = torch.quantile(along, 0.9)
    return along <= edge, along_test <= edge


def directions(x: Tensor, seed: int, name: str = "moved") -> Tensor:
    """A random vector of length 1 for every row."""
    noise = torch.randn(x.shape, generator=named_generator(seed, name))
    return noise / noise.norm(dim=-1, keepdim=True)


def _honest(intervals: ConformalIntervals | None, answer: GaussianPredictive, y: Tensor) -> dict[str, float]:
    """How far the calibrated interval of coverage 0.9 reaches, and the share of rows inside."""
    if intervals is None:
        return {}
    reach = intervals.conformal_quantile(0.9)
    return {
        "reach": float(reach),
        "coverage_calibrated": (z_score(to_float64(answer), y.double()) <= reach).double().mean().item(),
    }
