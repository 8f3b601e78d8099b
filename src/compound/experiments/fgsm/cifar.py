"""CIFAR-10 under attack (figure 7): methods on the features of a fixed network, attacked in pixels.

Kristiadi et al. (2019), section 5.3: two layers with 100 hidden units on features of a network trained on
ImageNet, batches of 200, 100 epochs; DPN sees SVHN as outliers. Pixels stay in [0, 1] and are normalised
inside the network; the original code clips normalised ones. The other half of SVHN and traffic signs are
evaluated as in the out-of-distribution experiments. Far noise of default forms measures distances between
directions of features: short features, as of house numbers, lie near everything.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from compound.datasets import colour
from compound.datasets.extractors import load_extractor, parse_name
from compound.experiments import ood
from compound.experiments.base import Experiment
from compound.experiments.fgsm import STRENGTHS, extractor_attacks, protocols, without_wrapper
from compound.experiments.fgsm.cifar_page import OOD_KEY, OOD_SETS, draw_page
from compound.experiments.fgsm.features import FeatureCache, FeatureExtractor
from compound.experiments.identity import PUBLISHED, Run
from compound.experiments.runs import Outcome, Result, RunContext, fit_run
from compound.models import METHODS, Model
from compound.random import named_generator
from compound.report.page import Claim, Page
from compound.train.holdout import holdout_weights
from compound.types import make_dataset

EXTRACTOR = "efficientnet-lite0"
ENVIRONMENT = "COMPOUND_EXTRACTOR"  # environment variable that names another one
EPOCHS = 100
DATA = "cifar10"
OUTLIERS = "svhn"
PUBLISHED_OPTIONS = {method: {**options, "hyper": (50,)} for method, options in ood.PUBLISHED_OPTIONS.items()}


class Scale(NamedTuple):
    """Numbers of images of a preset."""

    n_train: int
    n_test: int
    n_ood: int  # of every out-of-distribution set; as many more of SVHN are outliers for training
    n_attacked: int  # under the sound protocol
    n_published: int  # under the published one
    draws: int  # of the published one


SCALES = {"quick": Scale(2000, 500, 500, 50, 20, 5), "paper": Scale(20_000, 10_000, 2500, 1000, 100, 20)}


class FeatureSets(NamedTuple):
    """The data of a run as standardised features (rows, features), and the pixels of the attacked images."""

    extractor: FeatureExtractor
    x_train: Tensor
    y_train: Tensor  # (rows,)
    weight: Tensor  # (rows,) 0 = held out
    x_test: Tensor
    y_test: Tensor  # (rows,)
    pixels: Tensor  # (rows, 3, 32, 32) in [0, 1], of the first test rows
    outliers: Tensor  # for methods that train on out-of-distribution rows
    ood_sets: dict[str, Tensor]  # evaluated, disjoint from the outliers


@dataclass(frozen=True, kw_only=True)
class CifarExperiment(Experiment):
    """Methods on features of CIFAR-10, under attack and on out-of-distribution images."""

    def grid(self, preset: str, seeds: int, methods: Sequence[str]) -> list[Run]:
        extractor = os.environ.get(ENVIRONMENT, "") or EXTRACTOR
        parse_name(extractor)  # raises before any work
        rows = SCALES[preset].n_train
        steps = EPOCHS * (rows - rows // 10) // ood.TRAIN_CONFIG.batch_size
        published = asdict(replace(ood.TRAIN_CONFIG, steps=steps))
        runs = []
        for seed in range(seeds):
            for method in methods:
                options = default_options(method)
                settings = asdict(ood.train_config(method, steps))
                run = Run(self.name, method, DATA, seed, options, settings, n_train=rows, extractor=extractor)
                runs.append(run)
                if method in PUBLISHED_OPTIONS:
                    options = PUBLISHED_OPTIONS[method]
                    runs.append(replace(run, variant=PUBLISHED, options=options, settings=published))
        return runs

    def work(self, run: Run, context: RunContext) -> Outcome:
        scale = next(scale for scale in SCALES.values() if scale.n_train == run.n_train)
        sets = load_features(run, context, scale)
        x_ood = sets.outliers if METHODS[run.method].needs_ood_rows else None
        data = make_dataset(sets.x_train, sets.y_train, ood.TASK, sets.weight, x_ood)
        model = fit_run(run, context, data, ood.TASK)
        in_dist = ood.predict_forms(model, sets.x_test, run.seed)
        ood_sets = {name: ood.predict_forms(model, x, run.seed) for name, x in sets.ood_sets.items()}
        numbers = {}
        for form, predictive in in_dist.items():
            by_set = {name: forms[form] for name, forms in ood_sets.items()}
            numbers[form] = ood.evaluate(predictive, sets.y_test, by_set)
        return Outcome({**_attack(run, model, sets, scale), OOD_KEY: numbers}, {})

    def fill_page(self, results: Sequence[Result], page: Page) -> list[Claim]:
        return draw_page(results, page)


def default_options(method: str) -> dict[str, Any]:
    """Options of a method's default form: far noise, where it has it, by directions of features."""
    options = ood.OPTIONS.get(method, ood.BASE_OPTIONS)
    has_far_noise = METHODS[method].has_far_noise or "far" in options
    return {**options, "far_distance": "directions"} if has_far_noise else options


