"""The page of the attack experiments: accuracy and entropy against strength, and what the checks of the attacks say."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

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

ACROSS = 3  # panels side by side
MEASURES = ("accuracy", "entropy")
Groups = dict[str, list[dict[str, Any]]]  # label of a form -> metrics of its seeds
Looks = dict[str, dict[str, Any]]  # label -> arguments of `plot`
CHANCE = 0.15  # at most this accuracy is about chance for ten classes


def draw_page(results: Sequence[Result], page: Page, kind: str) -> list[Claim]:
    page.text(
        "An attack moves every pixel by the strength, towards where the gradient says the loss grows. published: as in the original "
        "code, each predictive draw gets an image of its own, made from one pass and the label that pass gave; the answers are "
        "averaged. sound: one image per input, the true label, the gradient of the log of the mean probability over draws, fresh "
        "noise for judging; where a model has far noise the attack looks past it, for far noise never changes a label and only draws "
        "attacks away from it. It climbs the odds against the label, in double precision: where a network is very sure, -log p in "
        "single precision, which the published attack follows (and the panel single precision, where there is one), has no gradient or "
        "a wrong one. A model that is robust only under the first protocol is robust because its attacks fail, not because it is."
    )
    groups = grouped(results)
    protocols = list(dict.fromkeys(name for r in results for name in r.metrics if name != "silent"))
    drawing = {"methods": _by_family, "samples": _by_method, "strong": _by_protocol}[kind]
    words = "Accuracy and mean entropy against strength, means over seeds."
    words += (
        " Legend: the most accurate on average first. Grey: the compound density networks again."
        if kind == "methods"
        else ""
    )
    lines = [
        name for name in protocols if name != "many steps"
    ]  # that one has three strengths: a table says it better
    page.figure_with_data(
        results[0].run.experiment, drawing(groups, lines), words, COLUMNS, _data(groups, protocols)
    )
    for protocol in protocols:
        rows: list[list[Cell]] = []
        for label, found in groups.items():
            curves = _of(found, protocol)
            if curves:
                points = range(len(curves[0]["accuracy"]))
                rows.append([label, *(round(fmean(c["accuracy"][k] for c in curves), 4) for k in points)])
                rows.append(
                    ["   entropy", *(round(fmean(c["entropy"][k] for c in curves), 3) for k in points)]
                )
        strengths = _strengths(len(rows[0]) - 1)
        page.table(("accuracy, then entropy", *(f"{s:g}" for s in strengths)), rows, protocol)
    if kind == "strong":
        page.table(
            ("form", *CHECKS, "rows without gradient"),
            _checks(results),
            "Is the gradient hidden? What the attacks should show",
        )
    bars = _bars(results) if kind == "methods" else []
    if bars:
        page.claims(bars, "Against the baselines that saw no outliers")
    return bars


def grouped(results: Sequence[Result]) -> Groups:
    groups: Groups = {}
    for result in results:
        published = ", published" if result.run.data.endswith("published") else ""
        drawn = result.run.experiment == "fgsm-samples" or (published and "samples" in result.run.options)
        samples = f", S={result.run.options.get('samples', 1)}" if drawn else ""
        groups.setdefault(f"{result.run.method}{published}{samples}", []).append(result.metrics)
    return groups


def _strengths(count: int) -> tuple[float, ...]:
    return (0.1, 0.3, 1.0) if count == 3 else tuple(round(0.1 * k, 1) for k in range(count))


def _of(found: Sequence[dict[str, Any]], protocol: str) -> list[dict[str, list[float]]]:
    return [metrics[protocol] for metrics in found if protocol in metrics]


def _mean(curves: Sequence[dict[str, list[float]]], key: str) -> list[float]:
    return [fmean(values) for values in zip(*(curve[key] for curve in curves), strict=True)]


COLUMNS = ("form", "protocol", "seeds", "strength", "accuracy", "entropy")


def _data(groups: Groups, protocols: Sequence[str]) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for label, found in groups.items():
        for protocol in protocols:
            if curves := _of(found, protocol):
                accuracy, doubt = _mean(curves, "accuracy"), _mean(curves, "entropy")
                lines = zip(_strengths(len(accuracy)), accuracy, doubt, strict=True)
                rows += [[label, protocol, len(curves), *line] for line in lines]
    return rows


def _method(label: str) -> str:
    return label.partition(",")[0]


def _form(label: str) -> str:
    return "published" if ", published" in label else ""


def _line(
    panel: Axes, found: Sequence[dict[str, Any]], protocol: str, key: str, look: dict[str, Any]
) -> None:
    if curves := _of(found, protocol):
        means = _mean(curves, key)
        panel.plot(_strengths(len(means)), means, **look)


def _dress(panel: Axes, protocol: str, key: str) -> None:
    panel.set(
        title=f"{protocol}: {key}", xlim=(0, 1), ylim=(-0.02, 1.02) if key == "accuracy" else (-0.05, 2.35)
    )
    panel.title.set_fontsize(9)


def _by_family(groups: Groups, protocols: Sequence[str]) -> Figure:
    """A row for each family of methods, the CDNs in the background of the others."""

    def strong(label: str) -> float:
        return fmean(
            value
            for protocol in protocols
            for curve in _of(groups[label], protocol)
            for value in curve["accuracy"]
        )

    rows: dict[str, Looks] = {}
    for name in FAMILIES:
        own = sorted((label for label in groups if family(_method(label)) == name), key=strong, reverse=True)
        if own:
            rows[name] = {
                label: {"label": label, **plot_style(_method(label), _form(label))} for label in own
            }
    grey = [label for label in rows.get(CDNS, {}) if not _form(label)]
    return _in_rows(groups, protocols, rows, {name: grey for name in rows if name != CDNS})


def _by_method(groups: Groups, protocols: Sequence[str]) -> Figure:
    """A row for each form, a line for each number of draws in training."""
    rows: dict[str, Looks] = {}
    for label in groups:
        form, _, words = label.rpartition(", ")
        number = len(rows.setdefault(form, {}))
        look = {
            "linestyle": list(DASHES.values())[number % len(DASHES)],
            "marker": "osD^v*PX"[number % 8],
            "markersize": 4,
        }
        rows[form][label] = {
            "label": words,
            "color": METHOD_STYLES.get(_method(form), DEFAULT_STYLE).colour,
            "linewidth": 1 + 0.3 * number,
            **look,
        }
    return _in_rows(groups, protocols, rows, {})


def _in_rows(
    groups: Groups, protocols: Sequence[str], rows: dict[str, Looks], grey: dict[str, list[str]]
) -> Figure:
    """In every row accuracy under each protocol, then entropy under each."""
    wished = [(protocol, key) for key in MEASURES for protocol in protocols]
    figure = Figure(figsize=(3.2 * len(wished), 3.0 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), len(wished), squeeze=False)
    for row, (name, looks) in zip(axes, rows.items(), strict=True):
        for panel, (protocol, key) in zip(row, wished, strict=True):
            for label in grey.get(name, []):
                _line(panel, groups[label], protocol, key, {"color": "0.8", "linewidth": 2.5, "zorder": 1})
            for label, look in looks.items():
                _line(panel, groups[label], protocol, key, look)
            _dress(panel, protocol, key)
        row[0].set_ylabel(name)
        row[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=8, handlelength=3.5)
    for panel in axes[-1]:
        panel.set_xlabel("strength")
    return figure


def _by_protocol(groups: Groups, protocols: Sequence[str]) -> Figure:
    """A panel for each attack: accuracy in the upper rows, entropy in the lower ones."""
    down = math.ceil(len(protocols) / ACROSS)
    figure = Figure(figsize=(3.4 * ACROSS, 3.0 * 2 * down), layout="constrained")
    axes = figure.subplots(2 * down, ACROSS, squeeze=False)
    for panel in axes.flat:
        panel.set_visible(False)
    for upper, key in zip((0, down), MEASURES, strict=True):
        for number, protocol in enumerate(protocols):
            panel = axes[upper + number // ACROSS][number % ACROSS]
            panel.set_visible(True)
            for label, found in groups.items():
                thick = {"linewidth": 2.5} if "S=" in label else {}
                _line(
                    panel,
                    found,
                    protocol,
                    key,
                    {"label": label, **plot_style(_method(label), _form(label)), **thick},
                )
            _dress(panel, protocol, key)
            panel.set_xlabel("strength")
    figure.legend(
        *axes[0][0].get_legend_handles_labels(), loc="outside right upper", fontsize=8, handlelength=3.5
    )
    return figure


CHECKS = (
    "many steps beat one",
    "about chance at strength 1",
    "transfer is not stronger",
    "random signs are weaker",
    "more draws are not weaker",
    "single precision is not weaker",
)


def _checks(results: Sequence[Result]) -> list[list[Cell]]:
    """Each of these failing hints at hidden gradients; differences within two points count as none."""
    rows: list[list[Cell]] = []
    for label, found in grouped(results).items():
        accuracy = {
            name: [
                fmean(m[name]["accuracy"][k] for m in found) for k in range(len(found[0][name]["accuracy"]))
            ]
            for name in found[0]
            if name != "silent"
        }
        one, many = accuracy["sound, 10 draws"], accuracy["many steps"]
        rows.append(
            [
                label,
                all(many[k] <= one[at] + 0.02 for k, at in enumerate((1, 3, 10))),
                many[-1] <= CHANCE,
                all(other >= own - 0.02 for other, own in zip(accuracy["transferred"], one, strict=True)),
                all(other >= own - 0.02 for other, own in zip(accuracy["random signs"], one, strict=True)),
                all(
                    more <= fewer + 0.02
                    for more, fewer in zip(
                        accuracy["sound, 100 draws"], accuracy["sound, 1 draws"], strict=True
                    )
                ),
                all(
                    own >= other - 0.02 for own, other in zip(one, accuracy["single precision"], strict=True)
                ),
                round(fmean(m["silent"] for m in found), 4),
            ]
        )
    return rows


def _bars(results: Sequence[Result]) -> list[Claim]:
    """Under the sound protocol the default CDNs should doubt more at strength 0.3 than every baseline that saw no outliers."""
    groups = grouped(results)
    at = 3
    others = [
        fmean(m["sound"]["entropy"][at] for m in found)
        for label, found in groups.items()
        if "cdn" not in label and label != "dpn"
    ]
    if not others:
        return []
    cdns = [label for label in groups if label in ("ml-cdn", "vb-cdn")]
    return [
        Claim(
            f"{label}: entropy at strength 0.3",
            fmean(m["sound"]["entropy"][at] for m in groups[label]),
            max(others),
        )
        for label in cdns
    ]
