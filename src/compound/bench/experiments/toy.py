"""Figure 1 for compound density networks: a cubic seen through few points (set 1), or through noise that changes sides (set 2).

Each method comes in two forms. *Default*: standardised data, learnt noise, far noise, band of the predictive. *Published*: the
original code's setting, raw data, noise fixed at 1/√2 and left out of the band. Kristiadi et al. (2019), section 5.1.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.resources import files
from itertools import product
from typing import Any, cast

import torch
from matplotlib.figure import Figure
from torch import Generator, Tensor

from compound.bench.experiments import Drawn
from compound.bench.report import Bar, Cell, Page
from compound.bench.runs import Outcome, Place, Result, Run, fitted
from compound.data.toy import VIEW, Toy, cubic, truth
from compound.models import VBCDN, Draws
from compound.nn import MatrixGaussianLinear
from compound.nn.matrix_gaussian import widen
from compound.predictive import GaussianPredictive
from compound.train import recipe
from compound.types import Task, fork, whole

TITLE = "Toy regression: what is noise, and what is ignorance"
METHODS = ("ml-cdn", "vb-cdn")
STEPS = {"quick": 2000, "paper": 10_000}
PRESETS = tuple(STEPS)
SEEDS = 3
TASK = Task("targets", 1)
POINTS = 481  # of the grid that is drawn and measured

DEFAULT: dict[str, Any] = {"widths": (100,), "hyper": (10,), "samples": 3}
PUBLISHED: dict[str, Any] = {
    "widths": (100,),
    "hyper": (10,),
    "parametrization": "paper",
    "samples": 3,
    "members": 1,
    "noise": math.sqrt(0.5),
    "last_layer": "sample",
    "far": 0.0,
}
OWN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # besides DEFAULT, besides PUBLISHED
    "ml-cdn": ({"members": 5, "lam": 1e-3}, {"lam": 1e-3}),
    "vb-cdn": ({"members": 1}, {"objective": "joint"}),
}


def grid(preset: str, seeds: int, methods: Sequence[str]) -> list[Run]:
    # every row trains and nothing stops early, as in the paper: two or three held-out rows would decide by chance
    default = replace(recipe(TASK, 100), steps=STEPS[preset], checks=0)
    published = replace(default, rate=1e-3, rate_end=1.0, clip_norm=None, average=0.0)
    runs = []
    for seed, which, method in product(range(seeds), VIEW, methods):
        ours, theirs = OWN[method]
        clipped = replace(published, clip_value=5.0 if method == "vb-cdn" else None)
        for options, settings in (({**DEFAULT, **ours}, default), ({**PUBLISHED, **theirs}, clipped)):
            runs.append(Run("toy", method, f"set {which}", seed, options, asdict(settings)))
    return runs


def work(run: Run, place: Place) -> Outcome:
    which = int(run.data[-1])
    toy = cubic(which, run.seed)
    published = is_published(run)
    shift_x, scale_x, shift_y, scale_y = (0.0, 1.0, 0.0, 1.0) if published else _standard(toy)
    model = fitted(run, place, whole((toy.x - shift_x) / scale_x, (toy.y - shift_y) / scale_y, TASK), TASK)

    x = torch.linspace(-VIEW[which], VIEW[which], POINTS).unsqueeze(1)
    n = Draws(100, 1) if published else Draws(100, 5)  # the published summary does not part mixing from posterior
    answer = model.predict((x - shift_x) / scale_x, n, fork(run.seed, "predict"))
    answer = cast(GaussianPredictive, answer).rescale(shift_y, scale_y)
    band = (answer.total - answer.component if published else answer.total).clamp_min(0).sqrt()
    columns = {"x": x, "mean": answer.mean, "band": band, "aleatoric": answer.aleatoric, "epistemic": answer.epistemic}
    metrics = _measured(which, toy, {name: column.squeeze(1).double() for name, column in columns.items()})
    if published and run.method == "vb-cdn":
        metrics["variances"] = _weight_variances(cast(VBCDN, model), VIEW[which], fork(run.seed, "variances"))
    arrays = {**{name: column.squeeze(1).numpy() for name, column in columns.items()}, "rows": torch.cat([toy.x, toy.y], 1).numpy()}
    return Outcome(metrics, arrays)


def is_published(run: Run) -> bool:
    return run.options.get("parametrization") == "paper"


def _standard(toy: Toy) -> tuple[float, float, float, float]:
    return toy.x.mean().item(), toy.x.std().item(), toy.y.mean().item(), toy.y.std().item()


def _measured(which: int, toy: Toy, at: dict[str, Tensor]) -> dict[str, Any]:
    """What the paper claims, in numbers: standard deviations are means over an even grid, in the unit of y."""
    x, band = at["x"], at["band"]
    inside = x.abs() < 3.5
    share = at["epistemic"][inside].sum() / (at["aleatoric"] + at["epistemic"])[inside].sum()
    numbers = {
        "error": (at["mean"] - truth(x))[inside].abs().mean().item(),
        "epistemic_share": share.item(),
        "target_std": toy.y.std().item(),
    }
    if which == 1:
        outside = (x.abs() > 4.5) & (x.abs() < 6)
        low, high = band[inside].mean().item(), band[outside].mean().item()
        return {**numbers, "std_inside": low, "std_outside": high, "ratio": high / low, "outside_to_target": high / numbers["target_std"]}
    left, right = (band[side].mean().item() for side in (x < 0, x >= 0))
    aleatoric = at["aleatoric"].sqrt()
    own_left, own_right = (aleatoric[side].mean().item() for side in (x < 0, x >= 0))
    ratios = {"ratio": left / right, "aleatoric_ratio": own_left / own_right}
    return {**numbers, "std_left": left, "std_right": right, "aleatoric_left": own_left, "aleatoric_right": own_right, **ratios}


@torch.no_grad()
def _weight_variances(model: VBCDN, view: float, generator: Generator, points: int = 1000, draws: int = 100) -> dict[str, Any]:
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
            _, *heads = layer.hyper.at(widen(h), psi[0])[0].split(layer.hyper.heads, -1)  # (points, in + 1), (points, out)
            log_row, log_col = (head.double().clamp(-layer.form.bound, layer.form.bound) for head in heads)
            parts.append(log_row.exp().mean(1) * log_col.exp().mean(1))  # mean over i, j of exp(lr_i + lc_j)
            sizes.append(log_row.shape[1] * log_col.shape[1])
            out = layer.at(h, psi)
            h = out.draw(torch.randn(out.mean.shape, generator=generator)).relu()
        rows.append(sum(part * size for part, size in zip(parts, sizes, strict=True)) / sum(sizes))
    mixing = torch.stack(rows)  # (draws, points)
    sides = {"mixing": x[:, 0] <= view, "mixing_left": x[:, 0] < 0, "mixing_right": x[:, 0] >= 0}
    found = {name: mixing[:, side].mean(1) for name, side in sides.items()}  # (draws,)
    maps = [cast(MatrixGaussianLinear, layer.hyper.maps[0]) for layer in layers]
    entries = torch.cat([(first.log_row[0, 0, :, None] + first.log_col[0]).double().exp().flatten() for first in maps])
    found["posterior"] = entries  # no draws here: its median is over entries
    return {name: {"mean": values.mean().item(), "median": values.median().item()} for name, values in found.items()}


# The page


def draw(results: Sequence[Result], page: Page) -> Drawn:
    page.text(
        "Few points (set 1) should leave doubt where no point is: a band that opens outside [-4, 4]. "
        "Much noise on the left (set 2) should give a wide band on the left, and no doubt that more data would remove."
    )
    figure = _bands(results)
    page.figure(figure, "Black: the true function. Red: the data. Orange: mean and ±3 standard deviations. Seed 0.")
    defaults = [result for result in results if not is_published(result.run)]
    bars = [bar for method in _methods(results) for bar in _bars(method, [r for r in defaults if r.run.method == method])]
    page.bars(bars, "The default forms against the claims; the worst seed counts")
    _numbers(results, page)
    _variances(results, page)
    return Drawn(bars, figure)


def _methods(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(result.run.method for result in results))


def _form(run: Run) -> str:
    return f"{run.method}, {'published' if is_published(run) else 'default'}"


def _bands(results: Sequence[Result]) -> Figure:
    forms = list(dict.fromkeys(_form(result.run) for result in results))
    forms.sort(key=lambda form: form.endswith("published"))
    figure = Figure(figsize=(3.2 * len(forms), 5.6), layout="constrained")
    axes = figure.subplots(2, len(forms), squeeze=False, sharey="row")
    for result in results:
        if result.run.seed != 0:
            continue
        which, at = int(result.run.data[-1]), result.arrays
        panel = axes[which - 1][forms.index(_form(result.run))]
        x, mean, band = at["x"], at["mean"], at["band"]
        panel.fill_between(x, mean - 3 * band, mean + 3 * band, color="tab:orange", alpha=0.3, linewidth=0)
        panel.plot(x, mean, color="tab:orange")
        panel.plot(x, x**3, color="black", linewidth=1)
        panel.plot(at["rows"][:, 0], at["rows"][:, 1], ".", color="tab:red", markersize=4)
        panel.set_ylim((-250, 250) if which == 1 else (-125, 125))
        panel.set_xlim(-VIEW[which], VIEW[which])
        panel.set_title(f"{_form(result.run)}, set {which}", fontsize=9)
    return figure


def _bars(method: str, results: Sequence[Result]) -> list[Bar]:
    first = [r.metrics for r in results if r.run.data == "set 1"]
    second = [r.metrics for r in results if r.run.data == "set 2"]
    smaller = max((b["epistemic_share"] / a["epistemic_share"] for a, b in zip(first, second, strict=True)), default=None)
    return [
        Bar(f"{method}: set 1, sd outside / inside", min(m["ratio"] for m in first), 2),
        Bar(f"{method}: set 1, sd outside / sd of the target", max(m["outside_to_target"] for m in first), 10, "at most"),
        Bar(f"{method}: set 2, sd left / right", min(m["ratio"] for m in second), 1.8),
        Bar(f"{method}: set 2, aleatoric sd left / right", min(m["aleatoric_ratio"] for m in second), 1),
        Bar(f"{method}: epistemic share, set 2 / set 1", smaller, 1, "at most"),
    ]


def _numbers(results: Sequence[Result], page: Page) -> None:
    for which, columns in (
        (1, ("std_inside", "std_outside", "ratio", "outside_to_target", "epistemic_share", "error")),
        (2, ("std_left", "std_right", "ratio", "aleatoric_left", "aleatoric_right", "epistemic_share", "error")),
    ):
        rows: list[list[Cell]] = [
            [_form(r.run), r.run.seed, *(r.metrics[column] for column in columns)] for r in results if r.run.data == f"set {which}"
        ]
        words = [column.replace("_", " ").replace("std", "sd") for column in columns]
        # one θ per ψ, as published, cannot part mixing from posterior: in vb-cdn both count as epistemic there
        page.table(
            ("form", "seed", *words), rows, f"Set {which}, every run. Published forms: sd of the drawn means; vb-cdn: all epistemic."
        )


def _variances(results: Sequence[Result], page: Page) -> None:
    kept = [r for r in results if "variances" in r.metrics]
    if not kept:
        return
    page.text(
        "The paper backs its reading (posterior: epistemic, mixing distribution: aleatoric) with average variances of weights. "
        "They are means of log-normals: one draw in a hundred can carry the mean, so the median over draws stands beside it."
    )
    paper = json.loads(files("compound.bench").joinpath("published.json").read_text())["paper"]["toy_average_variance_vb_cdn"]
    rows: list[list[Cell]] = []
    for which in VIEW:
        for part, value in paper[f"set_{which}"].items():
            for r in kept:
                if r.run.data == f"set {which}":
                    ours = r.metrics["variances"][part]
                    rows.append([f"set {which}, {part.replace('_', ', ')}", r.run.seed, value, ours["mean"], ours["median"]])
    page.table(("variance", "seed", "paper", "ours, mean", "ours, median"), rows, "Average variances of the published VB form")
    split: list[list[Cell]] = []
    for r in results:
        if not is_published(r.run):
            for name, side in (("x < 0", r.arrays["x"] < 0), ("x >= 0", r.arrays["x"] >= 0)):
                side = side & (abs(r.arrays["x"]) < 4)
                split.append(
                    [r.run.method, r.run.data, name, r.run.seed, *(float(r.arrays[a][side].mean()) for a in ("aleatoric", "epistemic"))]
                )
    page.table(
        ("default form", "data", "side", "seed", "aleatoric", "epistemic"),
        split,
        "What the claim is about: the predictive variance, |x| < 4",
    )
