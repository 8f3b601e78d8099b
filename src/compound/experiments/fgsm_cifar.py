"""CIFAR-10 under attack (figure 7): heads on the features of a fixed network, attacked in pixels through it.

Kristiadi et al. (2019), section 5.3: a two-layer head with 100 hidden units on features of a network trained on ImageNet, batches of
200, 100 epochs; DPN sees SVHN as outliers. Pixels stay in [0, 1] and are normalised inside the network; the original code clips
normalised ones. SVHN's other half and traffic signs are shown besides, as in the out-of-distribution experiments.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from compound.datasets import colour
from compound.datasets.extractors import chosen, extractor
from compound.experiments import extractor_attacks, ood, robust
from compound.experiments.features import FeatureCache, FeatureExtractor
from compound.experiments.fgsm import STRENGTHS
from compound.experiments.fgsm_cifar_page import STRANGE, draw_page, extractor_of
from compound.experiments.runs import Outcome, Result, Run, RunContext, fitted
from compound.models import METHODS as ALL
from compound.models import Model
from compound.models.distance_aware import DistanceAware
from compound.random import named_generator
from compound.report.page import Claim, Page
from compound.train.holdout import holdout_weights
from compound.types import make_dataset

EXTRACTOR = "efficientnet-lite0"
ENVIRONMENT = "COMPOUND_EXTRACTOR"  # names another one
EPOCHS = 100
PUBLISHED = {method: {**options, "hyper": (50,)} for method, options in ood.PUBLISHED.items()}


class Scale(NamedTuple):
    """How many pictures."""

    train: int
    test: int
    ood_sets: int  # of every other set; as many more of SVHN are a DPN's outliers
    attacked: int  # under the sound protocol
    published: int  # under the published one
    draws: int  # of the published one


SCALES = {"quick": Scale(2000, 500, 500, 50, 20, 5), "paper": Scale(20_000, 10_000, 2500, 1000, 100, 20)}


class Sets(NamedTuple):
    """Standard features (rows, features) of what is learnt and shown; pixels of what is attacked, the first rows of the test set."""

    front: FeatureExtractor
    train: Tensor
    labels: Tensor  # (rows,)
    weight: Tensor  # (rows,) 0 = held out
    test: Tensor
    y: Tensor  # (rows,)
    pixels: Tensor  # (rows, 3, 32, 32) in [0, 1]
    outliers: Tensor  # what a DPN is taught to doubt
    ood_sets: dict[str, Tensor]  # what is shown besides


@dataclass(frozen=True)
class FgsmCifar:
    name: str = "fgsm-cifar"
    TITLE: str = "CIFAR-10 under attack, through a fixed network"
    METHODS: tuple[str, ...] = tuple(ALL)
    ALL_METHODS: tuple[str, ...] = tuple(ALL)
    PRESETS: tuple[str, ...] = tuple(SCALES)
    SEEDS: int = 1
    DATA: tuple[str, ...] = ("cifar10", "svhn", "gtsrb")

    def grid(self, preset: str, seeds: int, methods: Sequence[str]) -> list[Run]:
        word = os.environ.get(ENVIRONMENT, "") or EXTRACTOR
        chosen(word)  # refused here, before any work
        rows = SCALES[preset].train
        data = f"cifar10/{rows}/{word}"
        settings = replace(ood.BASE, steps=EPOCHS * (rows - rows // 10) // ood.BASE.batch_size)
        runs = []
        for seed in range(seeds):
            for method in methods:
                rate, end = ood.OWN_RATE.get(method, (settings.lr, settings.final_lr_ratio))
                own = asdict(replace(settings, lr=rate, final_lr_ratio=end))
                runs.append(Run(self.name, method, data, seed, ood.OPTIONS.get(method, ood.WIDE), own))
                if method in PUBLISHED:
                    runs.append(
                        Run(
                            self.name,
                            method,
                            f"{data}, as published",
                            seed,
                            PUBLISHED[method],
                            asdict(settings),
                        )
                    )
        return runs

    def work(self, run: Run, place: RunContext) -> Outcome:
        scale = next(scale for scale in SCALES.values() if run.data.startswith(f"cifar10/{scale.train}/"))
        sets = _sets(run, place, scale)
        outside = sets.outliers if run.method == "dpn" else None
        model = fitted(
            run, place, make_dataset(sets.train, sets.labels, ood.TASK, sets.weight, outside), ood.TASK
        )
        known = ood.answers(model, sets.test, run.seed)
        strange = {name: ood.answers(model, z, run.seed) for name, z in sets.ood_sets.items()}
        numbers = {
            form: ood.measured(known[form], sets.y, {name: found[form] for name, found in strange.items()})
            for form in known
        }
        return Outcome({**self._attacked(run, model, sets, scale), "strange": numbers}, {})

    def _attacked(self, run: Run, model: Model, sets: Sets, scale: Scale) -> dict[str, Any]:
        model = (
            model.inner if isinstance(model, DistanceAware) else model
        )  # baselines without far noise, as in `fgsm`
        x, y = sets.pixels, sets.y[: len(sets.pixels)]
        moves = extractor_attacks.signs(
            sets.front,
            robust.exact(ood.without_far_noise(model)),
            x,
            y,
            10,
            named_generator(run.seed, "signs"),
        )
        sound = extractor_attacks.judged(
            sets.front, model, x, moves, y, STRENGTHS, named_generator(run.seed, "sound")
        )
        few = slice(scale.published)
        published = extractor_attacks.published(
            sets.front, model, x[few], y[few], STRENGTHS, named_generator(run.seed, "published"), scale.draws
        )
        silent = (moves == 0).flatten(1).all(-1).double().mean().item()
        return {"published": published._asdict(), "sound": sound._asdict(), "silent": silent}

    def draw(self, results: Sequence[Result], page: Page) -> list[Claim]:
        return draw_page(results, page)


def _sets(run: Run, place: RunContext, scale: Scale) -> Sets:
    name = extractor_of(run)
    network = extractor(name)
    bank = FeatureCache(name, network, place.directory.parent / "cache" / "features", place.callback)
    train, test = (colour.load("cifar10", part, place.data_dir) for part in ("train", "test"))
    others = {name: _mixed(colour.load(name, "all", place.data_dir).x) for name in STRANGE}
    features = bank.features(train.x[: scale.train])
    weight = holdout_weights(scale.train, 1, 0.1, seed=0)[0]
    front = FeatureExtractor.fit(network, features[weight > 0])

    def standard(x: Tensor) -> Tensor:
        return front.standard(bank.features(x))

    return Sets(
        front=front,
        train=front.standard(features),
        labels=train.y[: scale.train],
        weight=weight,
        test=standard(test.x[: scale.test]),
        y=test.y[: scale.test],
        pixels=colour.pixels(test.x[: scale.attacked]),
        outliers=standard(others["svhn"][-scale.ood_sets :]),
        ood_sets={name: standard(x[: scale.ood_sets]) for name, x in others.items()},
    )


def _mixed(x: Tensor) -> Tensor:
    """In another order, always the same: traffic signs come by their kind."""
    return x[torch.randperm(len(x), generator=named_generator(0, "mixed"))]


EXPERIMENT = FgsmCifar()
