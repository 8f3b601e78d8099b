"""Images: a small convolutional network with a compound head, its test errors and its outliers.

MNIST and Fashion-MNIST: two convolutions and a linear layer, images moved by a pixel or two in training. The
first 20,000 images of CIFAR-10: a small residual network, images moved and mirrored. Each method is a head
on such a network, trained together with it: `map` without hidden layer is the plain network. The last
training images are held out: they set temperature, far noise (features and pixels) and the threshold.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from compound import metrics
from compound.datasets import colour, images
from compound.experiments.base import Experiment
from compound.experiments.identity import Run
from compound.experiments.images.networks import FEATURES, backbone
from compound.experiments.images.page import draw_page
from compound.experiments.images.training import ImageTraining, train
from compound.experiments.locks import locked
from compound.experiments.ood import evaluate
from compound.experiments.runs import Outcome, Result, RunContext
from compound.models import METHODS, Method
from compound.network import Head
from compound.network.head import UNSUITABLE
from compound.predictive import CategoricalPredictive
from compound.random import derive_seed
from compound.report.page import Claim, Page
from compound.types import Task

TASK = Task("classification", 10)
BATCH = 500  # images per pass of the trained network
OPTIONS: dict[str, dict[str, Any]] = {"map": {"widths": ()}, "deep-ensemble": {"widths": ()}}
TRAINING = {
    "mnist": ImageTraining(epochs=6),
    "fashion-mnist": ImageTraining(epochs=15, shift=0, mirror=True),
    "cifar10": ImageTraining(epochs=10, lr=2e-3, shift=4, mirror=True),
}
HELD_OUT = {"mnist": 5000, "fashion-mnist": 5000, "cifar10": 2000}
SIDES = {"mnist": (1, 28), "fashion-mnist": (1, 28), "cifar10": (3, 32)}  # channels and pixels along an axis
OOD_SETS = {
    "mnist": ("notmnist", "fashion-mnist", "omniglot", "flipped"),
    "fashion-mnist": ("mnist", "notmnist", "flipped"),
    "cifar10": ("svhn", "gtsrb"),
}
QUICK_ROWS = 2000  # training images of the preset quick
QUICK_EPOCHS = 2


@dataclass(frozen=True, kw_only=True)
class ImagesExperiment(Experiment):
    """Heads on convolutional networks, with and without calibration."""

    def grid(self, preset: str, seeds: int, methods: Sequence[str]) -> list[Run]:
        runs = []
        for data, training in TRAINING.items():
            settings = asdict(training) | ({"epochs": QUICK_EPOCHS} if preset == "quick" else {})
            rows = QUICK_ROWS if preset == "quick" else None
            for seed in range(1 if data == "cifar10" else seeds):
                for method in methods:
                    options = OPTIONS.get(method, {})
                    runs.append(Run(self.name, method, data, seed, options, settings, n_train=rows))
        return runs

    def work(self, run: Run, context: RunContext) -> Outcome:
        x, y = load(run.data, "train", context.data_dir)
        rows = len(x) if run.n_train is None else run.n_train
        x, y, held_out = x[:rows], y[:rows], min(HELD_OUT[run.data], rows // 4)
        with torch.random.fork_rng():  # torch's layers draw their initial weights from its own generator
            torch.manual_seed(derive_seed(run.seed, "backbone"))
            network = backbone(run.data)
        channels, side = SIDES[run.data]
        head = Head(
            Method(run.method, **run.options),
            features=FEATURES[run.data],
            task=TASK,
            inputs=channels * side**2,
            seed=run.seed,
        )
        folder = context.directory.parent / "fits" / run.fit_key
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / "lock", context.wait):
            path = folder / "checkpoint.safetensors"
            parts = x[:-held_out], y[:-held_out]
            train(network, head, *parts, ImageTraining(**run.settings), path, context.callback)
        test = load(run.data, "test", context.data_dir)
        sets = {name: outliers(name, test[0], context.data_dir) for name in OOD_SETS[run.data]}
        if run.n_train is not None:
            test, sets = (test[0][:500], test[1][:500]), {name: rows[:500] for name, rows in sets.items()}

        def predict(rows: Tensor) -> CategoricalPredictive:
            return cast(CategoricalPredictive, head.predict(list(rows.split(BATCH)), network))

        def numbers() -> dict[str, Any]:
            return _numbers(predict(test[0]), test[1], {name: predict(rows) for name, rows in sets.items()})

        plain = numbers()
        head.finish(network, batches(*parts), batches(x[-held_out:], y[-held_out:]))
        return Outcome({"plain": plain, "calibrated": numbers()}, {})

    def fill_page(self, results: Sequence[Result], page: Page) -> list[Claim]:
        return draw_page(results, page)


def _numbers(p: CategoricalPredictive, y: Tensor, sets: dict[str, CategoricalPredictive]) -> dict[str, Any]:
    """`evaluate`, and the AUROC of out-of-distribution scores where there are any."""
    found = evaluate(p, y, sets)
    for name, other in sets.items():
        if p.ood is not None and other.ood is not None:
            found[name]["auroc_score"] = metrics.auroc(p.ood.scores, other.ood.scores)
    return found


def batches(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(BATCH), y.split(BATCH), strict=True))


def load(data: str, part: str, data_dir: Path | None) -> tuple[Tensor, Tensor]:
    """Images (rows, channels, side, side) in [0, 1] and labels (rows,) of a data set."""
    if data in images.PARTS:
        grey = images.load(data, part, data_dir)
        return grey.x.view(-1, 1, 28, 28), grey.y
    pictures = colour.load(data, part, data_dir)
    return colour.to_unit_range(pictures.x), pictures.y


def outliers(name: str, test: Tensor, data_dir: Path | None) -> Tensor:  # (rows, channels, side, side)
    """An out-of-distribution set; "flipped" are the test images upside down."""
    if name == "flipped":
        return test.flip(2)
    return load(name, "test" if "test" in images.PARTS.get(name, ()) else "all", data_dir)[0]


EXPERIMENTS = {
    "images": ImagesExperiment(
        name="images",
        title="Images: a compound head on a small convolutional network",
        data=("mnist", "fashion-mnist", "notmnist", "omniglot", "cifar10", "svhn", "gtsrb"),
        methods=("map", "ml-cdn"),
        all_methods=tuple(name for name in METHODS if name not in UNSUITABLE),
        n_seeds=3,
    )
}
