"""The page of the attack experiments: accuracy and entropy against strength, checks for gradient masking."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from compound.experiments.forms import Groups, ModelForm
from compound.experiments.runs import Result
from compound.report.page import Cell, Claim, Page
from compound.report.plot_styles import (
    CDNS,
    DASHES,
    DEFAULT_STYLE,
    FAMILIES,
    METHOD_STYLES,
    family,
    plot_style,
)

N_COLUMNS = 3  # of panels
MEASURES = ("accuracy", "entropy")
PANEL_LIMITS = {"accuracy": (-0.02, 1.02), "entropy": (-0.05, 2.35)}
COLUMNS = ("form", "protocol", "seeds", "strength", "accuracy", "entropy")
ZERO_GRADIENT = "silent"  # key of the fraction of rows without a gradient; all other keys are protocols
CHANCE = 0.15  # at most this accuracy is about chance for ten classes
TOLERANCE = 0.02  # differences of accuracy that count as none
AT_03 = 3  # index of strength 0.3 in a curve
Metrics = dict[str, Any]
Look = dict[str, Any]  # keyword arguments of `Axes.plot`
Lines = dict[ModelForm, Look]
TEXT = (
    "An attack changes every pixel by the strength, in the direction of the sign of the gradient of the "
    "loss. published: as in the original code, each predictive draw gets an image of its own, made from one "
    "pass and the label of that pass; probabilities are averaged. sound: one image per input, the true "
    "label, the gradient of the log of the mean probability over draws, fresh draws for classification; far "
    "noise is left out of the gradient, since it never changes a label and only attracts attacks to "
    "distance. The sound attack follows the log-odds against the label, in double precision: where a "
    "network is very confident, -log p in single precision, which the published attack follows (and the "
    "panel single precision, where there is one), has no gradient or a wrong one. A model that is robust "
    "only under the first protocol is robust because its attacks fail."
)


def draw_page(results: Sequence[Result], page: Page, kind: str) -> list[Claim]:
    """Fill the page of an attack experiment; return its claims. `kind`: "methods", "samples" or "strong"."""
    page.text(TEXT)
    groups = grouped(results)
    protocols = list(dict.fromkeys(name for r in results for name in r.metrics if name != ZERO_GRADIENT))
    figures = {"methods": _figure_by_family, "samples": _figure_by_samples, "strong": _figure_by_protocol}
    caption = "Accuracy and mean predictive entropy against strength, means over seeds."
    if kind == "methods":
        caption += " Legend: the most accurate on average first. Grey: the compound density networks again."
    drawn = [name for name in protocols if name != "many steps"]  # that one has three strengths: in its table
    name, csv_rows = results[0].run.experiment, _csv_rows(groups, protocols)
    page.figure_with_data(name, figures[kind](groups, drawn), caption, COLUMNS, csv_rows)
    for protocol in protocols:
        _draw_table(groups, protocol, page)
    if kind == "strong":
        columns = ("form", *CHECKS, "rows without gradient")
        title = "Are gradients masked? What the attacks should show"
        page.table(columns, _gradient_masking_rows(groups), title)
    claims = _claims(groups) if kind == "methods" else []
    if claims:
        page.claims(claims, "Against the baselines that saw no outliers")
    return claims


def grouped(results: Sequence[Result]) -> Groups:
    """Metrics by form; the number of samples is part of the form where runs are compared by it."""
    groups: Groups = {}
    for result in results:
        run = result.run
        compared = run.experiment == "fgsm-samples" or (
            ModelForm.from_run(run).is_published and "samples" in run.options
        )
        form = ModelForm.from_run(run, n_samples=run.options.get("samples", 1) if compared else None)
        groups.setdefault(form, []).append(result.metrics)
    return groups


def _strengths(count: int) -> tuple[float, ...]:
    """The attack strengths of a curve of this many points: those of PGD for 3, else 0, 0.1, ..."""
    return (0.1, 0.3, 1.0) if count == 3 else tuple(round(0.1 * k, 1) for k in range(count))


def mean_curve(group: Sequence[Metrics], protocol: str, measure: str) -> list[float]:
    """Means over seeds of "accuracy" or "entropy", one per strength; empty if no seed has the protocol."""
    curves = [metrics[protocol][measure] for metrics in group if protocol in metrics]
    return [fmean(values) for values in zip(*curves, strict=True)]


def _csv_rows(groups: Groups, protocols: Sequence[str]) -> list[list[Cell]]:
    """The points of all curves as rows of the CSV file, with COLUMNS."""
    rows: list[list[Cell]] = []
    for form, group in groups.items():
        for protocol in protocols:
            n_seeds = sum(protocol in metrics for metrics in group)
            accuracy, entropy = (mean_curve(group, protocol, measure) for measure in MEASURES)
            points = zip(_strengths(len(accuracy)), accuracy, entropy, strict=True)
            rows += [[str(form), protocol, n_seeds, *point] for point in points]
    return rows


def _draw_table(groups: Groups, protocol: str, page: Page) -> None:
    """Add the table of a protocol: for each form a row of accuracies and a row of entropies."""
    rows: list[list[Cell]] = []
    for form, group in groups.items():
        accuracy, entropy = (mean_curve(group, protocol, measure) for measure in MEASURES)
        if accuracy:
            rows.append([str(form), *(round(value, 4) for value in accuracy)])
            rows.append(["   entropy", *(round(value, 3) for value in entropy)])
    strengths = (f"{strength:g}" for strength in _strengths(len(rows[0]) - 1))
    page.table(("accuracy, then entropy", *strengths), rows, protocol)


def _figure_by_family(groups: Groups, protocols: Sequence[str]) -> Figure:
    """A figure with a row of panels for each family of methods; other families have the CDNs in grey."""

    def mean_accuracy(form: ModelForm) -> float:
        return fmean(v for m in groups[form] for p in protocols if p in m for v in m[p]["accuracy"])

    rows: dict[str, Lines] = {}
    for name in FAMILIES:
        forms = [form for form in groups if family(form.method) == name]
        forms.sort(key=mean_accuracy, reverse=True)
        if forms:
            rows[name] = {form: {"label": str(form), **_style(form)} for form in forms}
    background = [form for form in rows.get(CDNS, {}) if not form.is_published]
    return _panel_rows(groups, protocols, rows, {name: background for name in rows if name != CDNS})


def _figure_by_samples(groups: Groups, protocols: Sequence[str]) -> Figure:
    """A figure with a row of panels for each method and variant, a line for each number of samples."""
    rows: dict[str, Lines] = {}
    for form in groups:
        lines = rows.setdefault(str(form._replace(n_samples=None)), {})
        number = len(lines)
        lines[form] = {
            "label": f"S={form.n_samples}",
            "color": METHOD_STYLES.get(form.method, DEFAULT_STYLE).colour,
            "linewidth": 1 + 0.3 * number,
            "linestyle": list(DASHES.values())[number % len(DASHES)],
            "marker": "osD^v*PX"[number % 8],
            "markersize": 4,
        }
    return _panel_rows(groups, protocols, rows, {})


def _panel_rows(
    groups: Groups, protocols: Sequence[str], rows: dict[str, Lines], background: dict[str, list[ModelForm]]
) -> Figure:
    """A figure with a row for each of `rows`: panels of accuracy under each protocol, then of entropy.

    `rows` has the lines of each row by its title, `background` the forms drawn in grey behind them.
    """
    panels = [(protocol, measure) for measure in MEASURES for protocol in protocols]
    figure = Figure(figsize=(3.2 * len(panels), 3.0 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), len(panels), squeeze=False)
    grey = {"color": "0.8", "linewidth": 2.5, "zorder": 1}
    for row, (name, lines) in zip(axes, rows.items(), strict=True):
        for panel, (protocol, measure) in zip(row, panels, strict=True):
            for form in background.get(name, []):
                _plot_curve(panel, groups[form], protocol, measure, grey)
            for form, look in lines.items():
                _plot_curve(panel, groups[form], protocol, measure, look)
            _set_title(panel, protocol, measure)
        row[0].set_ylabel(name)
        row[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=8, handlelength=3.5)
    for panel in axes[-1]:
        panel.set_xlabel("strength")
    return figure


def _figure_by_protocol(groups: Groups, protocols: Sequence[str]) -> Figure:
    """A figure with a panel for each protocol: accuracy in the upper rows, entropy in the lower ones."""
    n_rows = math.ceil(len(protocols) / N_COLUMNS)
    figure = Figure(figsize=(3.4 * N_COLUMNS, 3.0 * 2 * n_rows), layout="constrained")
    axes = figure.subplots(2 * n_rows, N_COLUMNS, squeeze=False)
    for panel in axes.flat:
        panel.set_visible(False)
    for first_row, measure in zip((0, n_rows), MEASURES, strict=True):
        for number, protocol in enumerate(protocols):
            panel = axes[first_row + number // N_COLUMNS][number % N_COLUMNS]
            panel.set_visible(True)
            for form, group in groups.items():
                width = {} if form.n_samples is None else {"linewidth": 2.5}
                _plot_curve(panel, group, protocol, measure, {"label": str(form), **_style(form), **width})
            _set_title(panel, protocol, measure)
            panel.set_xlabel("strength")
    handles = axes[0][0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside right upper", fontsize=8, handlelength=3.5)
    return figure


def _style(form: ModelForm) -> Look:
    """How the curves of a form are drawn: in its method's colour, with its marker."""
    return plot_style(form.method, "published" if form.is_published else "")


