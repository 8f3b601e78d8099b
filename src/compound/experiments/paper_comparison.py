"""Which statements of the paper hold for our results, with the numbers compared."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from compound.experiments.fgsm import page as fgsm_page
from compound.experiments.forms import Groups, ModelForm
from compound.experiments.identity import PUBLISHED
from compound.experiments.means import Mean
from compound.experiments.ood import page as ood_page
from compound.experiments.published import paper_accuracy_bounds, paper_table_1
from compound.experiments.runs import Result

CLOSE = 0.02  # largest difference of a baseline from a number of the paper that counts as agreement
CDN_CLOSE = (0.01, 0.04, 0.006)  # of the paper's CDN: MMC-in, MMC-out, AUROC
MARGIN = 0.1  # what the paper calls "only marginally decreased"
AT = {0.3: 3, 1.0: 10}  # strength -> index in a curve
NO_RUNS = "no finished runs"
ATTACKED = {"fgsm-mnist": "MNIST", "fgsm-fashion": "Fashion-MNIST", "fgsm-cifar": "CIFAR-10"}
CDN_PUBLISHED = ModelForm("ml-cdn", PUBLISHED)  # the row "CDN" of table 1
VB_CDN, VB_CDN_PUBLISHED = ModelForm("vb-cdn"), ModelForm("vb-cdn", PUBLISHED)
Group = Sequence[dict[str, Any]]  # metrics of a form, one entry per seed
BASELINES = "VMG, MNF, MC-dropout, Deep Ensemble and noisy K-FAC"


class Finding(NamedTuple):
    """Whether one statement of the paper holds for our results."""

    claim: str
    agrees: bool | None  # None: no runs
    detail: str  # the numbers compared


def paper_comparison(results: Sequence[Result]) -> list[Finding]:
    """A finding for each statement about the experiments among the results, which are of one preset."""
    by_name: dict[str, list[Result]] = {}
    for result in results:
        by_name.setdefault(result.run.experiment, []).append(result)
    findings: list[Finding] = []
    if "ood-mnist" in by_name:
        findings += _table_1(ood_page.grouped(by_name["ood-mnist"]))
    for name, data in ATTACKED.items():
        if name in by_name:
            findings += _attacks(fgsm_page.grouped(by_name[name]), data)
    if "fgsm-samples" in by_name:
        findings += _figure_4(fgsm_page.grouped(by_name["fgsm-samples"]))
    if "fgsm-strong" in by_name:
        findings += _figure_5(fgsm_page.grouped(by_name["fgsm-strong"]))
    return findings


def above(claim: str, value: Mean | None, others: Mapping[str, Mean]) -> Finding:
    """Whether `value` is above all `others`; the detail names those it is not above, or the nearest one."""
    if value is None or not others:
        return Finding(claim, None, NO_RUNS)
    ranked = sorted(others.items(), key=lambda item: -item[1].mean)
    not_below = [f"{name} ({other.text()})" for name, other in ranked if value.mean <= other.mean]
    if not_below:
        below = [name for name, other in others.items() if value.mean > other.mean]
        detail = f"not above {', '.join(not_below)}; above {', '.join(below) or 'none'}"
    else:
        name, other = ranked[0]
        detail = f"above all {len(others)}, nearest {name} ({other.text()})"
    return Finding(claim, not not_below, f"{value.text()}; {detail}{_within_scatter(value, others)}")


def _within_scatter(value: Mean, others: Mapping[str, Mean]) -> str:
    """Text that names the others whose difference from `value` is below two standard errors; or empty."""
    if value.error is None or any(other.error is None for other in others.values()):
        return "; some with one seed, whose scatter is not known"
    errors = {name: math.hypot(value.error, other.error or 0.0) for name, other in others.items()}
    near = [name for name, other in others.items() if abs(value.mean - other.mean) < 2 * errors[name]]
    return f"; within the scatter of seeds: {', '.join(near)}" if near else ""


def _table_1(groups: Groups) -> list[Finding]:
    """Whether CDNs are above the baselines, numbers are close to the paper's, and the order is the same."""
    paper = paper_table_1()
    auroc = {form: ood_page.mean_of(group, "notmnist", "auroc") for form, group in groups.items()}
    names = [name for name in paper if name != CDN_PUBLISHED.method]
    baselines = {name: auroc[ModelForm(name)] for name in names if ModelForm(name) in auroc}
    missing = [name for name in names if name not in baselines]
    findings = []
    for form, title in (
        (CDN_PUBLISHED, "ML-CDN in the published form"),
        (VB_CDN_PUBLISHED, "VB-CDN in the published form"),
        (VB_CDN, "the default VB-CDN without far noise"),
        (VB_CDN._replace(far_noise=True), "the default VB-CDN"),
    ):
        finding = above(f"Table 1: AUROC of {title} above {BASELINES}", auroc.get(form), baselines)
        if missing:
            finding = finding._replace(detail=f"{finding.detail}; no runs of {', '.join(missing)}")
        findings.append(finding)
    row = paper[CDN_PUBLISHED.method]
    findings += [
        _close_to_paper(form, groups.get(form), row, CDN_CLOSE) for form in (CDN_PUBLISHED, VB_CDN_PUBLISHED)
    ]
    for name in names:
        findings.append(_close_to_paper(ModelForm(name), groups.get(ModelForm(name)), paper[name]))
    if CDN_PUBLISHED in auroc and not missing:
        findings.append(_same_order({**baselines, CDN_PUBLISHED.method: auroc[CDN_PUBLISHED]}, paper))
    return findings


