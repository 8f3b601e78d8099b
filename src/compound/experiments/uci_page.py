"""The page of the UCI experiment: one table per number, published ones beside ours, who wins where, claims with their bars."""

import json
import math
from collections.abc import Callable, Sequence
from importlib.resources import files
from statistics import fmean, stdev
from typing import Any

from matplotlib.figure import Figure

from compound.experiments.runs import Result
from compound.report.page import Cell, Claim, Page

DEFAULT = "ml-cdn"
BAYESIAN = (
    "vb-cdn",
    "mc-dropout",
    "laplace",
    "bbb",
    "vmg",
    "mnf",
    "noisy-kfac",
    "noisy-adam",
    "bnn-lv",
    "deep-ensemble",
)
ENSEMBLES = "Deep Ensembles (5 nets, 40 epochs)"
DROPOUT = "MC-dropout, grid search per split (Gal/Mukhoti 2018 strong baseline, code + per-split files)"
BESIDE = {"Deep Ensembles": ENSEMBLES, "tuned MC-dropout": DROPOUT}
SPIKES = ("nnuncert DNNC-R",)  # gains on rounded targets by spikes: does not count
LARGE = ("wine", "kin8nm", "power", "naval", "protein")  # over 1,000 rows
REGION = ", region"
TABLES = {
    "nll": "NLL in nats, on the original scale",
    "rmse": "RMSE, in the unit of the target",
    "crps": "CRPS, in the unit of the target",
    "coverage_calibrated": "Coverage of the 90% interval, its reach set on held-out rows",
    "coverage": "Coverage of the 90% interval as the predictive has it",
    "epistemic": "Epistemic variance, mean over test rows",
    "aleatoric": "Aleatoric variance, mean over test rows",
    "cpu_seconds": "Seconds of one core per split, training with calibration",
}
Found = dict[tuple[str, str], list[dict[str, Any]]]  # (set, method) -> metrics of its splits


def draw(results: Sequence[Result], page: Page) -> list[Claim]:
    found: Found = {}
    for result in results:
        found.setdefault((result.run.data, result.run.method), []).append(
            {**result.metrics, "split": result.run.seed}
        )
    sets = [name for name in dict.fromkeys(data for data, _ in found) if not name.endswith(REGION)]
    methods = list(dict.fromkeys(method for _, method in found))
    published = json.loads(files("compound.experiments").joinpath("published.json").read_text())[
        "uci_regression"
    ]["methods"]
    page.text(
        "Nine tables, the splits that papers share, one setting for all. Every number is a mean over splits with its standard error; "
        "published numbers stand beside ours. Methods that stop early do so by a tenth of the training rows, never by test rows. "
        "In tables a method that ran fewer splits than the row says has their number behind it; the figure and who wins look only at "
        "splits that every method of the set has run."
    )
    caption = (
        "NLL by set (lower is better), mean and standard error over the splits all its methods have run. "
        "Lines: published Deep Ensembles (full), tuned MC-dropout (dashed), over all splits."
    )
    columns = ("set", "method", "split", *TABLES)
    page.figure_with_data("uci", _figure(found, sets, methods, published), caption, columns, _data(results))
    bars = bars_of(found, sets, published)
    page.claims(bars, f"{DEFAULT} against the bars; a set that was not run counts for nothing")
    page.heading("Who wins where")
    for line in wins(found, sets, methods):
        page.text(line)
    for key, words in TABLES.items():
        page.heading(words)
        beside = {
            label: published[row][key]["values"] for label, row in BESIDE.items() if key in published[row]
        }
        rows: list[list[Cell]] = []
        for name in sets:
            splits = max(len(found.get((name, method), [])) for method in methods)
            ours = [_counted(values(found, name, method, key), splits) for method in methods]
            rows.append([f"{name} ({splits})", *ours, *(_published(row, name) for row in beside.values())])
        page.table(("set (splits)", *methods, *(f"{label}, published" for label in beside)), rows)
    _strangers(found, methods, page)
    return bars


def _data(results: Sequence[Result]) -> list[list[Cell]]:
    """Every split's own numbers."""
    own = [result for result in results if not result.run.data.endswith(REGION)]
    return [[r.run.data, r.run.method, r.run.seed, *(r.metrics.get(key) for key in TABLES)] for r in own]


def values(found: Found, data: str, method: str, key: str) -> list[float]:
    return [m[key] for m in found.get((data, method), []) if m.get(key) is not None]


