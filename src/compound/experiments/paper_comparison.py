"""What agrees with the paper and what does not, in words computed from the numbers."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from itertools import product
from statistics import fmean, stdev
from typing import Any, NamedTuple

from compound.experiments import fgsm_page, ood_page
from compound.experiments.runs import Result
from compound.models import METHODS

CLOSE = 0.02  # to a number of the paper
MARGIN = 0.1  # what the paper calls "only marginally decreased"
TABLE = "table_1_mnist_notmnist"
AT = {0.3: 3, 1.0: 10}  # strength -> its place in a curve
SEEN = tuple(name for name, model in METHODS.items() if model.needs_ood_rows)  # trained on outliers


class Finding(NamedTuple):
    claim: str
    agrees: bool | None  # None: no runs to tell
    words: str


class Value(NamedTuple):
    """A mean over seeds, with its standard error where there is more than one."""

    mean: float
    error: float | None
    seeds: int

    @classmethod
    def from_values(cls, values: Iterable[float]) -> "Value":
        found = list(values)
        return cls(fmean(found), stdev(found) / math.sqrt(len(found)) if len(found) > 1 else None, len(found))

    def __str__(self) -> str:
        return f"{self.mean:.3f}" + ("" if self.error is None else f" ± {self.error:.3f}")


def paper_comparison(results: Sequence[Result]) -> list[Finding]:
    """Of runs of one preset, of any experiments."""
    found: list[Finding] = []
    by_name: dict[str, list[Result]] = {}
    for result in results:
        by_name.setdefault(result.run.experiment, []).append(result)
    if "ood-mnist" in by_name:
        found += _table_1(ood_page.grouped(by_name["ood-mnist"]))
    for name, words in (
        ("fgsm-mnist", "MNIST"),
        ("fgsm-fashion", "Fashion-MNIST"),
        ("fgsm-cifar", "CIFAR-10"),
    ):
        if name in by_name:
            found += _attacks(fgsm_page.grouped(by_name[name]), words)
    if "fgsm-samples" in by_name:
        found += _samples(fgsm_page.grouped(by_name["fgsm-samples"]))
    if "fgsm-strong" in by_name:
        found += _strong(fgsm_page.grouped(by_name["fgsm-strong"]))
    return found


def above(claim: str, own: Value | None, others: Mapping[str, Value]) -> Finding:
    """Is our own number above every other? Words name those it is not above, or the nearest one."""
    if own is None or not others:
        return Finding(claim, None, "no finished runs to tell")
    missed = {name: value for name, value in others.items() if own.mean <= value.mean}
    nearest = max(others, key=lambda name: others[name].mean)
    words = f"{own}; "
    if missed:
        words += "not above " + ", ".join(
            f"{name} ({value})" for name, value in sorted(missed.items(), key=lambda pair: -pair[1].mean)
        )
        kept = [name for name in others if name not in missed]
        words += f"; above {', '.join(kept)}" if kept else "; above none"
    else:
        words += f"above all {len(others)}, nearest {nearest} ({others[nearest]})"
    return Finding(claim, not missed, words + _scatter(own, others))


def _scatter(own: Value, others: Mapping[str, Value]) -> str:
    """Who is too near to be told apart from our own number: within two standard errors of the difference."""
    if own.error is None or any(value.error is None for value in others.values()):
        return "; some with one seed, whose scatter is not known"
    near = [
        name
        for name, v in others.items()
        if abs(own.mean - v.mean) < 2 * math.hypot(own.error, v.error or 0.0)
    ]
    return f"; within the scatter of seeds: {', '.join(near)}" if near else ""


def _table_1(groups: ood_page.Group) -> list[Finding]:
    paper = ood_page.paper_table(TABLE)

    def value(label: str, *path: str) -> Value | None:
        return (
            Value.from_values(ood_page.at(*path)(metrics) for metrics in groups[label])
            if label in groups
            else None
        )

    auroc = {label: value(label, "notmnist", "auroc") for label in groups}
    baselines = {name: v for name in paper if name != "vb-cdn" and (v := auroc.get(name)) is not None}
    found = [
        above(
            f"Table 1: AUROC of {words} above VMG, MNF, MC-dropout, Deep Ensemble and noisy K-FAC",
            auroc.get(label),
            baselines,
        )
        for label, words in (
            ("vb-cdn, published", "VB-CDN in the published form"),
            ("vb-cdn", "the default VB-CDN without far noise"),
            ("vb-cdn + far noise", "the default VB-CDN"),
        )
    ]
    missing = [name for name in paper if name != "vb-cdn" and name not in baselines]
    if missing:
        found = [
            finding._replace(words=f"{finding.words}; no runs of {', '.join(missing)}") for finding in found
        ]
    for name, numbers in paper.items():
        label = "vb-cdn, published" if name == "vb-cdn" else name
        paths = (("mmc_in",), ("notmnist", "mmc_out"), ("notmnist", "auroc"))
        ours = [value(label, *path) for path in paths]
        claim = f"Table 1: {label} within {CLOSE} of the paper's MMC-in, MMC-out and AUROC"
        known = [v for v in ours if v is not None]
        if len(known) < len(paths):
            found.append(Finding(claim, None, "no finished runs to tell"))
            continue
        pairs = list(zip(("MMC-in", "MMC-out", "AUROC"), known, numbers, strict=True))
        words = ", ".join(
            f"{word} {v} (paper {theirs:.3f}, {v.mean - theirs:+.3f})" for word, v, theirs in pairs
        )
        found.append(Finding(claim, all(abs(v.mean - theirs) <= CLOSE for _, v, theirs in pairs), words))
    order = [
        name
        for name in sorted(paper, key=lambda name: -paper[name][2])
        if name == "vb-cdn" or name in baselines
    ]
    own = auroc.get("vb-cdn, published")
    if own is not None and len(order) == len(paper):
        ours_by = {**baselines, "vb-cdn": own}
        mine = sorted(order, key=lambda name: -ours_by[name].mean)
        words = f"ours: {', '.join(f'{name} {ours_by[name].mean:.3f}' for name in mine)}; paper: "
        words += ", ".join(f"{name} {paper[name][2]:.3f}" for name in order)
        found.append(
            Finding("Table 1: the whole order by AUROC, VB-CDN in the published form", mine == order, words)
        )
    return found


def _curve(found: Sequence[dict[str, Any]], protocol: str, key: str, place: int) -> Value | None:
    values = [metrics[protocol][key][place] for metrics in found if protocol in metrics]
    return Value.from_values(values) if values else None


def _attacks(groups: fgsm_page.Groups, words: str) -> list[Finding]:
    def values(protocol: str, key: str, place: int) -> dict[str, Value]:
        return {
            label: v
            for label, found in groups.items()
            if (v := _curve(found, protocol, key, place)) is not None
        }

    found = []
    cdns = [label for label in groups if "cdn" in label]
    for protocol in ("published", "sound"):
        for strength, place in AT.items():
            numbers = values(protocol, "accuracy", place)
            others = {label: v for label, v in numbers.items() if "cdn" not in label}
            for label in cdns:
                claim = f"{words}, protocol {protocol}: accuracy of {label} at strength {strength:g} above every baseline"
                found.append(above(claim, numbers.get(label), others))
    for protocol in ("published", "sound"):
        numbers = values(protocol, "entropy", AT[0.3])
        others = {label: v for label, v in numbers.items() if "cdn" not in label and label not in SEEN}
        for label in cdns:
            claim = f"{words}, protocol {protocol}: entropy of {label} at strength 0.3 above every baseline that saw no outliers"
            found.append(above(claim, numbers.get(label), others))
    return found


def _samples(groups: fgsm_page.Groups) -> list[Finding]:
    """Figure 4: with ten draws in training, accuracy under the published attack stays above a level at every strength."""
    paper: dict[str, Any] = json.loads(files("compound.experiments").joinpath("published.json").read_text())[
        "paper"
    ]
    found = []
    for method, form in product(("ml-cdn", "vb-cdn"), (", published", "")):
        level = float(paper["fgsm_mnist_10_training_samples"][method])
        claim = f"Figure 4, protocol published: accuracy of {method}{form} with 10 draws in training above {level} at every strength"
        own = groups.get(f"{method}{form}, S=10")
        if not own:
            found.append(Finding(claim, None, "no finished runs to tell"))
            continue
        lowest, sound = (_lowest(own, protocol) for protocol in ("published", "sound"))
        found.append(Finding(claim, lowest.mean > level, f"lowest {lowest}; {sound} under the sound attack"))
    return found


def _strong(groups: fgsm_page.Groups) -> list[Finding]:
    """Figure 5: images averaged over many passes cost the CDNs little. And ours: is that so when the gradients are right?"""
    found = []
    for label in (label for label in groups if "cdn" in label):
        one, many, sound = (
            _curve(groups[label], name, "accuracy", AT[0.3])
            for name in ("published, 1 passes", "published, 100 passes", "sound, 100 draws")
        )
        if one is None or many is None or sound is None:
            continue
        claim = f"Figure 5: accuracy of {label} at strength 0.3 within {MARGIN} of one pass with images averaged over 100"
        found.append(
            Finding(
                claim,
                many.mean > one.mean - MARGIN,
                f"{one} with one, {many} with 100; {sound} under the sound attack",
            )
        )
    return found


def _lowest(found: Sequence[dict[str, Any]], protocol: str) -> Value:
    """The mean accuracy at the strength where it is lowest."""
    curves = [metrics[protocol]["accuracy"] for metrics in found]
    return min(
        (Value.from_values(values) for values in zip(*curves, strict=True)), key=lambda value: value.mean
    )
