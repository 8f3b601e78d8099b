"""The page of the digits experiment: examples, entropy curves, claims, the most uncertain digits."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from compound.experiments.runs import Result
from compound.report.page import Cell, Claim, Page

OOD_SETS = {"photographs": "patches of photographs", "noise": "uniform noise", "mirrored": "mirrored digits"}
DATA_SETS = {"digits": "test digits", **OOD_SETS}
ABBREVIATIONS = ("mmc", "auroc", "nll", "ece")
LIMITS = {"accuracy": 0.97, "auroc_photographs": 0.99, "auroc_noise": 0.99}


def draw_page(results: Sequence[Result], page: Page) -> list[Claim]:
    """Fill the page of the digits experiment; return its claims. Figures show the first seed."""
    page.text(
        "A good classifier is confident about digits and uncertain about everything else. Uncertainty is "
        "the predictive entropy, that of the mean probabilities; AUROC is the probability that an "
        "out-of-distribution image has a larger entropy than a test digit."
    )
    first_seed = min(result.run.seed for result in results)
    shown = [result for result in results if result.run.seed == first_seed]
    page.figure(_examples(shown[0]), f"The images, row by row: {', '.join(DATA_SETS.values())}.")
    caption = (
        "Fraction of images with at most this predictive entropy: small for digits, large for the rest. "
        "Largest possible: 2.303 nats."
    )
    columns = ("method", "pictures", "entropy", "share")
    page.figure_with_data("digits", _entropy_curves(shown), caption, columns, _curve_rows(shown))
    methods = dict.fromkeys(result.run.method for result in results)
    claims = [claim for method in methods for claim in _claims(method, results)]
    page.claims(claims, "Means over seeds against the limits")
    header = ("method", "seed", *map(_metric_name, results[0].metrics))
    rows: list[list[Cell]] = [[r.run.method, r.run.seed, *r.metrics.values()] for r in results]
    page.table(header, rows, "Every run")
    caption = (
        "The test digits of the largest predictive entropy, with prediction and (label): red where they "
        "differ."
    )
    page.figure(_most_uncertain(shown), caption)
    return claims


def _metric_name(key: str) -> str:
    """A key of the metrics for readers: "auroc_noise" becomes "AUROC, noise"."""
    return ", ".join(part.upper() if part in ABBREVIATIONS else part for part in key.split("_"))


def _claims(method: str, results: Sequence[Result]) -> list[Claim]:
    """Means over the seeds of a method, against LIMITS and a limit on the accuracy that far noise costs."""
    metrics = [result.metrics for result in results if result.run.method == method]
    means = {key: fmean(m[key] for m in metrics) for key in (*LIMITS, "accuracy_cost")}
    claims = [Claim(f"{method}: {_metric_name(key)}", means[key], limit) for key, limit in LIMITS.items()]
    return [*claims, Claim(f"{method}: accuracy cost of far noise", means["accuracy_cost"], 0.002, "at most")]


def _cumulative(result: Result, name: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Sorted entropies of a data set, and for each the fraction of images with at most that entropy."""
    values = np.sort(result.arrays[f"entropy_{name}"])
    return values, np.arange(1, len(values) + 1) / len(values)


def _curve_rows(results: Sequence[Result]) -> list[list[Cell]]:
    """The points of the entropy curves as rows of the CSV file."""
    rows: list[list[Cell]] = []
    for result in results:
        for name in DATA_SETS:
            points = zip(*(column.tolist() for column in _cumulative(result, name)), strict=True)
            rows += [[result.run.method, name, *point] for point in points]
    return rows


def _entropy_curves(results: Sequence[Result]) -> Figure:
    """A panel for each method: the cumulative distribution of the entropy on each data set."""
    figure = Figure(figsize=(4.2 * len(results), 3.2), layout="constrained")
    axes = figure.subplots(1, len(results), squeeze=False, sharey=True)[0]
    for panel, result in zip(axes, results, strict=True):
        for line, (name, title) in zip(("-", "--", "-.", ":"), DATA_SETS.items(), strict=True):
            panel.plot(*_cumulative(result, name), line, label=title)
        panel.set(title=result.run.method, xlabel="entropy (nats)", xlim=(0, 2.35))
    axes[0].set_ylabel("fraction of images")
    axes[-1].legend(fontsize=8)
    return figure


def _examples(result: Result) -> Figure:
    """A row of images for each data set."""
    examples = result.arrays["examples"]  # (data sets, images, side, side)
    images = examples.reshape(-1, *examples.shape[2:])
    return _image_grid(images, examples.shape[1], [("", "black")] * len(images))


def _most_uncertain(results: Sequence[Result]) -> Figure:
    """The test images of the largest entropy, a row for each method, with prediction and label."""
    names = ("doubtful", "doubtful_guess", "doubtful_truth")  # as in committed results
    images, predictions, labels = (np.concatenate([r.arrays[name] for r in results]) for name in names)
    pairs = zip(predictions, labels, strict=True)
    titles = [(f"{digit} ({label})", "black" if digit == label else "tab:red") for digit, label in pairs]
    return _image_grid(images, len(images) // len(results), titles)


def _image_grid(images: np.ndarray[Any, Any], n_columns: int, titles: Sequence[tuple[str, str]]) -> Figure:
    """A grid of images (n, side, side), each with its (title, colour of the title), filled row by row."""
    n_rows = -(-len(images) // n_columns)
    figure = Figure(figsize=(0.62 * n_columns, 0.8 * n_rows), layout="constrained")
    panels = figure.subplots(n_rows, n_columns).flat
    for panel, image, (title, colour) in zip(panels, images, titles, strict=True):
        panel.imshow(image, cmap="gray_r", vmin=0, vmax=1)
        panel.set_title(title, fontsize=7, color=colour, pad=2)
        panel.axis("off")
    return figure
