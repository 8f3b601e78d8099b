"""The page of the out-of-distribution experiments: entropy curves, table 1 beside the published one, every number."""

import json
import math
from collections.abc import Callable, Sequence
from importlib.resources import files
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from compound.experiments.runs import Result
from compound.report.page import Cell, Claim, Page
from compound.report.plot_styles import CDNS, FAMILIES, family, plot_style

KEYS = ("accuracy", "nll", "brier", "ece", "mmc_in")
WORDS = {
    "nll": "NLL",
    "ece": "ECE",
    "brier": "Brier",
    "mmc_in": "MMC-in",
    "mmc_out": "MMC-out",
    "auroc": "AUROC",
    "aupr": "AUPR",
}
PAPER = ("mmc_in", "mmc_out", "auroc")  # the columns of its table 1
POINTS = 200  # of a curve
Group = dict[str, list[dict[str, Any]]]  # label of a form -> metrics of its seeds
Of = Callable[[dict[str, Any]], float]


def draw_page(
    results: Sequence[Result], page: Page, in_dist: str, main: str, strange: Sequence[str], published: str
) -> list[Claim]:
    name = results[0].run.experiment
    page.text(
        f"A 784-100-10 network learns {in_dist} and is shown {', '.join(strange)}. It should know the first and doubt the rest. MMC is the "
        "mean maximal confidence, AUROC the probability that a strange picture has more entropy than a known one."
    )
    groups = grouped(results)
    curves = _curves(results, in_dist, main)
    words = f"Share of pictures with at most this entropy, {in_dist} test set (left) and {main} (right); largest: 2.303 nats. "
    words += "Legend: accuracy in per cent, the most doubtful about strange pictures first. Grey: the compound density networks again."
    rows: list[list[Cell]] = [
        [curve.label, curve.seed, of, float(x), float(y)]
        for curve in curves
        for of, line in curve.lines.items()
        for x, y in zip(*line, strict=True)
    ]
    if curves:
        page.figure_with_data(
            name,
            _figure(curves, in_dist, main),
            words,
            ("form", "seed", "pictures", "entropy", "share"),
            rows,
        )
    page.table(
        *_first_table(groups, main, published), f"{in_dist} against {main}; mean ± standard error over seeds"
    )
    page.csv_data(f"{name}-table-1", *_first_data(groups, main, published))
    columns = [f"{one}, {WORDS[key]}" for one in strange for key in ("mmc_out", "auroc")]
    rows = [
        [label, *(shown(found, at(one, key)) for one in strange for key in ("mmc_out", "auroc"))]
        for label, found in groups.items()
    ]
    page.table(("form", *columns), rows, "Every set that is shown")
    more = ("auroc_confidence", "auroc_epistemic", "aupr", "fpr95")
    rows = [[label, *(shown(found, at(main, key)) for key in more)] for label, found in groups.items()]
    page.table(
        ("form", "AUROC by confidence", "AUROC by epistemic share", "AUPR", "FPR at 95%"),
        rows,
        f"More about {main}",
    )
    bars = _bars(groups, in_dist)
    if bars:
        page.claims(bars, "Means over seeds against the bars")
    return bars


def label_of(result: Result, form: str) -> str:
    """Default, published or of one member, with far noise or without."""
    variant = result.run.data.partition(", ")[1:]
    return f"{result.run.method}{''.join(variant).replace('as published', 'published')}{' + far noise' if form == 'far' else ''}"


def grouped(results: Sequence[Result]) -> Group:
    """Metrics by form."""
    groups: Group = {}
    for result in results:
        for form, found in result.metrics.items():
            groups.setdefault(label_of(result, form), []).append(found)
    return groups


def at(*path: str) -> Of:
    """Looks up one number of the metrics."""

    def of(metrics: dict[str, Any]) -> float:
        found: Any = metrics
        for word in path:
            found = found[word]
        return found

    return of


def mean_error(found: Sequence[dict[str, Any]], of: Of) -> tuple[float, float | None]:
    """Mean over seeds and its standard error, which one seed does not have."""
    values = [of(metrics) for metrics in found]
    return fmean(values), stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def shown(found: Sequence[dict[str, Any]], of: Of) -> str:
    """Mean ± standard error."""
    mean, error = mean_error(found, of)
    return f"{mean:.4f}" + ("" if error is None else f" ± {error:.4f}")


def paper_table(published: str) -> dict[str, list[float]]:
    """Method -> MMC-in, MMC-out, AUROC as published."""
    if not published:
        return {}
    rows: dict[str, list[float]] = json.loads(
        files("compound.experiments").joinpath("published.json").read_text()
    )["paper"][published]["rows"]
    return rows


def _first_table(groups: Group, main: str, published: str) -> tuple[list[str], list[list[Cell]]]:
    paper = paper_table(published)
    columns = ["form", "seeds", *(WORDS.get(key, key) for key in KEYS), "MMC-out", "AUROC"]
    columns += [f"paper: {WORDS[key]}" for key in PAPER] if paper else []
    rows: list[list[Cell]] = []
    for label, found in groups.items():
        own = [shown(found, at(key)) for key in KEYS] + [
            shown(found, at(main, key)) for key in ("mmc_out", "auroc")
        ]
        theirs: list[Cell] = [*paper.get(_method(label), [None] * 3)] if paper else []
        rows.append([label, len(found), *own, *theirs])
    return columns, rows