def _plot_curve(panel: Axes, group: Sequence[Metrics], protocol: str, measure: str, look: Look) -> None:
    if curve := mean_curve(group, protocol, measure):
        panel.plot(_strengths(len(curve)), curve, **look)


def _set_title(panel: Axes, protocol: str, measure: str) -> None:
    panel.set(title=f"{protocol}: {measure}", xlim=(0, 1), ylim=PANEL_LIMITS[measure])
    panel.title.set_fontsize(9)


CHECKS = (
    *("many steps beat one", "about chance at strength 1", "transfer is not stronger"),
    *("random signs are weaker", "more draws are not weaker", "single precision is not weaker"),
)


def _gradient_masking_rows(groups: Groups) -> list[list[Cell]]:
    """A table row per model: whether each of CHECKS holds, and the fraction of inputs without gradient.

    A check that fails is a sign of masked gradients.
    """
    rows: list[list[Cell]] = []
    for form, group in groups.items():
        accuracy = {name: mean_curve(group, name, "accuracy") for name in group[0] if name != ZERO_GRADIENT}
        sound, many_steps = accuracy["sound, 10 draws"], accuracy["many steps"]
        rows.append(
            [
                str(form),
                _not_above(many_steps, [sound[k] for k in (1, 3, 10)]),
                many_steps[-1] <= CHANCE,
                _not_above(sound, accuracy["transferred"]),
                _not_above(sound, accuracy["random signs"]),
                _not_above(accuracy["sound, 100 draws"], accuracy["sound, 1 draws"]),
                _not_above(accuracy["single precision"], sound),
                round(fmean(metrics[ZERO_GRADIENT] for metrics in group), 4),
            ]
        )
    return rows


def _not_above(curve: Sequence[float], other: Sequence[float]) -> bool:
    """Whether a curve of accuracy is nowhere above another one, within TOLERANCE."""
    return all(a <= b + TOLERANCE for a, b in zip(curve, other, strict=True))


def _claims(groups: Groups) -> list[Claim]:
    """Default CDNs: entropy at strength 0.3, sound protocol, at least that of baselines without outliers."""

    def entropy(form: ModelForm) -> float:
        return mean_curve(groups[form], "sound", "entropy")[AT_03]

    baselines = [entropy(form) for form in groups if not (form.is_cdn or form.saw_outliers)]
    if not baselines:
        return []
    cdns = [form for form in groups if form.is_cdn and form == ModelForm(form.method)]
    return [Claim(f"{form}: entropy at strength 0.3", entropy(form), max(baselines)) for form in cdns]
