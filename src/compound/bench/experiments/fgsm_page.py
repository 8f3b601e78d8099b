"""The page of the attack experiments: accuracy and entropy against strength, and what the checks of the attacks say."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from compound.bench.experiments import Drawn
from compound.bench.report import Bar, Cell, Page
from compound.bench.runs import Result

STYLES = ("-", "--", "-.", ":")
MARKERS = "os^vDP*X<>hd"
CHANCE = 0.15  # at most this accuracy is about chance for ten classes


def draw_page(results: Sequence[Result], page: Page, kind: str) -> Drawn:
    page.text(
        "An attack moves every pixel by the strength, towards where the gradient says the loss grows. published: as in the original "
        "code, each predictive draw gets an image of its own, made from one pass and the label that pass gave; the answers are "
        "averaged. sound: one image per input, the true label, the gradient of the log of the mean probability over draws, fresh "
        "noise for judging. A model that is robust only under the first is robust because the attacks disagree, not because it is."
    )
    figure = _curves(results)
    page.figure(figure, "Accuracy (above) and mean entropy (below) against strength, mean over seeds.")
    protocols = list(dict.fromkeys(name for r in results for name in r.metrics if name != "silent"))
    for protocol in protocols:
        rows: list[list[Cell]] = []
        for label, found in grouped(results).items():
            curves = [m[protocol] for m in found if protocol in m]
            if curves:
                points = range(len(curves[0]["accuracy"]))
                rows.append([label, *(round(fmean(c["accuracy"][k] for c in curves), 4) for k in points)])
                rows.append(["   entropy", *(round(fmean(c["entropy"][k] for c in curves), 3) for k in points)])
        strengths = _strengths(len(rows[0]) - 1)
        page.table(("accuracy, then entropy", *(f"{s:g}" for s in strengths)), rows, protocol)
    if kind == "strong":
        page.table(("form", *CHECKS, "rows without gradient"), _checks(results), "Is the gradient hidden? What the attacks should show")
    bars = _bars(results) if kind == "methods" else []
    if bars:
        page.bars(bars, "Against the baselines that saw no outliers")
    return Drawn(bars, figure)


def grouped(results: Sequence[Result]) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        published = ", published" if result.run.data.endswith("published") else ""
        samples = f", S={result.run.options['samples']}" if "samples" in result.run.options and not published else ""
        groups.setdefault(f"{result.run.method}{published}{samples}", []).append(result.metrics)
    return groups


def _strengths(count: int) -> tuple[float, ...]:
    return (0.1, 0.3, 1.0) if count == 3 else tuple(0.1 * k for k in range(count))


def _curves(results: Sequence[Result]) -> Figure:
    protocols = list(dict.fromkeys(name for r in results for name in r.metrics if name not in ("silent", "many steps")))
    figure = Figure(figsize=(4.2 * len(protocols), 6.4), layout="constrained")
    axes = figure.subplots(2, len(protocols), squeeze=False, sharex=True, sharey="row")
    groups = grouped(results)
    for number, (label, found) in enumerate(groups.items()):
        for column, protocol in enumerate(protocols):
            curves = [m[protocol] for m in found if protocol in m]
            if not curves:
                continue
            strengths = _strengths(len(curves[0]["accuracy"]))
            style = {"linestyle": STYLES[number % 4], "marker": MARKERS[number % len(MARKERS)], "markersize": 3, "color": f"C{number % 10}"}
            for row, key in enumerate(("accuracy", "entropy")):
                means = [fmean(c[key][k] for c in curves) for k in range(len(strengths))]
                axes[row][column].plot(strengths, means, label=label, linewidth=1, **style)
            axes[0][column].set_title(protocol, fontsize=9)
            axes[1][column].set_xlabel("strength")
    axes[0][0].set_ylabel("accuracy")
    axes[1][0].set_ylabel("entropy (nats)")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside right upper", fontsize=7)
    return figure


CHECKS = (
    "many steps beat one",
    "about chance at strength 1",
    "transfer is not stronger",
    "random signs are weaker",
    "more draws are not weaker",
)


def _checks(results: Sequence[Result]) -> list[list[Cell]]:
    """Each of these failing hints at hidden gradients; differences within two points count as none."""
    rows: list[list[Cell]] = []
    for label, found in grouped(results).items():
        accuracy = {
            name: [fmean(m[name]["accuracy"][k] for m in found) for k in range(len(found[0][name]["accuracy"]))]
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
                all(more <= fewer + 0.02 for more, fewer in zip(accuracy["sound, 100 draws"], accuracy["sound, 1 draws"], strict=True)),
                round(fmean(m["silent"] for m in found), 4),
            ]
        )
    return rows


def _bars(results: Sequence[Result]) -> list[Bar]:
    """Under the sound protocol the default CDNs should doubt more at strength 0.3 than every baseline that saw no outliers."""
    groups = grouped(results)
    at = 3
    others = [fmean(m["sound"]["entropy"][at] for m in found) for label, found in groups.items() if "cdn" not in label and label != "dpn"]
    if not others:
        return []
    cdns = [label for label in groups if label in ("ml-cdn", "vb-cdn")]
    return [
        Bar(f"{label}: entropy at strength 0.3", fmean(m["sound"]["entropy"][at] for m in groups[label]), max(others)) for label in cdns
    ]