def said(numbers: Sequence[float]) -> str | None:
    """Mean ± standard error, with two digits of the error; None where there is nothing to say."""
    if not numbers:
        return None
    mean = fmean(numbers)
    if len(numbers) == 1:
        return f"{mean:.4g}"
    error = stdev(numbers) / math.sqrt(len(numbers))
    digits = max(0, min(8, 1 - math.floor(math.log10(error)))) if error > 0 else 4
    return f"{mean:.{digits}f} ± {error:.{digits}f}"


def _counted(numbers: Sequence[float], splits: int) -> str | None:
    text = said(numbers)
    return text if text is None or len(numbers) == splits else f"{text} ({len(numbers)})"


def alike(found: Found, name: str, methods: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Method -> its metrics on those splits of the set that all methods with any have run, in their order."""
    own = {
        m: {metrics["split"]: metrics for metrics in found[name, m]} for m in methods if (name, m) in found
    }
    shared = sorted(set.intersection(*(set(splits) for splits in own.values()))) if own else []
    return {m: [splits[k] for k in shared] for m, splits in own.items()}


def _published(row: dict[str, Any], name: str) -> str | None:
    value = row.get(name)
    return (
        None
        if value is None or value[0] is None
        else f"{value[0]:g}" + ("" if value[1] is None else f" ± {value[1]:g}")
    )


def best_seen(published: dict[str, Any], name: str) -> float:
    """The lowest published NLL that was seen in its source."""
    rows = [row["nll"] for label, row in published.items() if "nll" in row and label not in SPIKES]
    return min(
        row["values"][name][0]
        for row in rows
        if row["status"] == "seen" and row["values"].get(name, [None])[0] is not None
    )


def wins(found: Found, sets: Sequence[str], methods: Sequence[str]) -> list[str]:
    """One sentence per set: the lowest mean NLL, and who is within two standard errors of the difference on the same splits."""
    lines = []
    for name in sets:
        ran = alike(found, name, methods)
        nll, rmse = (
            {m: [one[key] for one in splits] for m, splits in ran.items() if splits}
            for key in ("nll", "rmse")
        )
        if len(nll) < 2:
            continue
        best, sharp = (min((fmean(values), m) for m, values in numbers.items())[1] for numbers in (nll, rmse))
        level = [m for m in nll if m != best and not _apart(nll[best], nll[m])]
        count = len(nll[best])
        beyond = f", level with {', '.join(level)}" if level else ", ahead of all others"
        beyond = "" if count == 1 else beyond  # one split tells nothing of scatter
        words = f"{name} ({count} split{'s' * (count > 1)}, {len(nll)} methods)"
        lines.append(
            f"{words}: {best} has the lowest NLL ({fmean(nll[best]):.3f}){beyond}; {sharp} the lowest RMSE."
        )
    return lines or ["One method alone has nobody to win against."]


def _apart(best: Sequence[float], other: Sequence[float]) -> bool:
    """Whether the second is worse by more than two standard errors of the difference, split by split."""
    gaps = [b - a for a, b in zip(best, other, strict=True)]
    return len(gaps) > 1 and fmean(gaps) > 2 * stdev(gaps) / math.sqrt(len(gaps))


def bars_of(found: Found, sets: Sequence[str], published: dict[str, Any]) -> list[Claim]:
    def mean(name: str, key: str) -> float:
        mine = values(found, name, DEFAULT, key)
        return fmean(mine) if mine else math.inf

    def count(test: Callable[[str], bool]) -> float:
        return float(sum(test(name) for name in sets))

    def theirs(name: str, row: str, key: str) -> float:
        return published[row][key]["values"][name][0]

    large = [fmean(v) for name in LARGE if (v := values(found, name, DEFAULT, "coverage_calibrated"))]
    seconds = values(found, "boston", DEFAULT, "cpu_seconds")
    rates = {
        key: [r for name in sets if (r := _rate(found, name, key)) is not None]
        for key in ("false_alarms", "moved_flagged")
    }
    return [
        Claim(
            "sets with NLL below published Deep Ensembles",
            count(lambda n: mean(n, "nll") < theirs(n, ENSEMBLES, "nll")),
            9,
        ),
        Claim(
            "sets with NLL below tuned MC-dropout",
            count(lambda n: mean(n, "nll") < theirs(n, DROPOUT, "nll")),
            8,
        ),
        Claim(
            "sets with NLL below the best published row",
            count(lambda n: mean(n, "nll") < best_seen(published, n)),
            5,
        ),
        Claim(
            "sets with RMSE not above Deep Ensembles, at two digits",
            count(lambda n: round(mean(n, "rmse"), 2) <= theirs(n, ENSEMBLES, "rmse")),
            9,
        ),
        Claim(
            "sets with RMSE below tuned MC-dropout",
            count(lambda n: mean(n, "rmse") < theirs(n, DROPOUT, "rmse")),
            4,
        ),
        Claim("lowest coverage of the 90% interval, sets over 1,000 rows", min(large, default=None), 0.87),
        Claim(
            "highest coverage of the 90% interval, sets over 1,000 rows",
            max(large, default=None),
            0.93,
            "at most",
        ),
        Claim(
            "boston, 20 splits on two cores, seconds",
            10 * fmean(seconds) if seconds else None,
            120,
            "at most",
        ),
        Claim("lowest false-alarm rate of a set", min(rates["false_alarms"], default=None), 0.005),
        Claim("highest false-alarm rate of a set", max(rates["false_alarms"], default=None), 0.02, "at most"),
        Claim("lowest share of moved rows flagged", min(rates["moved_flagged"], default=None), 0.95),
        *(
            Claim(
                f"region: mean AUROC by {key} variance minus the best Bayesian method's",
                _lead(found, key),
                -0.02,
            )
            for key in ("epistemic", "predictive")
        ),
    ]


def _rate(found: Found, name: str, key: str) -> float | None:
    """Pooled over splits."""
    runs = [m for m in found.get((name, DEFAULT), []) if m.get(key) is not None]
    return sum(m[key] for m in runs) / sum(m["rows"] for m in runs) if runs else None


def _mean_auroc(found: Found, method: str, key: str) -> float | None:
    """Over sets, each a mean over its splits; only sets that the default ran too."""
    sets = [data for data, m in found if data.endswith(REGION) and m == DEFAULT]
    means = [fmean(v) for data in sets if (v := values(found, data, method, key))]
    return fmean(means) if means and len(means) == len(sets) else None


def _lead(found: Found, key: str) -> float | None:
    own = _mean_auroc(found, DEFAULT, f"auroc_{key}")
    others = [value for m in BAYESIAN if (value := _mean_auroc(found, m, f"auroc_{key}")) is not None]
    return None if own is None or not others else own - max(others)


def _strangers(found: Found, methods: Sequence[str], page: Page) -> None:
    page.heading("Rows that do not belong")
    rows: list[list[Cell]] = [
        [name, _rate(found, name, "false_alarms"), _rate(found, name, "moved_flagged")]
        for name, m in found
        if m == DEFAULT
    ]
    page.table(
        ("set", "false alarms", "moved rows flagged"),
        [row for row in rows if row[1] is not None],
        "By whitened distance beyond the 99% quantile of training rows; rows are moved by a random vector of norm 5, splits pooled",
    )
    regions = list(dict.fromkeys(data for data, _ in found if data.endswith(REGION)))
    for key, words in (
        ("epistemic", "epistemic variance"),
        ("predictive", "predictive variance"),
        ("distance", "whitened distance"),
    ):
        lines: list[list[Cell]] = [
            [data.removesuffix(REGION), *(said(values(found, data, m, f"auroc_{key}")) for m in methods)]
            for data in regions
        ]
        if lines:
            page.table(("set", *methods), lines, f"Region kept out of training: AUROC by {words}")


def _figure(found: Found, sets: Sequence[str], methods: Sequence[str], published: dict[str, Any]) -> Figure:
    across = min(3, len(sets)) or 1
    down = max(1, math.ceil(len(sets) / across))
    ran = {name: alike(found, name, methods) for name in sets}
    figure = Figure(
        figsize=(3.4 * across, (1.2 + 0.22 * max(map(len, ran.values()), default=1)) * down),
        layout="constrained",
    )
    panels = figure.subplots(down, across, squeeze=False).flat
    for panel in panels[len(sets) :]:
        panel.set_visible(False)
    for name, panel in zip(sets, panels, strict=False):
        for place, (method, splits) in enumerate(ran[name].items()):
            mine = [metrics["nll"] for metrics in splits]
            if mine:
                error = stdev(mine) / math.sqrt(len(mine)) if len(mine) > 1 else 0.0
                panel.errorbar(
                    fmean(mine),
                    place,
                    xerr=error,
                    fmt="o",
                    color="tab:orange" if method == DEFAULT else "tab:blue",
                )
        for row, line in ((ENSEMBLES, "-"), (DROPOUT, "--")):
            panel.axvline(
                published[row]["nll"]["values"][name][0], color="black", linewidth=0.8, linestyle=line
            )
        panel.set_yticks(range(len(ran[name])), list(ran[name]), fontsize=7)
        panel.set_ylim(len(ran[name]) - 0.5, -0.5)  # the first on top
        panel.set_title(name, fontsize=9)
    return figure
