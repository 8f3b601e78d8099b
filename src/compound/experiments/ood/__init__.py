"""Out-of-distribution images (figure 2, table 1): a network learns one data set and is evaluated on others.

Kristiadi et al. (2019), section 5.2: 784-100-10, batches of 200, 20,000 iterations, 100 draws; 5,000 rows are
held out. CDNs, `map` and `deep-ensemble` are evaluated with far noise and, from the same fit, without it.
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
from compound.experiments.base import Experiment
from compound.experiments.identity import ONE_MEMBER, PUBLISHED, Run
from compound.experiments.ood.page import draw_page
from compound.experiments.run_files import Arrays
from compound.experiments.runs import Outcome, Result, RunContext, fit_run
from compound.models import METHODS, Model
from compound.models.extrapolation import ExtrapolationGuard
from compound.ops.clamp import clamp_inputs
from compound.predictive import CategoricalPredictive
from compound.random import named_generator
from compound.report.page import Claim, Page
from compound.train.config import TrainConfig
from compound.types import Task, make_dataset

TASK = Task("classification", 10)
N_TRAIN = 55_000  # training rows
HELD_OUT = 5000  # the rows before them, as published
STEPS = {"quick": 1000, "paper": 20_000}
OOD_ROWS = {"quick": 2000, "paper": None}  # of each out-of-distribution set; None: all

# Options of the methods; those of a method that is not in OPTIONS are BASE_OPTIONS
BASE_OPTIONS: dict[str, Any] = {"widths": (100,)}
ONE_MEMBER_OPTIONS: dict[str, Any] = {**BASE_OPTIONS, "members": 1}
OPTIONS: dict[str, dict[str, Any]] = {
    "ml-cdn": {**BASE_OPTIONS, "members": 5},
    "vb-cdn": {**BASE_OPTIONS, "members": 2},
    "map": {**BASE_OPTIONS, "far": 3.0},
    "deep-ensemble": {**BASE_OPTIONS, "far": 3.0},
    "bnn-lv": {**BASE_OPTIONS, "samples": 3},
}
# S = 1 is one draw of everything: the logits, too, are drawn once
PAPER_OPTIONS: dict[str, Any] = {
    **ONE_MEMBER_OPTIONS,
    "parametrization": "paper",
    "last_draws": 1,
    "far": 0.0,
}
PUBLISHED_OPTIONS: dict[str, dict[str, Any]] = {
    "ml-cdn": {**PAPER_OPTIONS, "hyper": (50,), "lam": 1e-5},
    "vb-cdn": {**PAPER_OPTIONS, "hyper": (100,), "objective": "official"},
}

# Training: TRAIN_CONFIG, with LEARNING_RATES and MAX_STEPS for default forms
TRAIN_CONFIG = TrainConfig(
    batch_size=200, lr=1e-3, final_lr_ratio=1.0, clip_value=5.0, clip_norm=None, ema_decay=0.0, n_evals=0
)
LEARNING_RATES = {  # lr and final_lr_ratio
    "ml-cdn": (3e-3, 0.0),
    "vb-cdn": (3e-3, 0.0),
    "noisy-kfac": (1e-2, 1.0),
    "noisy-adam": (1e-2, 1.0),
}
MAX_STEPS = {"ml-cdn": 6000, "vb-cdn": 8000}  # one ml-cdn lost accuracy when trained for 20,000


def train_config(method: str, steps: int) -> TrainConfig:
    """The training of a method's default form."""
    lr, final_lr_ratio = LEARNING_RATES.get(method, (TRAIN_CONFIG.lr, TRAIN_CONFIG.final_lr_ratio))
    return replace(TRAIN_CONFIG, steps=steps, lr=lr, final_lr_ratio=final_lr_ratio)


