"""The page of all finished runs: nothing is mixed, and findings follow from the numbers."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compound import experiments
from compound.experiments.identity import ONE_MEMBER, PUBLISHED, Run
from compound.experiments.launch import run_grid
from compound.experiments.means import Mean
from compound.experiments.ood.select import with_best_lambdas
from compound.experiments.overview import make_sections, overview
from compound.experiments.paper_comparison import above, paper_comparison
from compound.experiments.runs import Outcome, Result, perform, read
from compound.experiments.status import run_states

METHODS = ("vb-cdn", "ml-cdn", "vmg", "mnf", "mc-dropout", "deep-ensemble", "noisy-kfac")
PAPER = {"vmg": 0.964, "mnf": 0.977, "mc-dropout": 0.928, "deep-ensemble": 0.862, "noisy-kfac": 0.848}


def ood(run: Run, auroc: float) -> dict:
    more = dict.fromkeys(("auroc_confidence", "auroc_epistemic", "aupr", "fpr95"), 0.5)
    ood_sets = {
        name: {"mmc_out": 0.43, "auroc": auroc, **more}
        for name in ("notmnist", "fashion-mnist", "omniglot", "flipped", "noise")
    }
    metrics = {"accuracy": 0.98, "nll": 0.1, "brier": 0.1, "ece": 0.1, "mmc_in": 0.978, **ood_sets}
    plain_only = run.variant == PUBLISHED or "cdn" not in run.method
    return {"plain": metrics} if plain_only else {"plain": metrics, "far": metrics}


def auroc_of(run: Run) -> float:
    return PAPER.get(run.method, 0.993)


def work(run: Run, context) -> Outcome:
    if run.experiment.startswith("select"):
        best = run.options.get("lam", 1e-5) == 1e-7
        return Outcome({"lam": run.options.get("lam", 1e-5), "accuracy": 0.9 + 0.05 * best, "nll": 0.1}, {})
    if run.experiment == "fgsm-mnist":
        curve = {
            "accuracy": [1.0 - 0.05 * k - 0.1 * ("cdn" not in run.method) for k in range(11)],
            "entropy": [0.1 * k for k in range(11)],
        }
        return Outcome({"published": curve, "sound": {**curve, "accuracy": [0.5] * 11}, "silent": 0.0}, {})
    metrics = ood(run, auroc_of(run))
    entropies = {
        f"entropy {form} {name}": np.linspace(0, 2, 500) for form in metrics for name in ("mnist", "notmnist")
    }
    return Outcome(metrics, entropies)


def results(name: str, preset: str, seeds: int, root: Path, methods=METHODS) -> list[Result]:
    return [perform(run, work, root) for run in experiments.plan(name, preset, seeds, methods)]


def test_page_holds_every_section_and_needs_nothing(tmp_path: Path):
    made = [
        *results("ood-mnist", "paper", 2, tmp_path / "runs"),
        *results("ood-mnist", "quick", 1, tmp_path / "runs", ["vmg"]),
    ]
    made += results("fgsm-mnist", "paper", 1, tmp_path / "runs", ["ml-cdn", "vmg"])
    shown = overview(tmp_path / "runs", tmp_path / "page")
    assert shown.runs == len(made) and not shown.errors
    text = (tmp_path / "page" / "index.html").read_text()
    assert text.index("entropy of letters (preset paper)") < text.index("entropy of letters (preset quick)")
    assert "What agrees with the paper" in text and "://" not in text.replace("http://www.w3.org", "")
    names = {path.name for path in (tmp_path / "page").iterdir()}
    assert {
        "paper-ood-mnist.png",
        "paper-ood-mnist.csv",
        "quick-ood-mnist.csv",
        "paper-fgsm-mnist.csv",
        "paper-ood-mnist-table-1.csv",
    } < names
    assert len((tmp_path / "page" / "quick-ood-mnist.csv").read_text().splitlines()) == 1 + 2 * 200  # thinned
    only = overview(tmp_path / "runs", tmp_path / "quick", "quick")
    assert only.runs == 1 and "preset paper" not in (tmp_path / "quick" / "index.html").read_text()
    with pytest.raises(ValueError, match="choose paper or quick"):
        overview(tmp_path / "runs", tmp_path / "page", "long")


def test_runs_with_other_options_are_not_mixed_in(tmp_path: Path):
    (grid,) = experiments.plan("ood-mnist", "paper", 1, ["vmg"])
    other = replace(grid, options={**grid.options, "samples": 7})
    odd = replace(grid, settings={**grid.settings, "steps": 77})
    unplanned = replace(grid, method="map", options={"widths": (50,)})
    for run in (grid, other, odd, unplanned):
        perform(run, work, tmp_path)
    sections, left_out = make_sections([grid, other, odd, unplanned], tmp_path)
    shown = {section.preset: [result.run.key for result in section.results] for section in sections}
    assert shown == {"paper": [unplanned.key, grid.key], "77 steps": [odd.key]} or shown == {
        "paper": [grid.key, unplanned.key],
        "77 steps": [odd.key],
    }
    assert [run.key for run in left_out] == [other.key]


def test_selected_lambda_replaces_the_default(tmp_path: Path):
    grid = experiments.plan("ood-mnist", "paper", 1, ["ml-cdn"])
    picked = with_best_lambdas(grid, {ONE_MEMBER: 1e-7, PUBLISHED: 1e-7})
    assert not {run.key for run in grid} & {run.key for run in picked}
    for run in (*grid, *picked):
        perform(run, work, tmp_path)
    assert {result.run.key for result in make_sections([*grid, *picked], tmp_path)[0][0].results} == {
        run.key for run in grid
    }
    choice = experiments.plan("select-mnist", "paper", 1)
    for run in choice:
        perform(run, work, tmp_path)
    sections, left_out = make_sections([*grid, *picked, *choice], tmp_path)
    assert {result.run.key for result in sections[0].results} == {run.key for run in picked}
    assert {run.key for run in left_out} == {run.key for run in grid}


def test_one_section_that_cannot_be_drawn_leaves_the_others(tmp_path: Path):
    results("ood-mnist", "paper", 1, tmp_path / "runs", ["vmg"])
    (bad,) = experiments.plan("fgsm-strong", "paper", 1, ["vmg"])
    perform(bad, lambda run, context: Outcome({"published": {}}, {}), tmp_path / "runs")
    shown = overview(tmp_path / "runs", tmp_path / "page")
    assert len(shown.errors) == 1 and "fgsm-strong (paper) could not be drawn" in shown.errors[0]
    assert "entropy of letters" in (tmp_path / "page" / "index.html").read_text()


def findings(name: str, of=work, methods=METHODS) -> dict[str, tuple]:
    made = [Result(run, of(run, None).metrics, {}, {}) for run in experiments.plan(name, "paper", 1, methods)]
    return {finding.claim: (finding.agrees, finding.detail) for finding in paper_comparison(made)}


def test_the_papers_own_numbers_agree_with_the_paper():
    by_claim = findings("ood-mnist")
    order = [value for claim, value in by_claim.items() if "above VMG" in claim or "order of all" in claim]
    assert len(order) == 5 and all(agrees for agrees, _ in order)
    limits = "within 0.01, 0.04, 0.006 of MMC-in, MMC-out and AUROC in the paper's row CDN"
    assert by_claim[f"Table 1: ml-cdn, published {limits}"][0] is True
    assert (
        by_claim["Table 1: vmg within 0.02 of MMC-in, MMC-out and AUROC in the paper's row"][0] is False
    )  # its MMC is not that of vb-cdn
    assert (
        "AUROC 0.964 (paper 0.964, +0.000)"
        in by_claim["Table 1: vmg within 0.02 of MMC-in, MMC-out and AUROC in the paper's row"][1]
    )


def test_a_baseline_above_is_named():
    def better(run: Run, context) -> Outcome:
        return Outcome(ood(run, 0.995 if run.method == "mnf" else auroc_of(run)), {})

    by_claim = findings("ood-mnist", better)
    (agrees, detail), *_ = (value for claim, value in by_claim.items() if "published form above" in claim)
    assert (
        agrees is False
        and "not above mnf (0.995)" in detail
        and "above vmg, mc-dropout, deep-ensemble, noisy-kfac" in detail
    )
    (agrees, detail) = by_claim["Table 1: the order of all by AUROC, ML-CDN in the published form"]
    assert agrees is False and detail.startswith("ours: mnf 0.995, ml-cdn 0.993")


@pytest.mark.parametrize("name", ["fgsm-mnist", "fgsm-fashion", "fgsm-cifar"])
def test_attacks_are_compared_under_both_protocols(name: str):
    attacked = [
        Result(run, work(run, None).metrics, {}, {})
        for run in experiments.plan("fgsm-mnist", "paper", 1, METHODS)
    ]
    by_claim = {
        f.claim: (f.agrees, f.detail)
        for f in paper_comparison([r._replace(run=replace(r.run, experiment=name)) for r in attacked])
    }
    accuracy = {claim: agrees for claim, (agrees, _) in by_claim.items() if "accuracy" in claim}
    assert all(agrees is ("protocol published" in claim) for claim, agrees in accuracy.items())
    assert len(accuracy) == 16  # four forms, two protocols, two strengths
    entropy = [value for claim, value in by_claim.items() if "entropy" in claim]
    assert len(entropy) == 8 and not any(agrees for agrees, _ in entropy)  # equal is not above


def test_numbers_within_the_scatter_of_seeds_are_named():
    value = Mean.from_values([0.90, 0.92])
    others = {"near": Mean.from_values([0.88, 0.90]), "far": Mean.from_values([0.5, 0.52])}
    assert (
        above("c", value, others).detail
        == "0.910 ± 0.010; above all 2, nearest near (0.890 ± 0.010); within the scatter of seeds: near"
    )
    assert "scatter is not known" in above("c", Mean.from_values([0.9]), others).detail
    assert above("c", None, others).agrees is None and above("c", value, {}).agrees is None


def test_figures_4_and_5_stand_beside_the_sound_attack():
    def attacked(run: Run, context) -> Outcome:
        low = 0.6 if run.options.get("samples") == 10 and run.variant == PUBLISHED else 0.1
        curves = {"published": [0.9, low, 0.8], "sound": [0.9, 0.2, 0.05]}
        strong = {
            "published, 1 passes": 11 * [0.705],
            "published, 100 passes": 11 * [low],
            "sound, 100 draws": 11 * [0.03],
        }
        return Outcome({name: {"accuracy": values} for name, values in {**curves, **strong}.items()}, {})

    four, five = (
        findings(name, attacked, ["ml-cdn", "vb-cdn", "vmg"]) for name in ("fgsm-samples", "fgsm-strong")
    )
    claim = (
        "Figure 4, protocol published: accuracy of vb-cdn, published with 10 samples in training above 0.5 "
        "at every strength"
    )
    assert four[claim] == (True, "lowest 0.600; 0.050 under the sound attack")
    assert [agrees for agrees, _ in four.values()] == [
        False,
        False,
        True,
        False,
    ]  # ml-cdn in two forms, vb-cdn in two
    claim = "Figure 5: accuracy of {} at strength 0.3 within 0.1 of one pass with images averaged over 100"
    assert five[claim.format("ml-cdn, published, S=10")] == (
        False,
        "0.705 with one, 0.600 with 100; 0.030 under the sound attack",
    )
    assert len(five) == 6 and not any(agrees for agrees, _ in five.values())


def flip(path: Path) -> None:
    """A flipped bit that JSON and zip would not notice by themselves."""
    content = bytearray(path.read_bytes())
    # a digit of a metric; the time of a file in the zip
    position = content.index(b"0.978") + 4 if path.suffix == ".json" else 12
    content[position] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["metrics.json", "arrays.npz", "config.json"])
@pytest.mark.parametrize(
    "damage",
    [flip, lambda path: path.write_bytes(b""), lambda path: path.write_bytes(path.read_bytes()[:-20])],
)
def test_a_damaged_run_is_named_and_the_others_are_shown(tmp_path: Path, name: str, damage):
    first, *others = results("ood-mnist", "paper", 1, tmp_path / "runs", ["vmg", "mnf"])
    path = tmp_path / "runs" / first.run.key / name
    if name == "config.json" and damage is flip:
        path.write_text(path.read_text().replace("vmg", "mnf"))
    else:
        damage(path)
    shown = overview(tmp_path / "runs", tmp_path / "page")
    assert shown.runs == len(others) and [
        first.run.key in line and "damaged" in line for line in shown.errors
    ] == [True]
    text = (tmp_path / "page" / "index.html").read_text()
    assert first.run.key in text and "Runs that failed" not in text
    if name == "metrics.json":
        (state,) = run_states([first.run], tmp_path / "runs")
        assert state.kind == "failed" and "damaged" in state.detail
    if name != "config.json":
        grid = run_grid([first.run, *(other.run for other in others)], None, tmp_path / "runs", jobs=1)
        assert len(grid.results) == len(others) and [failure.run for failure in grid.failures] == [first.run]


def test_runs_of_earlier_versions_have_no_checksums(tmp_path: Path):
    (made,) = results("ood-mnist", "paper", 1, tmp_path, ["vmg"])
    path = tmp_path / made.run.key / "metrics.json"
    content = json.loads(path.read_text())
    del content["sha256"], content["arrays"]
    path.write_text(json.dumps(content))
    again = read(made.run, tmp_path)
    assert again.metrics == made.metrics and again.arrays.keys() == made.arrays.keys()
