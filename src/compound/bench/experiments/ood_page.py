"""The page of the out-of-distribution experiments: entropy curves, table 1 beside the published one, every number."""

import json
import math
from collections.abc import Sequence
from importlib.resources import files
from statistics import fmean, stdev
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from compound.bench.experiments import Drawn
from compound.bench.report import Bar, Cell, Page
from compound.bench.runs import Result

STYLES = ("-", "--", "-.", ":")
KEYS = ("accuracy", "nll", "brier", "ece", "mmc_in")
WORDS = {"nll": "NLL", "ece": "ECE", "brier": "Brier", "mmc_in": "MMC-in", "mmc_out": "MMC-out", "auroc": "AUROC", "aupr": "AUPR"}
Group = dict[str, list[dict[str, Any]]]  # label of a form -> metrics of its seeds


def draw_page(results: Sequence[Result], page: Page, known: str, main: str, strange: Sequence[str], published: str) -> Drawn:
    page.text(
        f"A 784-100-10 network learns {known} and is shown {', '.join(strange)}. It should know the first and doubt the rest. MMC is the "
        "mean maximal confidence, AUROC the probability that a strange picture has more entropy than a known one."
    )
    groups = grouped(results)
    figure = _curves(results, known, main)
    page.figure(figure, f"Share of pictures with at most this entropy, {known} test set (left) and {main} (right). Largest: 2.303 nats.")
    page.table(*_first_table(groups, main, published), f"{known} against {main}; mean ± standard error over seeds")
    columns = [f"{name}, {WORDS[key]}" for name in strange for key in ("mmc_out", "auroc")]
    rows: list[list[Cell]] = [
        [label, *(shown(found, lambda m, n=name, k=key: m[n][k]) for name in strange for key in ("mmc_out", "auroc"))]  # type: ignore[misc]
        for label, found in groups.items()
    ]
    page.table(("form", *columns), rows, "Every set that is shown")
    more = ("auroc_confidence", "auroc_epistemic", "aupr", "fpr95")
    rows = [[label, *(shown(found, lambda m, k=key: m[main][k]) for key in more)] for label, found in groups.items()]  # type: ignore[misc]
    page.table(("form", "AUROC by confidence", "AUROC by epistemic share", "AUPR", "FPR at 95%"), rows, f"More about {main}")
    bars = _bars(groups, known, strange)
    if bars:
        page.bars(bars, "Means over seeds against the bars")
    rows = [[str(r.run), float(r.record["seconds"])] for r in results]
    page.table(("run", "seconds"), rows, "Time of each run, training and answers")
    return Drawn(bars, figure)


def grouped(results: Sequence[Result]) -> Group:
    """Metrics by form: published or default, with far noise or without."""
    groups: Group = {}
    for result in results:
        published = ", published" if result.run.data.endswith("published") else ""
        for form, found in result.metrics.items():
            far = " + far noise" if form == "far" else ""
            groups.setdefault(f"{result.run.method}{published}{far}", []).append(found)
    return groups


def shown(found: list[dict[str, Any]], of: Any) -> str:
    """Mean ± standard error."""
    values = [of(metrics) for metrics in found]
    error = f" ± {stdev(values) / math.sqrt(len(values)):.4f}" if len(values) > 1 else ""
    return f"{fmean(values):.4f}{error}"


def _first_table(groups: Group, main: str, published: str) -> tuple[list[str], list[list[Cell]]]:
    paper: dict[str, list[float]] = {}
    if published:
        paper = json.loads(files("compound.bench").joinpath("published.json").read_text())["paper"][published]["rows"]
    columns = ["form", *(WORDS.get(key, key) for key in KEYS), "MMC-out", "AUROC"]
    columns += ["paper: MMC-in", "paper: MMC-out", "paper: AUROC"] if published else []
    rows: list[list[Cell]] = []
    for label, found in groups.items():
        own = [shown(found, lambda m, k=key: m[k]) for key in KEYS]  # type: ignore[misc]
        own += [shown(found, lambda m, k=key: m[main][k]) for key in ("mmc_out", "auroc")]  # type: ignore[misc]
        theirs: list[Cell] = list(paper.get(label.partition(",")[0].partition(" ")[0], [None] * 3)) if published else []
        rows.append([label, *own, *theirs])
    return columns, rows


def _curves(results: Sequence[Result], known: str, main: str) -> Figure:
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    first = [result for result in results if result.run.seed == 0]
    forms = [(result, form) for result in first for form in result.metrics]
    for number, (result, form) in enumerate(forms):
        label = next(iter(grouped([result._replace(metrics={form: result.metrics[form]})])))
        for panel, name in zip(axes, (known, main), strict=True):
            values = np.sort(result.arrays[f"entropy {form} {name}"])
            share = np.arange(1, len(values) + 1) / len(values)
            accuracy = f" ({100 * result.metrics[form]['accuracy']:.1f})"
            colour = f"C{list(dict.fromkeys(r.run.method for r in first)).index(result.run.method) % 10}"
            panel.plot(values, share, STYLES[number % len(STYLES)], color=colour, label=label + accuracy, linewidth=1.2)
            panel.set(title=name, xlabel="entropy (nats)", xlim=(0, 2.35))
    axes[0].set_ylabel("share of pictures")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=7)
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


def _bars(groups: Group, known: str, strange: Sequence[str]) -> list[Bar]:
    bars = []
    for label, limits in LIMITS[known].items():
        for path, (limit, sense) in limits.items():
            if label in groups:
                value = fmean(_at(metrics, path) for metrics in groups[label])
                bars.append(Bar(f"{label}: {', '.join(WORDS.get(word, word) for word in path)}", value, limit, sense))  # type: ignore[arg-type]
    if known == "fashion-mnist" and {"map", "ml-cdn + far noise"} <= set(groups):
        lost = fmean(m["accuracy"] for m in groups["map"]) - fmean(m["accuracy"] for m in groups["ml-cdn + far noise"])
        bars.append(Bar("ml-cdn + far noise: accuracy below map", lost, 0.005, "at most"))
    return bars


def _at(metrics: dict[str, Any], path: tuple[str, ...]) -> float:
    for word in path:
        metrics = metrics[word]
    return metrics  # type: ignore[return-value]
