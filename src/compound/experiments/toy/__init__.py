"""Figure 1: regression of a cubic with few points (set 1), or with noise that depends on the side (set 2).

Methods have up to two forms. *Default*: standardised data, learnt noise, and a band of the standard deviation
of the predictive. *Published*, for the methods in the figure of the paper: the setting of the original code,
data not standardised, noise fixed at 1/√2 and left out of the band. Kristiadi et al. (2019), 5.1.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, NamedTuple, cast

import torch
from torch import Generator, Tensor

from compound.datasets.toy import TOY_SETS, Toy, ToySet, cubic, true_function
from compound.experiments.base import Experiment
from compound.experiments.identity import PUBLISHED, Run
from compound.experiments.run_memory import DataSize
from compound.experiments.runs import Outcome, Result, RunContext, fit_run
from compound.experiments.toy.page import draw_page
from compound.models import METHODS, VBCDN
from compound.models.noisy import Noisy
from compound.nn import MatrixGaussianLinear
from compound.ops.affine import append_ones
from compound.predictive import GaussianPredictive
from compound.random import named_generator
from compound.report.page import Claim, Page
from compound.train.config import TrainConfig, default_train_config
from compound.types import Task, make_dataset

STEPS = {"quick": 2000, "paper": 10_000}
TASK = Task("regression", 1)
GRID_POINTS = 481  # inputs at which the predictive is evaluated
OOD_ROWS = 100  # inputs outside the domain, for methods that train on them

BASE_OPTIONS: dict[str, Any] = {"widths": (100,)}
FIXED_NOISE: dict[str, Any] = {**BASE_OPTIONS, "noise": math.sqrt(0.5)}
HYPER_OPTIONS: dict[str, Any] = {"hyper": (10,), "samples": 3}
PAPER_OPTIONS: dict[str, Any] = {
    **FIXED_NOISE,
    **HYPER_OPTIONS,
    "parametrization": "paper",
    "members": 1,
    "last_layer": "sample",
    "gradients": "weights",
    "far": 0.0,
}


class FormOptions(NamedTuple):
    """Options of a method in each form."""

    default: dict[str, Any] = BASE_OPTIONS
    published: dict[str, Any] | None = None  # None: the paper does not have the method


OPTIONS = {
    "ml-cdn": FormOptions(
        {**BASE_OPTIONS, **HYPER_OPTIONS, "members": 5, "lam": 1e-3}, {**PAPER_OPTIONS, "lam": 1e-3}
    ),
    "vb-cdn": FormOptions(
        {**BASE_OPTIONS, **HYPER_OPTIONS, "members": 1}, {**PAPER_OPTIONS, "objective": "joint"}
    ),
    "noisy-kfac": FormOptions({**BASE_OPTIONS, "samples": 3}, {**FIXED_NOISE, "samples": 3}),
    "vmg": FormOptions({**BASE_OPTIONS, "samples": 3}, {**FIXED_NOISE, "samples": 3}),
    "deep-ensemble": FormOptions(BASE_OPTIONS, BASE_OPTIONS),
    "mc-dropout": FormOptions(BASE_OPTIONS, FIXED_NOISE),
}
# the published learning rate; with ten times that, bnn-lv ends in a mean-field optimum that underfits
LEARNING_RATES = {"bnn-lv": 1e-3}
# methods that are given the noise: if they learn it from 20 rows, their posterior returns to the prior
NOISE_IS_GIVEN = ("bbb", "vmg", "mnf", "noisy-kfac", "noisy-adam", "hmc")


def train_config(method: str, preset: str) -> TrainConfig:
    """Training of the default form. As in the paper no row is held out and training never stops early."""
    config = replace(default_train_config(TASK, 100), steps=STEPS[preset], n_evals=0)
    config = replace(config, lr=LEARNING_RATES.get(method, config.lr))
    # noisy methods have a trust region in place of clipping
    return replace(config, clip_norm=None) if issubclass(METHODS[method], Noisy) else config


def published_config(method: str, preset: str) -> TrainConfig:
    """Training of the published form, as in the original code."""
    config = replace(default_train_config(TASK, 100), steps=STEPS[preset], n_evals=0)
    config = replace(config, lr=1e-3, final_lr_ratio=1.0, clip_norm=None, ema_decay=0.0)
    return replace(config, clip_value=5.0 if method == "vb-cdn" else None)


@dataclass(frozen=True, kw_only=True)
class ToyExperiment(Experiment):
    """Each method in its forms on both toy sets: predictive mean, band and variances on a grid of inputs."""

    def grid(self, preset: str, seeds: int, methods: Sequence[str]) -> list[Run]:
        runs = []
        for seed, data, method in product(range(seeds), TOY_SETS, methods):
            forms = OPTIONS.get(method, FormOptions())
            options = forms.default
            if method in NOISE_IS_GIVEN:
                options = {**options, "noise": 3.0 / cubic(data, seed).y.std().item()}
            runs.append(Run(self.name, method, data, seed, options, asdict(train_config(method, preset))))
            if forms.published is not None:
                settings = asdict(published_config(method, preset))
                runs.append(Run(self.name, method, data, seed, forms.published, settings, variant=PUBLISHED))
        return runs

    def work(self, run: Run, context: RunContext) -> Outcome:
        toy_set = TOY_SETS[run.data]
        published = run.variant == PUBLISHED
        toy = cubic(run.data, run.seed)
        shift_x, scale_x, shift_y, scale_y = (0.0, 1.0, 0.0, 1.0) if published else _moments(toy)
        x_ood = (_outside_domain(run.seed) - shift_x) / scale_x
        data = make_dataset((toy.x - shift_x) / scale_x, (toy.y - shift_y) / scale_y, TASK, x_ood=x_ood)
        model = fit_run(run, context, data, TASK)

        x = torch.linspace(-toy_set.view, toy_set.view, GRID_POINTS).unsqueeze(1)
        n_inner = 1 if published else 5  # the paper does not separate mixing from posterior
        generator = named_generator(run.seed, "predict")
        predictive = model.predict((x - shift_x) / scale_x, generator, 100, n_inner)
        predictive = cast(GaussianPredictive, predictive).rescale(shift_y, scale_y)
        variance = predictive.total
        if published and "noise" in run.options:  # a fixed noise is left out of the band, as in the paper
            variance = variance - predictive.component
        columns = {"x": x, "mean": predictive.mean, "band": variance.clamp_min(0).sqrt()}
        columns |= {"aleatoric": predictive.aleatoric, "epistemic": predictive.epistemic}
        metrics = evaluate(
            toy_set, toy, {name: column.squeeze(1).double() for name, column in columns.items()}
        )
        if published and isinstance(model, VBCDN):
            generator = named_generator(run.seed, "variances")
            metrics["variances"] = weight_variances(model, toy_set.view, generator)
        arrays = {name: column.squeeze(1).numpy() for name, column in columns.items()}
        return Outcome(metrics, {**arrays, "rows": torch.cat([toy.x, toy.y], 1).numpy()})

    def data_size(self, run: Run) -> DataSize:
        return DataSize(OOD_ROWS, 1, TASK)

    def fill_page(self, results: Sequence[Result], page: Page) -> list[Claim]:
        return draw_page(results, page)


def _outside_domain(seed: int) -> Tensor:  # (rows, 1)
    """Random inputs with |x| between 4.5 and 8; the training inputs are in [-4, 4]."""
    generator = named_generator(seed, "outside")
    side = torch.randint(2, (OOD_ROWS, 1), generator=generator) * 2 - 1
    return side * (4.5 + 3.5 * torch.rand((OOD_ROWS, 1), generator=generator))


def _moments(toy: Toy) -> tuple[float, float, float, float]:
    """Mean and standard deviation of x, then of y."""
    return toy.x.mean().item(), toy.x.std().item(), toy.y.mean().item(), toy.y.std().item()


def evaluate(toy_set: ToySet, toy: Toy, columns: dict[str, Tensor]) -> dict[str, Any]:
    """Numbers for the statements of the paper, from the predictive on a grid of inputs.

    `columns` has x, mean, band (standard deviation), aleatoric and epistemic variance, each (points,), in the
    units of the data. Standard deviations are averaged over |x| < 3.5 and over 4.5 < |x| < 6 for set 1,
    left and right of 0 for set 2.
    """
    # (points,)
    x, band, aleatoric, epistemic = (columns[name] for name in ("x", "band", "aleatoric", "epistemic"))

    def mean_std(std: Tensor, where: Tensor) -> float:
        return std[where].mean().item()

    inside = x.abs() < 3.5
    target_std = toy.y.std().item()
    numbers = {
        "error": (columns["mean"] - true_function(x))[inside].abs().mean().item(),
        "epistemic_share": (epistemic[inside].sum() / (aleatoric + epistemic)[inside].sum()).item(),
        "target_std": target_std,
    }
    if toy_set.number == 1:
        std_inside = mean_std(band, inside)
        std_outside = mean_std(band, (x.abs() > 4.5) & (x.abs() < 6))
        ratios = {"ratio": std_outside / std_inside, "outside_to_target": std_outside / target_std}
        return {**numbers, "std_inside": std_inside, "std_outside": std_outside, **ratios}
    left, right = (mean_std(band, side) for side in (x < 0, x >= 0))
    aleatoric_left, aleatoric_right = (mean_std(aleatoric.sqrt(), side) for side in (x < 0, x >= 0))
    return {
        **numbers,
        "std_left": left,
        "std_right": right,
        "aleatoric_left": aleatoric_left,
        "aleatoric_right": aleatoric_right,
        "ratio": left / right,
        "aleatoric_ratio": aleatoric_left / aleatoric_right,
    }


@torch.no_grad()
def weight_variances(
    model: VBCDN, view: float, generator: Generator, points: int = 1000, draws: int = 100
) -> dict[str, Any]:
    """Average variances of weights as the paper has them, each as {"mean", "median"}.

    "mixing", also for x < 0 and x >= 0 alone: of the predictive network's weights given x and ψ, averaged
    over weights and over `points` inputs in [-view, view]; mean and median are over draws of ψ. "posterior":
    of the weights of all maps of the hypernetworks; mean and median are over weights.
    """
    x = torch.linspace(-view, view, points).unsqueeze(1)
    rows = []
    layers = model.layers
    for _ in range(draws):
        h = x.unsqueeze(0)  # (members, points, in), of one member
        variances = []
        sizes = []
        for layer in layers:
            psi = layer.draw(generator)
            hyper = layer.hyper.forward_given(append_ones(h), psi[0])[0]
            _, *heads = hyper.split(layer.hyper.heads, -1)  # (points, in + 1), (points, out)
            log_row, log_col = (
                head.double().clamp(-layer.config.bound, layer.config.bound) for head in heads
            )
            # mean over i, j of exp(lr_i + lc_j)
            variances.append(log_row.exp().mean(1) * log_col.exp().mean(1))
            sizes.append(log_row.shape[1] * log_col.shape[1])
            out = layer.forward_given(h, psi)
            h = out.draw(torch.randn(out.mean.shape, generator=generator)).relu()
        rows.append(sum(v * size for v, size in zip(variances, sizes, strict=True)) / sum(sizes))
    mixing = torch.stack(rows)  # (draws, points)
    sides = {"mixing": x[:, 0] <= view, "mixing_left": x[:, 0] < 0, "mixing_right": x[:, 0] >= 0}
    samples = {name: mixing[:, side].mean(1) for name, side in sides.items()}  # (draws,)
    maps = [cast(MatrixGaussianLinear, each) for layer in layers for each in layer.hyper.maps]
    posteriors = [posterior for each in maps for posterior in each.posterior()]
    samples["posterior"] = torch.cat([posterior.variance.double().flatten() for posterior in posteriors])
    return {name: {"mean": v.mean().item(), "median": v.median().item()} for name, v in samples.items()}


EXPERIMENTS = {
    "toy": ToyExperiment(
        name="toy",
        title="Toy regression: aleatoric and epistemic uncertainty",
        methods=("ml-cdn", "vb-cdn"),
        all_methods=tuple(METHODS),
    )
}