def _first_data(groups: Group, main: str, published: str) -> tuple[list[str], list[list[Cell]]]:
    paper = paper_table(published)
    measures = {**{key: at(key) for key in KEYS}, **{key: at(main, key) for key in ("mmc_out", "auroc")}}
    columns = ["form", "seeds", *(word for key in measures for word in (key, f"{key}_error"))]
    columns += [f"paper_{key}" for key in PAPER] if paper else []
    rows: list[list[Cell]] = []
    for label, found in groups.items():
        theirs: list[Cell] = [*paper.get(_method(label), [None] * 3)] if paper else []
        rows.append(
            [
                label,
                len(found),
                *(number for of in measures.values() for number in mean_error(found, of)),
                *theirs,
            ]
        )
    return columns, rows


def _method(label: str) -> str:
    return label.partition(",")[0].partition(" ")[0]


class _Curve(NamedTuple):
    label: str
    method: str
    form: str  # as `plot_style` has it
    seed: int
    accuracy: float
    doubt: float  # median entropy about strange pictures
    lines: dict[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]  # set -> entropy, share


def _curves(results: Sequence[Result], in_dist: str, main: str) -> list[_Curve]:
    """One for each form, of its first seed."""
    curves: dict[str, _Curve] = {}
    for result in sorted(results, key=lambda one: one.run.seed):
        for form, numbers in result.metrics.items():
            label = label_of(result, form)
            if label in curves or "one member" in label:
                continue
            lines = {}
            for name in (in_dist, main):
                values = np.sort(result.arrays[f"entropy {form} {name}"])
                place = np.unique(np.linspace(0, len(values) - 1, min(POINTS, len(values))).astype(int))
                lines[name] = values[place], (place + 1) / len(values)
            usual = "far" if result.run.method.endswith("cdn") and "far" in result.metrics else "plain"
            kind = "published" if "published" in label else "" if form == usual else "other"
            doubt = float(np.median(result.arrays[f"entropy {form} {main}"]))
            curves[label] = _Curve(
                label, result.run.method, kind, result.run.seed, numbers["accuracy"], doubt, lines
            )
    return list(curves.values())


def _figure(curves: Sequence[_Curve], in_dist: str, main: str) -> Figure:
    families = [name for name in FAMILIES if any(family(curve.method) == name for curve in curves)]
    figure = Figure(figsize=(11, 3.6 * len(families)), layout="constrained")
    axes = figure.subplots(len(families), 2, sharex=True, sharey=True, squeeze=False)
    for row, name in zip(axes, families, strict=True):
        own = sorted(
            (curve for curve in curves if family(curve.method) == name), key=lambda curve: -curve.doubt
        )
        for panel, of in zip(row, (in_dist, main), strict=True):
            if name != CDNS:
                for curve in curves:
                    if family(curve.method) == CDNS and not curve.form:
                        panel.plot(*curve.lines[of], color="0.8", linewidth=2.5, zorder=1)
            for number, curve in enumerate(own):
                words = f"{curve.label} ({100 * curve.accuracy:.1f})"
                panel.plot(
                    *curve.lines[of],
                    label=words,
                    markevery=(4 + 5 * number, 40),
                    **plot_style(curve.method, curve.form),
                )
            panel.set(title=f"{of}: {name}", xlim=(0, 2.35), ylim=(-0.02, 1.02))
        row[0].set_ylabel("share of pictures")
        row[1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=8, handlelength=3.5)
    for panel in axes[-1]:
        panel.set_xlabel("entropy (nats)")
    return figure


LIMITS: dict[str, dict[str, dict[tuple[str, ...], tuple[float, str]]]] = {
    "mnist": {
        "vb-cdn + far noise": {
            ("accuracy",): (0.98, "at least"),
            ("mmc_in",): (0.978, "at least"),
            ("notmnist", "mmc_out"): (0.35, "at most"),
            ("notmnist", "auroc"): (0.998, "at least"),
        },
        "ml-cdn + far noise": {
            ("accuracy",): (0.981, "at least"),
            ("mmc_in",): (0.975, "at least"),
            ("notmnist", "mmc_out"): (0.22, "at most"),
            ("notmnist", "auroc"): (0.999, "at least"),
            ("fashion-mnist", "auroc"): (0.995, "at least"),
            ("omniglot", "auroc"): (0.99, "at least"),
            ("noise", "auroc"): (0.99, "at least"),
            ("flipped", "auroc"): (0.87, "at least"),
        },
    },
    "fashion-mnist": {
        "ml-cdn + far noise": {
            ("notmnist", "auroc"): (0.985, "at least"),
            ("mnist", "auroc"): (0.93, "at least"),
            ("flipped", "auroc"): (0.75, "at least"),
        },
    },
}


def _bars(groups: Group, in_dist: str) -> list[Claim]:
    bars = []
    for label, limits in LIMITS.get(in_dist, {}).items():
        for path, (limit, sense) in limits.items():
            if label in groups:
                value = fmean(at(*path)(metrics) for metrics in groups[label])
                words = ", ".join(WORDS.get(word, word) for word in path)
                bars.append(Claim(f"{label}: {words}", value, limit, sense))  # type: ignore[arg-type]
    if in_dist == "fashion-mnist" and {"map", "ml-cdn + far noise"} <= set(groups):
        lost = fmean(m["accuracy"] for m in groups["map"]) - fmean(
            m["accuracy"] for m in groups["ml-cdn + far noise"]
        )
        bars.append(Claim("ml-cdn + far noise: accuracy below map", lost, 0.005, "at most"))
    return bars