@dataclass(frozen=True, kw_only=True)
class OodExperiment(Experiment):
    """One in-distribution data set, and the out-of-distribution sets it is compared with."""

    in_dist: str
    # "flipped" is in_dist upside down, "noise" uniform noise; the first is shown in the figure
    ood_sets: tuple[str, ...]
    outliers: str  # training rows for methods that need out-of-distribution rows
    in_paper: bool = False  # whether table 1 of the paper has it

    def grid(self, preset: str, seeds: int, methods: Sequence[str]) -> list[Run]:
        steps = STEPS[preset]
        published = asdict(replace(TRAIN_CONFIG, steps=steps))
        runs = []
        for seed in range(seeds):
            for method in methods:
                config = asdict(train_config(method, min(steps, MAX_STEPS.get(method, steps))))
                options = OPTIONS.get(method, BASE_OPTIONS)
                run = Run(self.name, method, self.in_dist, seed, options, config, n_train=N_TRAIN)
                runs.append(run)
                if method == "ml-cdn":
                    runs.append(replace(run, variant=ONE_MEMBER, options=ONE_MEMBER_OPTIONS))
                if method in PUBLISHED_OPTIONS:
                    options = PUBLISHED_OPTIONS[method]
                    runs.append(replace(run, variant=PUBLISHED, options=options, settings=published))
        return runs

    def fit(self, run: Run, context: RunContext) -> tuple[Model, images.Images]:
        """The trained model of a run, and the in-distribution test set."""
        train, test = (images.load(self.in_dist, part, context.data_dir) for part in ("train", "test"))
        weight = torch.ones(len(train.x))
        weight[:HELD_OUT] = 0
        x_ood = None
        if METHODS[run.method].needs_ood_rows:
            x_ood = images.load(self.outliers, "train", context.data_dir).x
        return fit_run(run, context, make_dataset(train.x, train.y, TASK, weight, x_ood), TASK), test

    def work(self, run: Run, context: RunContext) -> Outcome:
        model, test = self.fit(run, context)
        inputs = {self.in_dist: test.x}
        for name in self.ood_sets:
            inputs[name] = subsample(self._load_ood(name, test.x, run.seed, context.data_dir), run)
        predictives = {name: predict_forms(model, x, run.seed) for name, x in inputs.items()}
        numbers: dict[str, Any] = {}
        arrays: Arrays = {}
        for form in predictives[self.in_dist]:
            by_set = {name: forms[form] for name, forms in predictives.items()}
            arrays |= {f"entropy {form} {name}": p.entropy().numpy() for name, p in by_set.items()}
            numbers[form] = evaluate(by_set.pop(self.in_dist), test.y, by_set)
        return Outcome(numbers, arrays)

    def _load_ood(
        self, name: str, in_dist: Tensor, seed: int, data_dir: Path | None
    ) -> Tensor:  # (rows, 784)
        """An out-of-distribution set; `in_dist` are the in-distribution test images (rows, 784)."""
        if name == "flipped":
            return images.flipped(in_dist)
        if name == "noise":
            return torch.rand(in_dist.shape, generator=named_generator(seed, "noise pictures"))
        return images.load(name, "test" if "test" in images.PARTS[name] else "all", data_dir).x

    def fill_page(self, results: Sequence[Result], page: Page) -> list[Claim]:
        return draw_page(results, page, self.in_dist, self.ood_sets, self.in_paper)


def subsample(x: Tensor, run: Run) -> Tensor:
    """A random subset of the rows of x, as many as OOD_ROWS has for the preset of the run."""
    n_rows = OOD_ROWS[preset_of(run)]
    if n_rows is None:
        return x
    return x[torch.randperm(len(x), generator=named_generator(run.seed, "shown"))[:n_rows]]


def preset_of(run: Run) -> str:
    """The preset of a run, by its number of steps."""
    return "quick" if run.settings["steps"] <= STEPS["quick"] else "paper"


def without_far_noise(model: Model) -> Model:
    """A copy of the model without its far noise; the model itself where it has none."""
    if model.distance is None:
        return model
    model = copy.deepcopy(model)
    far = cast(ExtrapolationGuard, model.far)
    far.noise = far.unfitted_noise()
    return model


def predict_forms(model: Model, x: Tensor, seed: int) -> dict[str, CategoricalPredictive]:
    """Predictives without far noise ("plain") and, if the model has it, with it ("far"), from equal draws."""
    plain_model = without_far_noise(model)
    plain = predict(plain_model, x, seed)
    if plain_model is model:
        return {"plain": plain}
    far = cast(ExtrapolationGuard, model.far)
    return {"plain": plain, "far": plain.with_far_noise(far.noise(clamp_inputs(x)), far.far_params)}


def predict(model: Model, x: Tensor, seed: int, stream: str = "predict") -> CategoricalPredictive:
    """The predictive of x (rows, features), with draws that depend on seed and stream alone."""
    return cast(CategoricalPredictive, model.predict(x, named_generator(seed, stream)))


def evaluate(
    in_dist: CategoricalPredictive, y: Tensor, ood_sets: dict[str, CategoricalPredictive]
) -> dict[str, Any]:
    """Metrics of the test set with labels y (rows,), and of each out-of-distribution set by its name."""
    numbers: dict[str, Any] = {
        "accuracy": metrics.accuracy(in_dist, y),
        "nll": metrics.nll(in_dist, y),
        "brier": metrics.brier(in_dist, y),
        "ece": metrics.ece(in_dist, y),
        "mmc_in": metrics.mmc(in_dist),
    }
    for name, ood in ood_sets.items():
        entropies = in_dist.entropy(), ood.entropy()
        numbers[name] = {
            "mmc_out": metrics.mmc(ood),
            "auroc": metrics.auroc(*entropies),
            "auroc_confidence": metrics.auroc(-in_dist.confidence, -ood.confidence),
            "auroc_epistemic": metrics.auroc(in_dist.epistemic, ood.epistemic),
            "aupr": metrics.aupr(*entropies),
            "fpr95": metrics.fpr95(*entropies),
        }
    return numbers


MNIST = OodExperiment(
    name="ood-mnist",
    title="MNIST against notMNIST: predictive entropy of letters",
    data=("mnist", "fashion-mnist", "notmnist", "omniglot"),
    in_dist="mnist",
    ood_sets=("notmnist", "fashion-mnist", "omniglot", "flipped", "noise"),
    outliers="fashion-mnist",
    in_paper=True,
)
FASHION = OodExperiment(
    name="ood-fashion",
    title="Fashion-MNIST against itself upside down",
    data=("fashion-mnist", "mnist", "notmnist", "omniglot"),
    in_dist="fashion-mnist",
    ood_sets=("flipped", "notmnist", "mnist", "omniglot", "noise"),
    outliers="mnist",
)
EXPERIMENTS = {experiment.name: experiment for experiment in (MNIST, FASHION)}
