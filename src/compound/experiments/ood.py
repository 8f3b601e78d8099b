"""Doubt about pictures of another kind: figure 2 and table 1. One network learns a set of pictures and is shown several others.

Kristiadi et al. (2019), section 5.2: 784-100-10, batches of 200, 20,000 iterations, 100 draws; 5,000 rows are held out.
CDNs, `map` and `deep-ensemble` are measured with far noise and, from the same fit, without it.
"""

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from compound import metrics
from compound.datasets import images
from compound.experiments.ood_page import draw_page
from compound.experiments.runs import Numbers, Outcome, Result, Run, RunContext, fitted
from compound.models import METHODS as ALL
from compound.models import Model
from compound.models.far_noise import FarNoise
from compound.ood.noise import DistanceAwareNoise
from compound.ops.clamp import clamp_inputs
from compound.predictive import CategoricalPredictive
from compound.random import named_generator
from compound.report.page import Claim, Page
from compound.train.config import TrainConfig
from compound.types import Task, make_dataset

TASK = Task("classification", 10)
HELD_OUT = 5000
STEPS = {"quick": 1000, "paper": 20_000}
SHOWN = {"quick": 2000, "paper": None}  # strange pictures of each kind, None: all
WIDE: dict[str, Any] = {"widths": (100,)}
FAR = {**WIDE, "far": 3.0}
ONE: dict[str, Any] = {**WIDE, "members": 1}
PAPER: dict[str, Any] = {**ONE, "parametrization": "paper", "far": 0.0}
# methods whose options or settings are not just WIDE and the paper's
OPTIONS: dict[str, dict[str, Any]] = {
    "ml-cdn": {**WIDE, "members": 5},
    "vb-cdn": {**WIDE, "members": 2},
    "map": FAR,
    "deep-ensemble": FAR,
    "bnn-lv": {**WIDE, "samples": 3},
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "ml-cdn": {**PAPER, "hyper": (50,), "lam": 1e-5},
    "vb-cdn": {**PAPER, "hyper": (100,), "objective": "official"},
}
BASE = TrainConfig(
    batch_size=200, lr=1e-3, final_lr_ratio=1.0, clip_value=5.0, clip_norm=None, ema_decay=0.0, n_evals=0
)
OWN_RATE = {
    "ml-cdn": (3e-3, 0.0),
    "vb-cdn": (3e-3, 0.0),
    "noisy-kfac": (1e-2, 1.0),
    "noisy-adam": (1e-2, 1.0),
}  # rate, and its end
ENOUGH = {"ml-cdn": 6000, "vb-cdn": 8000}  # steps: one ml-cdn lost accuracy when trained for 20,000


