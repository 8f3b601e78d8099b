"""The page of the out-of-distribution experiments: entropy curves, our table 1 with that of the paper."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from compound.experiments.forms import Groups, ModelForm
from compound.experiments.identity import ONE_MEMBER
from compound.experiments.means import Mean
from compound.experiments.published import paper_table_1
from compound.experiments.runs import Result
from compound.report.page import Cell, Claim, Page
from compound.report.plot_styles import CDNS, FAMILIES, family, plot_style

IN_DIST_METRICS = ("accuracy", "nll", "brier", "ece", "mmc_in")
OOD_METRICS = ("mmc_out", "auroc")
MORE_OOD_METRICS = {
    "auroc_confidence": "AUROC by confidence",
    "auroc_epistemic": "AUROC by epistemic part of the entropy",
    "aupr": "AUPR",
    "fpr95": "FPR at 95%",
}
PAPER_METRICS = ("mmc_in", "mmc_out", "auroc")  # columns of table 1
NAMES = {
    "nll": "NLL",
    "ece": "ECE",
    "brier": "Brier",
    "mmc_in": "MMC-in",
    "mmc_out": "MMC-out",
    "auroc": "AUROC",
}
CURVE_POINTS = 200
Metric = Callable[[dict[str, Any]], float]


def draw_page(
    results: Sequence[Result], page: Page, in_dist: str, ood_sets: Sequence[str], in_paper: bool
) -> list[Claim]:
    """Fill the page; return its claims. The first of `ood_sets` has figure and table 1.

    `in_paper`: whether table 1 of the paper has the experiment.
    """
    name = results[0].run.experiment
    main = ood_sets[0]
    page.text(
        f"A 784-100-10 network learns {in_dist} and is evaluated on {', '.join(ood_sets)}. Its predictive "
        "entropy should be low on the first and high on the others. MMC is the mean maximal confidence, "
        "AUROC the probability that an out-of-distribution image has a larger predictive entropy than an "
        "in-distribution one."
    )
    groups = grouped(results)
    _draw_curves(_curves(results, in_dist, main), page, name, in_dist, main)
    caption = f"{in_dist} against {main}; mean ± standard error over seeds"
    page.table(*_main_table(groups, main, in_paper), caption)
    page.csv_data(f"{name}-table-1", *_main_csv(groups, main, in_paper))
    paths = [(ood_set, key) for ood_set in ood_sets for key in OOD_METRICS]
    columns = ("form", *map(metric_name, paths))
    page.table(columns, metric_rows(groups, paths), "Every out-of-distribution set")
    paths = [(main, key) for key in MORE_OOD_METRICS]
    page.table(("form", *MORE_OOD_METRICS.values()), metric_rows(groups, paths), f"More about {main}")
    claims = _claims(groups, in_dist)
    if claims:
        page.claims(claims, "Means over seeds against the limits")
    return claims


def grouped(results: Sequence[Result]) -> Groups:
    """Metrics by form; a run gives a form without far noise and, if it was evaluated with it, one with it."""
    groups: Groups = {}
    for result in results:
        for key, metrics in result.metrics.items():
            groups.setdefault(ModelForm.from_run(result.run, far_noise=key == "far"), []).append(metrics)
    return groups


def metric(*path: str) -> Metric:
    """A function that looks up the number at metrics[path[0]][path[1]]..."""

    def lookup(metrics: dict[str, Any]) -> float:
        entry: Any = metrics
        for key in path:
            entry = entry[key]
        return entry

    return lookup


def metric_name(path: Sequence[str]) -> str:
    """The path of a metric for readers, such as "notmnist, AUROC"."""
    return ", ".join(NAMES.get(key, key) for key in path)


def mean_of(group: Sequence[dict[str, Any]], *path: str) -> Mean:
    """Mean over seeds of the metric at this path."""
    return Mean.from_values(map(metric(*path), group))


def metric_rows(groups: Groups, paths: Sequence[Sequence[str]]) -> list[list[Cell]]:
    """A table row for each form: its name, and mean ± standard error of the metric at each path."""
    return [[str(form), *(mean_of(group, *path).text(4) for path in paths)] for form, group in groups.items()]


def _main_paths(main: str) -> list[tuple[str, ...]]:
    """Paths of the metrics in the main table."""
    return [*((key,) for key in IN_DIST_METRICS), *((main, key) for key in OOD_METRICS)]


def _paper_cells(form: ModelForm, in_paper: bool) -> list[Cell]:
    """The row of a method in table 1 of the paper, of None if it is not there; empty without `in_paper`.

    The paper's CDN is compared with the published form alone.
    """
    if not in_paper:
        return []
    row = None if form.is_cdn and not form.is_published else paper_table_1().get(form.method)
    return [None] * len(PAPER_METRICS) if row is None else [*row]


def _main_table(groups: Groups, main: str, in_paper: bool) -> tuple[list[str], list[list[Cell]]]:
    """Columns and rows of the main table on the page."""
    paths = _main_paths(main)
    columns = ["form", "seeds", *(metric_name(path[-1:]) for path in paths)]
    columns += [f"paper: {NAMES[key]}" for key in PAPER_METRICS] if in_paper else []
    rows: list[list[Cell]] = []
    for form, group in groups.items():
        ours = [mean_of(group, *path).text(4) for path in paths]
        rows.append([str(form), len(group), *ours, *_paper_cells(form, in_paper)])
    return columns, rows


def _main_csv(groups: Groups, main: str, in_paper: bool) -> tuple[list[str], list[list[Cell]]]:
    """Columns and rows of the main table as a CSV file, with means and errors as numbers."""
    paths = _main_paths(main)
    columns = ["form", "seeds", *(name for path in paths for name in (path[-1], f"{path[-1]}_error"))]
    columns += [f"paper_{key}" for key in PAPER_METRICS] if in_paper else []
    rows: list[list[Cell]] = []
    for form, group in groups.items():
        ours = [number for path in paths for number in mean_of(group, *path)]
        rows.append([str(form), len(group), *ours, *_paper_cells(form, in_paper)])
    return columns, rows


class _Curve(NamedTuple):
    """The entropy curves of one form, from one seed."""

    form: ModelForm
    style: str  # "", "published" or "other", for `plot_style`
    seed: int
    accuracy: float
    ood_entropy: float  # median over the main out-of-distribution set
    # data set -> entropy, cumulative fraction
    lines: dict[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]


def _curves(results: Sequence[Result], in_dist: str, main: str) -> list[_Curve]:
    """Cumulative distributions of the entropy on both data sets, for each form, from its first seed."""
    curves: dict[ModelForm, _Curve] = {}
    for result in sorted(results, key=lambda result: result.run.seed):
        for key, metrics in result.metrics.items():
            form = ModelForm.from_run(result.run, far_noise=key == "far")
            if form in curves or form.variant == ONE_MEMBER:
                continue
            lines = {}
            for name in (in_dist, main):
                values = np.sort(result.arrays[f"entropy {key} {name}"])
                index = np.unique(np.linspace(0, len(values) - 1, min(CURVE_POINTS, len(values))).astype(int))
                lines[name] = values[index], (index + 1) / len(values)
            default = "far" if form.is_cdn and "far" in result.metrics else "plain"
            line_style = "published" if form.is_published else "" if key == default else "other"
            ood_entropy = float(np.median(result.arrays[f"entropy {key} {main}"]))
            curves[form] = _Curve(form, line_style, result.run.seed, metrics["accuracy"], ood_entropy, lines)
    return list(curves.values())


def _draw_curves(curves: Sequence[_Curve], page: Page, name: str, in_dist: str, main: str) -> None:
    """Add the figure of the curves, and their points as a CSV file."""
    if not curves:
        return
    caption = (
        f"Fraction of images with at most this predictive entropy, {in_dist} test set (left) and {main} "
        "(right); largest possible: 2.303 nats. Legend: accuracy in per cent, the largest entropy on "
        "out-of-distribution images first. Grey: the compound density networks again."
    )
    rows: list[list[Cell]] = [
        [str(curve.form), curve.seed, data, float(x), float(y)]
        for curve in curves
        for data, line in curve.lines.items()
        for x, y in zip(*line, strict=True)
    ]
    columns = ("form", "seed", "pictures", "entropy", "share")
    page.figure_with_data(name, _figure(curves, in_dist, main), caption, columns, rows)


def _figure(curves: Sequence[_Curve], in_dist: str, main: str) -> Figure:
    """A row of two panels for each family of methods; other families have the CDNs in grey."""
    families = [name for name in FAMILIES if any(family(curve.form.method) == name for curve in curves)]
    figure = Figure(figsize=(11, 3.6 * len(families)), layout="constrained")
    axes = figure.subplots(len(families), 2, sharex=True, sharey=True, squeeze=False)
    background = [curve for curve in curves if curve.form.is_cdn and not curve.style]
    for row, name in zip(axes, families, strict=True):
        members = [curve for curve in curves if family(curve.form.method) == name]
        members.sort(key=lambda curve: -curve.ood_entropy)
        for panel, data in zip(row, (in_dist, main), strict=True):
            for curve in background if name != CDNS else []:
                panel.plot(*curve.lines[data], color="0.8", linewidth=2.5, zorder=1)
            for number, curve in enumerate(members):
                look = plot_style(curve.form.method, curve.style)
                label = f"{curve.form} ({100 * curve.accuracy:.1f})"
                panel.plot(*curve.lines[data], label=label, markevery=(4 + 5 * number, 40), **look)
            panel.set(title=f"{data}: {name}", xlim=(0, 2.35), ylim=(-0.02, 1.02))
        row[0].set_ylabel("fraction of images")
        row[1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=8, handlelength=3.5)
    for panel in axes[-1]:
        panel.set_xlabel("entropy (nats)")
    return figure


class Limit(NamedTuple):
    """A limit on the mean of one metric."""

    path: tuple[str, ...]  # in the metrics
    limit: float
    sense: Literal["at least", "at most"] = "at least"


ML_CDN, VB_CDN = (ModelForm(method, far_noise=True) for method in ("ml-cdn", "vb-cdn"))
LIMITS: dict[str, dict[ModelForm, tuple[Limit, ...]]] = {
    "mnist": {
        VB_CDN: (
            Limit(("accuracy",), 0.98),
            Limit(("mmc_in",), 0.978),
            Limit(("notmnist", "mmc_out"), 0.35, "at most"),
            Limit(("notmnist", "auroc"), 0.998),
        ),
        ML_CDN: (
            Limit(("accuracy",), 0.981),
            Limit(("mmc_in",), 0.975),
            Limit(("notmnist", "mmc_out"), 0.22, "at most"),
            Limit(("notmnist", "auroc"), 0.999),
            Limit(("fashion-mnist", "auroc"), 0.995),
            Limit(("omniglot", "auroc"), 0.99),
            Limit(("noise", "auroc"), 0.99),
            Limit(("flipped", "auroc"), 0.87),
        ),
    },
    "fashion-mnist": {
        ML_CDN: (
            Limit(("notmnist", "auroc"), 0.985),
            Limit(("mnist", "auroc"), 0.93),
            Limit(("flipped", "auroc"), 0.75),
        )
    },
}


def _claims(groups: Groups, in_dist: str) -> list[Claim]:
    """Means over seeds against LIMITS; for Fashion-MNIST also the accuracy of ml-cdn against map."""
    claims = []
    for form, limits in LIMITS.get(in_dist, {}).items():
        for path, limit, sense in limits:
            if form in groups:
                value = fmean(map(metric(*path), groups[form]))
                claims.append(Claim(f"{form}: {metric_name(path)}", value, limit, sense))
    if in_dist == "fashion-mnist" and {ModelForm("map"), ML_CDN} <= set(groups):
        forms = (ML_CDN, ModelForm("map"))
        accuracy, reference = (fmean(m["accuracy"] for m in groups[form]) for form in forms)
        claims.append(Claim(f"{ML_CDN}: accuracy below map", reference - accuracy, 0.005, "at most"))
    return claims
