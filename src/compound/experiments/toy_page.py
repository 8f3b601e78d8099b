"""The page of the toy experiment: bands, claims with their bars, all numbers."""

import json
import math
from collections.abc import Sequence
from importlib.resources import files

from matplotlib.figure import Figure

from compound.datasets.toy import VIEW
from compound.experiments.runs import Result, Run
from compound.report.page import Cell, Claim, Page

# what is said of the methods the CDNs are compared with
GROWS = ("noisy-kfac", "noisy-adam", "vmg", "bbb", "mnf", "mc-dropout", "laplace", "bnn-lv")
SIDES = ("deep-ensemble", "mdn", "bnn-lv")  # besides the CDNs
ACROSS = 6  # panels side by side


def draw(results: Sequence[Result], page: Page) -> list[Claim]:
    page.text(
        "Few points (set 1) should leave doubt where no point is: a band that opens outside [-4, 4]. "
        "Much noise on the left (set 2) should give a wide band on the left, and no doubt that more data would remove."
    )
    columns, words = (
        ("form", "set", "x", "mean", "sd"),
        "Black: the true function. Red: the data. Orange: mean and ±3 standard deviations.",
    )
    page.figure_with_data(
        "toy", _bands(results), f"{words} Seed {_shown_seed(results)}.", columns, _data(results)
    )
    defaults = [result for result in results if not is_published(result.run)]
    bars, others = [], []
    for method in dict.fromkeys(result.run.method for result in defaults):
        mine = [result for result in defaults if result.run.method == method]
        bars += _bars(method, mine) if method.endswith("cdn") else []
        others += [] if method.endswith("cdn") else _said(method, mine)
    page.claims(bars, "Compound density networks, default forms, against the claims; the worst seed counts")
    if others:
        page.claims(
            others, "What is said of the methods they are compared with, default forms; the worst seed counts"
        )
        page.text(
            "Not all of them run in the common setting. bbb, vmg, mnf, noisy-kfac and noisy-adam are told the noise of set 1, on both "
            "sets; a homoscedastic method has nearly even bands on set 2 by construction. bnn-lv trains at a tenth of the common rate, the "
            "rate it was published with: this was set after its bands on set 2 had been seen at the common rate, where the left is not "
            "wider than the right. The noisy methods go without a clip of the gradient's norm. results/README.md has the numbers of the "
            "common setting."
        )
        if any(result.run.method == "dpn" for result in results):
            page.text(
                "dpn trains on inputs from outside [-4, 4] as well, without targets: its band there is taught, not found."
            )
    _numbers(results, page)
    _variances(results, page)
    return bars + others


def is_published(run: Run) -> bool:
    return run.data.endswith("published")


def _form(run: Run) -> str:
    return f"{run.method}, {'published' if is_published(run) else 'default'}"


def _shown_seed(results: Sequence[Result]) -> int:
    return min(result.run.seed for result in results)


def _data(results: Sequence[Result]) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for result in results:
        if result.run.seed == _shown_seed(results):
            lines = zip(*(result.arrays[name].tolist() for name in ("x", "mean", "band")), strict=True)
            rows += [[_form(result.run), int(result.run.data[4]), *line] for line in lines]
    return rows