@dataclass(frozen=True)
class Ood:
    """One such experiment: what is learnt, and what is shown."""

    name: str
    TITLE: str
    in_dist: str  # the set that is learnt
    main: str  # the set that is looked at first
    ood_sets: tuple[
        str, ...
    ]  # all that is shown; "flipped" is the known set upside down, "noise" uniform noise
    outliers: str  # what a method that trains on outliers is given
    published: str = ""  # the table of published.json it is compared with
    METHODS: tuple[str, ...] = tuple(ALL)
    ALL_METHODS: tuple[str, ...] = tuple(ALL)
    PRESETS: tuple[str, ...] = tuple(STEPS)
    SEEDS: int = 1

    @property
    def DATA(self) -> tuple[str, ...]:
        return (self.in_dist, self.outliers, *(name for name in self.ood_sets if name in images.PARTS))

    def grid(self, preset: str, seeds: int, methods: Sequence[str]) -> list[Run]:
        runs = []
        for seed in range(seeds):
            for method in methods:
                rate, end = OWN_RATE.get(method, (BASE.lr, BASE.final_lr_ratio))
                steps = min(STEPS[preset], ENOUGH.get(method, STEPS[preset]))
                settings = replace(BASE, steps=steps, lr=rate, final_lr_ratio=end)
                runs.append(
                    Run(self.name, method, self.in_dist, seed, OPTIONS.get(method, WIDE), asdict(settings))
                )
                if method == "ml-cdn":
                    runs.append(replace(runs[-1], data=f"{self.in_dist}, one member", options=ONE))
                if method in PUBLISHED:
                    data, settings = f"{self.in_dist}, as published", replace(BASE, steps=STEPS[preset])
                    runs.append(Run(self.name, method, data, seed, PUBLISHED[method], asdict(settings)))
        return runs

    def trained(self, run: Run, place: RunContext) -> tuple[Model, images.Images]:
        """The run's model, and the test set."""
        train, test = (images.load(self.in_dist, part, place.data_dir) for part in ("train", "test"))
        weight = torch.ones(len(train.x))
        weight[-HELD_OUT:] = 0  # the first 55,000 train, as published
        outside = None
        if ALL[run.method].needs_ood_rows:
            outside = images.load(self.outliers, "train", place.data_dir).x
        return fitted(run, place, make_dataset(train.x, train.y, TASK, weight, outside), TASK), test

    def work(self, run: Run, place: RunContext) -> Outcome:
        model, test = self.trained(run, place)
        shown = {
            name: some(self._pictures(name, test.x, run.seed, place.data_dir), run) for name in self.ood_sets
        }
        found = {name: answers(model, x, run.seed) for name, x in {self.in_dist: test.x, **shown}.items()}
        numbers: dict[str, Any] = {}
        arrays: Numbers = {}
        for form in found[self.in_dist]:
            own = {name: answer[form] for name, answer in found.items()}
            arrays |= {f"entropy {form} {name}": answer.entropy().numpy() for name, answer in own.items()}
            numbers[form] = measured(own.pop(self.in_dist), test.y, own)
        return Outcome(numbers, arrays)

    def _pictures(self, name: str, in_dist: Tensor, seed: int, data_dir: Path | None) -> Tensor:
        if name == "flipped":
            return images.flipped(in_dist)
        if name == "noise":
            return torch.rand(
                len(in_dist), in_dist.shape[1], generator=named_generator(seed, "noise pictures")
            )
        return images.load(name, "test" if "test" in images.PARTS[name] else "all", data_dir).x

    def draw(self, results: Sequence[Result], page: Page) -> list[Claim]:
        return draw_page(results, page, self.in_dist, self.main, self.ood_sets, self.published)


def some(x: Tensor, run: Run) -> Tensor:
    """As many of the pictures as the preset shows, at random: files may be in the order of their labels."""
    few = SHOWN[preset_of(run)]
    return x if few is None else x[torch.randperm(len(x), generator=named_generator(run.seed, "shown"))[:few]]


def preset_of(run: Run) -> str:
    return "quick" if run.settings["steps"] <= STEPS["quick"] else "paper"


def without_far_noise(model: Model) -> Model:
    """The same without its far noise; the model itself where it has none."""
    if model.distance is None:
        return model
    model = copy.deepcopy(model)
    cast(FarNoise, model.far).noise = DistanceAwareNoise(model.inputs)
    return model


def answers(model: Model, x: Tensor, seed: int) -> dict[str, CategoricalPredictive]:
    """What the model says without its far noise and, where it has some, with it, from the same draws."""
    silent = without_far_noise(model)
    plain = cast(CategoricalPredictive, silent.predict(x, named_generator(seed, "predict")))
    return (
        {"plain": plain}
        if silent is model
        else {
            "plain": plain,
            "far": plain.mix_with_uniform(cast(FarNoise, model.far).noise(clamp_inputs(x))),
        }
    )


def measured(
    in_dist: CategoricalPredictive, y: Tensor, strange: dict[str, CategoricalPredictive]
) -> dict[str, Any]:
    numbers: dict[str, Any] = {
        "accuracy": metrics.accuracy(in_dist, y),
        "nll": metrics.nll(in_dist, y),
        "brier": metrics.brier(in_dist, y),
        "ece": metrics.ece(in_dist, y),
        "mmc_in": metrics.mmc(in_dist),
    }
    for name, answer in strange.items():
        entropies = in_dist.entropy(), answer.entropy()
        numbers[name] = {
            "mmc_out": metrics.mmc(answer),
            "auroc": metrics.auroc(*entropies),
            "auroc_confidence": metrics.auroc(-in_dist.confidence, -answer.confidence),
            "auroc_epistemic": metrics.auroc(in_dist.epistemic, answer.epistemic),
            "aupr": metrics.aupr(*entropies),
            "fpr95": metrics.fpr95(*entropies),
        }
    return numbers