def _attack(run: Run, model: Model, sets: FeatureSets, scale: Scale) -> dict[str, Any]:
    """The curves under both protocols, and under "silent" the fraction of images with zero gradient."""
    model = without_wrapper(model)
    extractor = sets.extractor
    x = sets.pixels
    y = sets.y_test[: len(x)]
    surrogate = protocols.to_double(ood.without_far_noise(model))
    generator = named_generator(run.seed, "signs")
    signs = extractor_attacks.gradient_signs(extractor, surrogate, x, y, protocols.TEN, generator)
    generator = named_generator(run.seed, "sound")
    sound = extractor_attacks.sound_protocol(extractor, model, x, signs, y, STRENGTHS, generator)
    first = slice(scale.n_published)
    generator = named_generator(run.seed, "published")
    published = extractor_attacks.published_protocol(
        extractor, model, x[first], y[first], STRENGTHS, generator, scale.draws
    )
    zero_gradient = (signs == 0).flatten(1).all(-1).double().mean().item()
    return {"published": published._asdict(), "sound": sound._asdict(), "silent": zero_gradient}


def load_features(run: Run, context: RunContext, scale: Scale) -> FeatureSets:
    """Features of all images of a run, standardised by the training rows that are not held out."""
    network = load_extractor(run.extractor)
    folder = context.directory.parent / "cache" / "features"
    cache = FeatureCache(run.extractor, network, folder, context.callback)
    train, test = (colour.load(DATA, part, context.data_dir) for part in ("train", "test"))
    others = {name: _shuffled(colour.load(name, "all", context.data_dir).x) for name in OOD_SETS}
    features = cache.features(train.x[: scale.n_train])
    weight = holdout_weights(scale.n_train, 1, 0.1, seed=0)[0]
    centred = run.options.get("far_distance") != "directions"
    extractor = FeatureExtractor.fit(network, features[weight > 0], centred)

    def standardised(x: Tensor) -> Tensor:
        return extractor.standardise(cache.features(x))

    return FeatureSets(
        extractor=extractor,
        x_train=extractor.standardise(features),
        y_train=train.y[: scale.n_train],
        weight=weight,
        x_test=standardised(test.x[: scale.n_test]),
        y_test=test.y[: scale.n_test],
        pixels=colour.to_unit_range(test.x[: scale.n_attacked]),
        outliers=standardised(others[OUTLIERS][-scale.n_ood :]),
        ood_sets={name: standardised(x[: scale.n_ood]) for name, x in others.items()},
    )


def _shuffled(x: Tensor) -> Tensor:
    """The rows in a random order that is always the same; files may be sorted by class."""
    return x[torch.randperm(len(x), generator=named_generator(0, "mixed"))]


EXPERIMENTS = {
    "fgsm-cifar": CifarExperiment(
        name="fgsm-cifar", title="CIFAR-10 under attack, through a fixed network", data=(DATA, *OOD_SETS)
    )
}