def _bands(results: Sequence[Result]) -> Figure:
    forms = list(dict.fromkeys(_form(result.run) for result in results))
    forms.sort(key=lambda form: form.endswith("published"))
    across, down = min(ACROSS, len(forms)), 2 * math.ceil(len(forms) / ACROSS)
    figure = Figure(figsize=(3.2 * across, 2.8 * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False)
    for panel in axes.flat:
        panel.set_visible(False)
    for result in results:
        if result.run.seed != _shown_seed(results):
            continue
        which, at, place = int(result.run.data[4]), result.arrays, forms.index(_form(result.run))
        panel = axes[2 * (place // ACROSS) + which - 1][place % ACROSS]
        x, mean, band = at["x"], at["mean"], at["band"]
        panel.set_visible(True)
        panel.fill_between(x, mean - 3 * band, mean + 3 * band, color="tab:orange", alpha=0.3, linewidth=0)
        panel.plot(x, mean, color="tab:orange")
        panel.plot(x, x**3, color="black", linewidth=1)
        panel.plot(at["rows"][:, 0], at["rows"][:, 1], ".", color="tab:red", markersize=4)
        panel.set_ylim((-250, 250) if which == 1 else (-125, 125))
        panel.set_xlim(-VIEW[which], VIEW[which])
        panel.tick_params(labelleft=place % ACROSS == 0)
        panel.set_title(f"{_form(result.run)}, set {which}", fontsize=9)
    return figure


def _bars(method: str, results: Sequence[Result]) -> list[Claim]:
    first, second = _by_set(results)
    if not (first and second):
        return []  # one of the sets has no finished run
    seeds = [{r.run.seed: r.metrics for r in results if r.run.data == f"set {which}"} for which in (1, 2)]
    both = [(seeds[0][seed], seeds[1][seed]) for seed in seeds[0] if seed in seeds[1]]
    smaller = max((b["epistemic_share"] / a["epistemic_share"] for a, b in both), default=None)
    return [
        Claim(f"{method}: set 1, sd outside / inside", min(m["ratio"] for m in first), 2),
        Claim(
            f"{method}: set 1, sd outside / sd of the target",
            max(m["outside_to_target"] for m in first),
            10,
            "at most",
        ),
        Claim(f"{method}: set 2, sd left / right", min(m["ratio"] for m in second), 1.8),
        Claim(f"{method}: set 2, aleatoric sd left / right", min(m["aleatoric_ratio"] for m in second), 1),
        Claim(f"{method}: epistemic share, set 2 / set 1", smaller, 1, "at most"),
    ]


def _said(method: str, results: Sequence[Result]) -> list[Claim]:
    """What the paper says: Bayesian methods doubt outside the data; only mixtures see where the noise is."""
    first, second = _by_set(results)
    grows = (
        [Claim(f"{method}: set 1, sd outside / inside", min(m["ratio"] for m in first), 1)]
        if method in GROWS and first
        else []
    )
    ratios = [m["ratio"] for m in second]
    if not ratios:
        return grows
    words = f"{method}: set 2, sd left / right"
    return [
        *grows,
        Claim(words, min(ratios), 1.5) if method in SIDES else Claim(words, max(ratios), 1.5, "at most"),
    ]


def _by_set(results: Sequence[Result]) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    first, second = ([r.metrics for r in results if r.run.data == f"set {which}"] for which in (1, 2))
    return first, second


def _numbers(results: Sequence[Result], page: Page) -> None:
    for which, columns in (
        (1, ("std_inside", "std_outside", "ratio", "outside_to_target", "epistemic_share", "error")),
        (
            2,
            (
                "std_left",
                "std_right",
                "ratio",
                "aleatoric_left",
                "aleatoric_right",
                "epistemic_share",
                "error",
            ),
        ),
    ):
        rows: list[list[Cell]] = [
            [_form(r.run), r.run.seed, *(r.metrics[column] for column in columns)]
            for r in results
            if r.run.data.startswith(f"set {which}")
        ]
        words = [column.replace("_", " ").replace("std", "sd") for column in columns]
        # one θ per ψ, as published, cannot part mixing from posterior: in vb-cdn both count as epistemic there
        page.table(
            ("form", "seed", *words),
            rows,
            f"Set {which}, every run. Published forms: sd of the drawn means; vb-cdn: all epistemic.",
        )


def _variances(results: Sequence[Result], page: Page) -> None:
    kept = [r for r in results if "variances" in r.metrics]
    if not kept:
        return
    page.text(
        "The paper backs its reading (posterior: epistemic, mixing distribution: aleatoric) with average variances of weights. "
        "They are means of log-normals: one draw in a hundred can carry the mean, so the median over draws stands beside it."
    )
    paper = json.loads(files("compound.experiments").joinpath("published.json").read_text())["paper"][
        "toy_average_variance_vb_cdn"
    ]
    rows: list[list[Cell]] = []
    for which in VIEW:
        for part, value in paper[f"set_{which}"].items():
            for r in kept:
                if r.run.data.startswith(f"set {which}"):
                    ours = r.metrics["variances"][part]
                    rows.append(
                        [
                            f"set {which}, {part.replace('_', ', ')}",
                            r.run.seed,
                            value,
                            ours["mean"],
                            ours["median"],
                        ]
                    )
    page.table(
        ("variance", "seed", "paper", "ours, mean", "ours, median"),
        rows,
        "Average variances of the published VB form",
    )
    split: list[list[Cell]] = []
    for r in results:
        if not is_published(r.run):
            for name, side in (("x < 0", r.arrays["x"] < 0), ("x >= 0", r.arrays["x"] >= 0)):
                side = side & (abs(r.arrays["x"]) < 4)
                split.append(
                    [
                        r.run.method,
                        r.run.data,
                        name,
                        r.run.seed,
                        *(float(r.arrays[a][side].mean()) for a in ("aleatoric", "epistemic")),
                    ]
                )
    page.table(
        ("default form", "data", "side", "seed", "aleatoric", "epistemic"),
        split,
        "What the claim is about: the predictive variance, |x| < 4",
    )