def _close_to_paper(
    form: ModelForm, group: Group | None, paper: Sequence[float], close: Sequence[float] = (CLOSE,) * 3
) -> Finding:
    """Whether MMC-in, MMC-out and AUROC, means over `group`, are within `close` of those in `paper`."""
    limits = f"{close[0]}" if len(set(close)) == 1 else ", ".join(map(str, close))
    row = "row CDN" if form.is_cdn else "row"
    claim = f"Table 1: {form} within {limits} of MMC-in, MMC-out and AUROC in the paper's {row}"
    if group is None:
        return Finding(claim, None, NO_RUNS)
    details = []
    agrees = True
    paths = ("mmc_in",), ("notmnist", "mmc_out"), ("notmnist", "auroc")
    for path, theirs, limit in zip(paths, paper, close, strict=True):
        ours = ood_page.mean_of(group, *path)
        difference = ours.mean - theirs
        agrees &= abs(difference) <= limit
        name = ood_page.metric_name(path[-1:])
        details.append(f"{name} {ours.text()} (paper {theirs:.3f}, {difference:+.3f})")
    return Finding(claim, agrees, ", ".join(details))


def _same_order(auroc: Mapping[str, Mean], paper: Mapping[str, Sequence[float]]) -> Finding:
    """Whether our AUROC by method ranks the methods as the AUROC of `paper_table_1` does."""
    theirs = sorted(paper, key=lambda name: -paper[name][2])
    ours = sorted(theirs, key=lambda name: -auroc[name].mean)
    detail = f"ours: {', '.join(f'{name} {auroc[name].mean:.3f}' for name in ours)}; "
    detail += f"paper: {', '.join(f'{name} {paper[name][2]:.3f}' for name in theirs)}"
    return Finding("Table 1: the order of all by AUROC, ML-CDN in the published form", ours == theirs, detail)


def _mean_at_strength(group: Group, protocol: str, measure: str, index: int) -> Mean | None:
    """Mean over seeds of a measure at one attack strength, the `index`-th of the curve; None without runs."""
    values = [metrics[protocol][measure][index] for metrics in group if protocol in metrics]
    return Mean.from_values(values) if values else None


def _attacks(groups: Groups, data: str) -> list[Finding]:
    """For each CDN under attack: whether accuracy and entropy are above those of all baselines."""

    def compare(
        protocol: str, measure: str, strength: float, others: Sequence[ModelForm], title: str
    ) -> list[Finding]:
        index = AT[strength]
        means = {form: _mean_at_strength(group, protocol, measure, index) for form, group in groups.items()}
        baselines = {str(form): mean for form in others if (mean := means[form]) is not None}
        claim = f"{data}, protocol {protocol}: {measure} of {{}} at strength {strength:g} above every {title}"
        return [above(claim.format(form), means[form], baselines) for form in groups if form.is_cdn]

    baselines = [form for form in groups if not form.is_cdn]
    unaware = [form for form in baselines if not form.saw_outliers]
    findings = []
    for protocol, strength in product(("published", "sound"), AT):
        findings += compare(protocol, "accuracy", strength, baselines, "baseline")
    for protocol in ("published", "sound"):
        findings += compare(protocol, "entropy", 0.3, unaware, "baseline that saw no outliers")
    return findings


def _figure_4(groups: Groups) -> list[Finding]:
    """For each CDN trained with ten samples: whether accuracy under attack stays above the paper's bound."""
    findings = []
    for method, variant in product(("ml-cdn", "vb-cdn"), (PUBLISHED, "")):
        bound = float(paper_accuracy_bounds()[method])
        form = ModelForm(method, variant)
        claim = (
            f"Figure 4, protocol published: accuracy of {form} with 10 samples in training above {bound} at "
            "every strength"
        )
        group = groups.get(form._replace(n_samples=10))
        if not group:
            findings.append(Finding(claim, None, NO_RUNS))
            continue
        lowest, sound = (_lowest_accuracy(group, protocol) for protocol in ("published", "sound"))
        detail = f"lowest {lowest.text()}; {sound.text()} under the sound attack"
        findings.append(Finding(claim, lowest.mean > bound, detail))
    return findings


def _figure_5(groups: Groups) -> list[Finding]:
    """For each CDN: whether averaging the attack over 100 passes lowers its accuracy by less than MARGIN."""
    findings = []
    for form in (form for form in groups if form.is_cdn):
        one, many, sound = (
            _mean_at_strength(groups[form], name, "accuracy", AT[0.3])
            for name in ("published, 1 passes", "published, 100 passes", "sound, 100 draws")
        )
        if one is None or many is None or sound is None:
            continue
        claim = (
            f"Figure 5: accuracy of {form} at strength 0.3 within {MARGIN} of one pass with images averaged "
            "over 100"
        )
        detail = f"{one.text()} with one, {many.text()} with 100; {sound.text()} under the sound attack"
        findings.append(Finding(claim, many.mean > one.mean - MARGIN, detail))
    return findings


def _lowest_accuracy(group: Group, protocol: str) -> Mean:
    """The lowest accuracy of a curve: the mean over seeds at the strength where that mean is lowest."""
    curves = [metrics[protocol]["accuracy"] for metrics in group]
    return min((Mean.from_values(values) for values in zip(*curves, strict=True)), key=lambda mean: mean.mean)
