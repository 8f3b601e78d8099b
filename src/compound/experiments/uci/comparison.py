"""Claims about the UCI results against published numbers, and which method is best on each table."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from compound.experiments.means import Mean
from compound.report.page import Claim

DEFAULT = "ml-cdn"
BAYESIAN = (
    *("vb-cdn", "mc-dropout", "laplace", "bbb", "vmg", "mnf"),
    *("noisy-kfac", "noisy-adam", "bnn-lv", "deep-ensemble"),
)
ENSEMBLES = "Deep Ensembles (5 nets, 40 epochs)"
DROPOUT = "MC-dropout, grid search per split (Gal/Mukhoti 2018 strong baseline, code + per-split files)"
NOT_COUNTED = ("nnuncert DNNC-R",)  # its density has spikes at rounded targets, which lowers the NLL
LARGE = ("wine", "kin8nm", "power", "naval", "protein")  # over 1,000 rows
Splits = dict[tuple[str, str], list[dict[str, Any]]]  # (table, method) -> metrics of its splits


def values(splits: Splits, data: str, method: str, key: str) -> list[float]:
    """One metric of a method on a table, for every split that has it."""
    return [metrics[key] for metrics in splits.get((data, method), []) if metrics.get(key) is not None]


def pooled_rate(splits: Splits, data: str, key: str) -> float | None:
    """The fraction of test rows that the count `key` has, over all splits of the default method together."""
    counted = [metrics for metrics in splits.get((data, DEFAULT), []) if metrics.get(key) is not None]
    return sum(m[key] for m in counted) / sum(m["rows"] for m in counted) if counted else None


def common_splits(splits: Splits, data: str, methods: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Method -> its metrics on a table, a list over the splits that all methods with runs have in common."""
    shown = [m for m in methods if (data, m) in splits]
    by_method = {m: {metrics["split"]: metrics for metrics in splits[data, m]} for m in shown}
    common = sorted(set.intersection(*(set(s) for s in by_method.values()))) if by_method else []
    return {method: [of_method[k] for k in common] for method, of_method in by_method.items()}


def best_published_nll(published: dict[str, Any], data: str) -> float:
    """The lowest published NLL on a table, of numbers whose status is "seen"."""
    rows = [row["nll"] for name, row in published.items() if "nll" in row and name not in NOT_COUNTED]
    seen = [row["values"].get(data, [None])[0] for row in rows if row["status"] == "seen"]
    return min(value for value in seen if value is not None)


def claims(splits: Splits, regions: Splits, tables: Sequence[str], published: dict[str, Any]) -> list[Claim]:
    """Claims about the default method; `published` as from `uci_results`. `tables` are those with runs."""

    def mean(data: str, key: str) -> float:
        ours = values(splits, data, DEFAULT, key)
        return fmean(ours) if ours else math.inf

    def theirs(data: str, row: str, key: str) -> float:
        return published[row][key]["values"][data][0]

    def count(title: str, holds: Callable[[str], bool], limit: float) -> Claim:
        return Claim(f"tables with {title}", float(sum(holds(data) for data in tables)), limit)

    coverage = [fmean(v) for data in LARGE if (v := values(splits, data, DEFAULT, "coverage_calibrated"))]
    seconds = values(splits, "boston", DEFAULT, "cpu_seconds")
    rates = ([pooled_rate(splits, data, key) for data in tables] for key in ("false_alarms", "moved_flagged"))
    false_positives, detected = ([rate for rate in each if rate is not None] for each in rates)
    interval = "coverage of the 90% interval, tables over 1,000 rows"
    return [
        count(
            "NLL below published Deep Ensembles", lambda d: mean(d, "nll") < theirs(d, ENSEMBLES, "nll"), 9
        ),
        count("NLL below tuned MC-dropout", lambda d: mean(d, "nll") < theirs(d, DROPOUT, "nll"), 8),
        count(
            "NLL below the best published row", lambda d: mean(d, "nll") < best_published_nll(published, d), 5
        ),
        count(
            "RMSE not above Deep Ensembles, at two digits",
            lambda d: round(mean(d, "rmse"), 2) <= theirs(d, ENSEMBLES, "rmse"),
            9,
        ),
        count("RMSE below tuned MC-dropout", lambda d: mean(d, "rmse") < theirs(d, DROPOUT, "rmse"), 4),
        Claim(f"lowest {interval}", min(coverage, default=None), 0.87),
        Claim(f"highest {interval}", max(coverage, default=None), 0.93, "at most"),
        Claim(
            "boston, 20 splits on two cores, seconds",
            10 * fmean(seconds) if seconds else None,
            120,
            "at most",
        ),
        Claim("lowest false-positive rate of a table", min(false_positives, default=None), 0.005),
        Claim("highest false-positive rate of a table", max(false_positives, default=None), 0.02, "at most"),
        Claim("lowest fraction of synthetic outliers flagged", min(detected, default=None), 0.95),
        *(
            Claim(
                f"region: mean AUROC by {key} variance minus the best Bayesian method's",
                _auroc_lead(regions, key),
                -0.02,
            )
            for key in ("epistemic", "predictive")
        ),
    ]


def _mean_auroc(regions: Splits, method: str, key: str) -> float | None:
    """Mean over tables of the means over splits; None if the method lacks a table of the default method."""
    tables = [data for data, m in regions if m == DEFAULT]
    means = [fmean(v) for data in tables if (v := values(regions, data, method, key))]
    return fmean(means) if means and len(means) == len(tables) else None


def _auroc_lead(regions: Splits, key: str) -> float | None:
    """Mean AUROC of the default method minus that of the best of BAYESIAN; None without runs."""
    ours = _mean_auroc(regions, DEFAULT, f"auroc_{key}")
    others = [auroc for m in BAYESIAN if (auroc := _mean_auroc(regions, m, f"auroc_{key}")) is not None]
    return None if ours is None or not others else ours - max(others)


def best_methods(splits: Splits, tables: Sequence[str], methods: Sequence[str]) -> list[str]:
    """A sentence per table: the method of the lowest mean NLL, and those not significantly worse."""
    lines = []
    for data in tables:
        common = common_splits(splits, data, methods)
        nll, rmse = (
            {
                method: [metrics[key] for metrics in of_method]
                for method, of_method in common.items()
                if of_method
            }
            for key in ("nll", "rmse")
        )
        if len(nll) < 2:
            continue
        best_nll, best_rmse = (min(numbers, key=lambda m: (fmean(numbers[m]), m)) for numbers in (nll, rmse))
        others = [method for method in nll if method != best_nll]
        level = [method for method in others if not _significantly_worse(nll[best_nll], nll[method])]
        n_splits = len(nll[best_nll])
        lead = f", level with {', '.join(level)}" if level else ", ahead of all others"
        lead = "" if n_splits == 1 else lead  # one split has no standard error
        lines.append(
            f"{data} ({n_splits} split{'s' * (n_splits > 1)}, {len(nll)} methods): {best_nll} has the lowest "
            f"NLL ({fmean(nll[best_nll]):.3f}){lead}; {best_rmse} the lowest RMSE."
        )
    return lines or ["There is one method alone."]


def _significantly_worse(best: Sequence[float], other: Sequence[float]) -> bool:
    """Whether `other` is higher than `best`, by more than two standard errors of the paired difference."""
    difference = Mean.from_values(b - a for a, b in zip(best, other, strict=True))
    return difference.error is not None and difference.mean > 2 * difference.error
