"""Figure 1: a cubic seen through few points (set 1), or through noise that changes sides (set 2).

Methods come in up to two forms. *Default*: standardised data, learnt noise, band of the predictive. *Published*, for the panels
of the paper: the original code's setting, raw data, noise fixed at 1/√2 and left out of the band. Kristiadi et al. (2019), 5.1.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from typing import Any, cast

import torch
from torch import Generator, Tensor

from compound.datasets.toy import VIEW, Toy, cubic, true_function
from compound.experiments.runs import Outcome, Run, RunContext, fitted
from compound.experiments.toy_page import draw as draw
from compound.models import METHODS as ALL
from compound.models import VBCDN
from compound.nn import MatrixGaussianLinear
from compound.ops.affine import append_ones
from compound.predictive import GaussianPredictive
from compound.random import named_generator
from compound.train.config import default_train_config
from compound.types import Task, make_dataset

TITLE = "Toy regression: what is noise, and what is ignorance"
METHODS = ("ml-cdn", "vb-cdn")
ALL_METHODS = tuple(ALL)
STEPS = {"quick": 2000, "paper": 10_000}
PRESETS = tuple(STEPS)
SEEDS = 1
DATA: tuple[str, ...] = ()  # made here
TASK = Task("regression", 1)
POINTS = 481  # of the grid that is drawn and measured

WIDE: dict[str, Any] = {"widths": (100,)}
RAW: dict[str, Any] = {**WIDE, "noise": math.sqrt(0.5)}
HYPER: dict[str, Any] = {"hyper": (10,), "samples": 3}
PAPER: dict[str, Any] = {
    **RAW,
    **HYPER,
    "parametrization": "paper",
    "members": 1,
    "last_layer": "sample",
    "far": 0.0,
}
# options of the default and of the published form, where they are not just WIDE and no published form
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "ml-cdn": ({**WIDE, **HYPER, "members": 5, "lam": 1e-3}, {**PAPER, "lam": 1e-3}),
    "vb-cdn": ({**WIDE, **HYPER, "members": 1}, {**PAPER, "objective": "joint"}),
    "noisy-kfac": ({**WIDE, "samples": 3}, {**RAW, "samples": 3}),
    "vmg": ({**WIDE, "samples": 3}, {**RAW, "samples": 3}),
    "deep-ensemble": (WIDE, WIDE),
    "mc-dropout": (WIDE, RAW),
}
RATES = {
    "bnn-lv": 1e-3
}  # the rate it was published with; ten times as much drives it to a mean-field optimum that underfits
GIVEN = (
    "bbb",
    "vmg",
    "mnf",
    "noisy-kfac",
    "noisy-adam",
)  # told the noise: learning it from 20 rows, they fall back to their prior
PUBLISHED = ", as published"
OUTSIDE = 100  # rows from outside the domain, for the method that trains on them


def grid(preset: str, seeds: int, methods: Sequence[str]) -> list[Run]:
    # every row trains and nothing stops early, as in the paper: two or three held-out rows would decide by chance
    default = replace(default_train_config(TASK, 100), steps=STEPS[preset], n_evals=0)
    published = replace(default, lr=1e-3, final_lr_ratio=1.0, clip_norm=None, ema_decay=0.0)
    runs = []
    for seed, which, method in product(range(seeds), VIEW, methods):
        ours, theirs = OPTIONS.get(method, (WIDE, None))
        settings = replace(default, lr=RATES.get(method, default.lr))
        if method in GIVEN:
            ours = {**ours, "noise": 3.0 / cubic(which, seed).y.std().item()}
        if method.startswith("noisy"):
            settings = replace(settings, clip_norm=None)  # a natural gradient has its own bound
        runs.append(Run("toy", method, f"set {which}", seed, ours, asdict(settings)))
        if theirs is not None:
            clipped = replace(published, clip_value=5.0 if method == "vb-cdn" else None)
            runs.append(Run("toy", method, f"set {which}{PUBLISHED}", seed, theirs, asdict(clipped)))
    return runs


def work(run: Run, place: RunContext) -> Outcome:
    which, published = int(run.data[4]), run.data.endswith(PUBLISHED)
    toy = cubic(which, run.seed)
    shift_x, scale_x, shift_y, scale_y = (0.0, 1.0, 0.0, 1.0) if published else _standard(toy)
    data = make_dataset(
        (toy.x - shift_x) / scale_x,
        (toy.y - shift_y) / scale_y,
        TASK,
        x_ood=(_outside(run.seed) - shift_x) / scale_x,
    )
    model = fitted(run, place, data, TASK)

    x = torch.linspace(-VIEW[which], VIEW[which], POINTS).unsqueeze(1)
    n_inner = 1 if published else 5  # the published summary does not separate mixing from posterior
    answer = model.predict((x - shift_x) / scale_x, named_generator(run.seed, "predict"), 100, n_inner)
    answer = cast(GaussianPredictive, answer).rescale(shift_y, scale_y)
    fixed = published and "noise" in run.options  # drawn without the noise it was given, as in the paper
    band = (answer.total - answer.component if fixed else answer.total).clamp_min(0).sqrt()
    columns = {
        "x": x,
        "mean": answer.mean,
        "band": band,
        "aleatoric": answer.aleatoric,
        "epistemic": answer.epistemic,
    }
    metrics = _measured(which, toy, {name: column.squeeze(1).double() for name, column in columns.items()})
    if published and run.method == "vb-cdn":
        metrics["variances"] = _weight_variances(
            cast(VBCDN, model), VIEW[which], named_generator(run.seed, "variances")
        )
    arrays = {
        **{name: column.squeeze(1).numpy() for name, column in columns.items()},
        "rows": torch.cat([toy.x, toy.y], 1).numpy(),
    }
    return Outcome(metrics, arrays)


def _outside(seed: int) -> Tensor:
    """Inputs on both sides of [-4, 4], up to ±8."""
    generator = named_generator(seed, "outside")
    side = torch.randint(2, (OUTSIDE, 1), generator=generator) * 2 - 1
    return side * (4.5 + 3.5 * torch.rand((OUTSIDE, 1), generator=generator))


def _standard(toy: Toy) -> tuple[float, float, float, float]:
    return toy.x.mean().item(), toy.x.std().item(), toy.y.mean().item(), toy.y.std().item()


def _measured(which: int, toy: Toy, at: dict[str, Tensor]) -> dict[str, Any]:
    """What the paper claims, in numbers: standard deviations are means over an even grid, in the unit of y."""
    x, band = at["x"], at["band"]
    inside = x.abs() < 3.5
    share = at["epistemic"][inside].sum() / (at["aleatoric"] + at["epistemic"])[inside].sum()
    numbers = {
        "error": (at["mean"] - true_function(x))[inside].abs().mean().item(),
        "epistemic_share": share.item(),
        "target_std": toy.y.std().item(),
    }
    if which == 1:
        outside = (x.abs() > 4.5) & (x.abs() < 6)
        low, high = band[inside].mean().item(), band[outside].mean().item()
        return {
            **numbers,
            "std_inside": low,
            "std_outside": high,
            "ratio": high / low,
            "outside_to_target": high / numbers["target_std"],
        }
    left, right = (band[side].mean().item() for side in (x < 0, x >= 0))
    aleatoric = at["aleatoric"].sqrt()
    own_left, own_right = (aleatoric[side].mean().item() for side in (x < 0, x >= 0))
    ratios = {"ratio": left / right, "aleatoric_ratio": own_left / own_right}
    return {
        **numbers,
        "std_left": left,
        "std_right": right,
        "aleatoric_left": own_left,
        "aleatoric_right": own_right,
        **ratios,
    }


@torch.no_grad()
def _weight_variances(
    model: VBCDN, view: float, generator: Generator, points: int = 1000, draws: int = 100
) -> dict[str, Any]:
    """Average variances of weights, as published: means over entries, even points and draws of ψ; medians are over draws.

    mixing: of the predictive network's weights given x and ψ. posterior: of the first map's weights in each hypernetwork.
    """
    x = torch.linspace(-view, view, points).unsqueeze(1)
    rows = []
    layers = model.layers
    for _ in range(draws):
        h, parts, sizes = x.unsqueeze(0), [], []  # (members, points, in), of one member
        for layer in layers:
            psi = layer.draw(generator)
            _, *heads = layer.hyper.forward_given(append_ones(h), psi[0])[0].split(
                layer.hyper.heads, -1
            )  # (points, in + 1), (points, out)
            log_row, log_col = (
                head.double().clamp(-layer.config.bound, layer.config.bound) for head in heads
            )
            parts.append(log_row.exp().mean(1) * log_col.exp().mean(1))  # mean over i, j of exp(lr_i + lc_j)
            sizes.append(log_row.shape[1] * log_col.shape[1])
            out = layer.forward_given(h, psi)
            h = out.draw(torch.randn(out.mean.shape, generator=generator)).relu()
        rows.append(sum(part * size for part, size in zip(parts, sizes, strict=True)) / sum(sizes))
    mixing = torch.stack(rows)  # (draws, points)
    sides = {"mixing": x[:, 0] <= view, "mixing_left": x[:, 0] < 0, "mixing_right": x[:, 0] >= 0}
    found = {name: mixing[:, side].mean(1) for name, side in sides.items()}  # (draws,)
    maps = [cast(MatrixGaussianLinear, layer.hyper.maps[0]) for layer in layers]
    entries = torch.cat(
        [(first.log_row[0, 0, :, None] + first.log_col[0]).double().exp().flatten() for first in maps]
    )
    found["posterior"] = entries  # no draws here: its median is over entries
    return {
        name: {"mean": values.mean().item(), "median": values.median().item()}
        for name, values in found.items()
    }
