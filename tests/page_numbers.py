"""Put measured numbers into pages: README.md and results/claims.md, from the files of results/.

    python tests/page_numbers.py [--check]

Text between markers such as <!-- ood-mnist: begin --> and <!-- ood-mnist: end --> is written anew, by the
function of FRAGMENTS with that name. results/claims.md is written from results/claims.toml. `--check` writes
nothing, and fails if a page would change.
"""

import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from regenerate import between

from compound.experiments.forms import Groups, ModelForm
from compound.experiments.identity import Run
from compound.experiments.ood.page import grouped
from compound.experiments.paper_comparison import Finding, paper_comparison
from compound.experiments.published import paper_table_1, paper_weight_variances
from compound.experiments.runs import Result

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
PAGES = (ROOT / "README.md",)  # pages with markers
CLAIMS = RESULTS / "claims.md"
SETS = ("notmnist", "fashion-mnist", "omniglot", "flipped")
COLUMNS = (  # of README's table
    *("", "accuracy", "NLL", "MMC-in", "MMC-out"),
    *("AUROC notMNIST", "Fashion-MNIST", "Omniglot", "digits upside down"),
)
PEERS = ("catboost", "catboost-rmse", "lightgbm", "hist-gradient-boosting", "ngboost", "linear")


@cache
def content(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / name).read_text())


def results(names: Iterable[str]) -> list[Result]:
    """The runs of files of results/, without arrays."""
    return [
        Result(Run.from_config(run["config"]), run["metrics"], {}, run["record"])
        for name in names
        for run in content(name)["runs"]
    ]


def commits(name: str) -> str:
    """The commits of the runs of a file, shortened."""
    return ", ".join(dict.fromkeys(run["record"]["commit"][:7] for run in content(name)["runs"]))


def row(cells: Iterable[str]) -> str:
    return re.sub(r" +", " ", f"| {' | '.join(cells)} |")


# fragments of README.md


def ood_table() -> str:
    """Accuracy, likelihood, confidence and AUROC of some forms on MNIST, means over seeds."""
    groups: Groups = grouped(results(["ood-mnist-paper.json"]))
    lines = [row(COLUMNS), row(["---"] * len(COLUMNS))]
    paper = (f"{number:.3f}" for number in paper_table_1()["ml-cdn"])
    lines.append(row(["the paper's CDN", "", "", *paper, "", "", ""]))
    for name, form in {
        "`ml-cdn`": ModelForm("ml-cdn", far_noise=True),
        "`ml-cdn` without far noise": ModelForm("ml-cdn"),
        "`vb-cdn`": ModelForm("vb-cdn", far_noise=True),
        "`map`, a plain network": ModelForm("map"),
        "`map` with far noise": ModelForm("map", far_noise=True),
        "`deep-ensemble`": ModelForm("deep-ensemble"),
        "`deep-ensemble` with far noise": ModelForm("deep-ensemble", far_noise=True),
    }.items():
        group = groups[form]

        def mean(*path: str, group: list[dict[str, Any]] = group) -> float:
            return fmean(m[path[0]] if len(path) == 1 else m[path[0]][path[1]] for m in group)

        numbers = [
            mean("nll"),
            mean("mmc_in"),
            mean("notmnist", "mmc_out"),
            *(mean(s, "auroc") for s in SETS),
        ]
        lines.append(row([name, f"{mean('accuracy'):.1%}", *(f"{v:.3f}" for v in numbers)]))
    seeds = {len(groups[ModelForm(m)]) for m in ("ml-cdn", "vb-cdn", "map", "deep-ensemble")}
    return "\n\n" + "\n".join(lines) + f"\n\nMeans over {count(min(seeds))} seeds. "


def tables_sentence() -> str:
    """How many tables the present defaults win, by means over the splits that `ml-cdn` has finished."""
    runs = {(r.run.data, r.run.method, r.run.seed): r.metrics for r in results(["tables-paper.json"])}
    ours: dict[str, dict[str, float]] = {}
    peers: dict[str, list[dict[str, float]]] = {}
    for table in dict.fromkeys(data for data, _, _ in runs):
        splits = sorted(seed for data, method, seed in runs if (data, method) == (table, "ml-cdn"))
        methods = [m for m in PEERS if (table, m, 0) in runs]
        ours[table] = mean_metrics([runs[table, "ml-cdn", split] for split in splits])
        peers[table] = [mean_metrics([runs[table, m, split] for split in splits]) for m in methods]

    def best(table: str, name: str) -> float:
        return min(m[name] for m in peers[table] if name in m)

    targets = [t for t in ours if "nll" in ours[t]]
    classes = [t for t in ours if "log_loss" in ours[t]]
    nll = sum(ours[t]["nll"] < best(t, "nll") for t in targets)
    loss = sum(ours[t]["log_loss"] < best(t, "log_loss") for t in classes)
    above = [ours[t]["rmse"] / best(t, "rmse") for t in targets if ours[t]["rmse"] > best(t, "rmse")]
    n_targets, n_classes = count(len(targets)), count(len(classes))
    return (
        "the negative log-likelihood is below that of CatBoost, LightGBM, NGBoost and scikit-learn's trees "
        f"on {count(nll)} of {n_targets} with a number to predict, and the log loss on {count(loss)} of "
        f"{n_classes} with classes; the best of them has a lower root mean squared error on "
        f"{count(len(above))} of the {n_targets}, by up to {1 - 1 / max(above):.0%}"
    )


def mean_metrics(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean over runs of each number that all of them have."""
    names = [name for name in runs[0] if all(isinstance(run.get(name), int | float) for run in runs)]
    return {name: fmean(run[name] for run in runs) for name in names}


def posthoc_sentence() -> str:
    """AUROC of a trained network before and after `posthoc`, from the page's first table."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (RESULTS / "posthoc.md").read_text().splitlines()
        if line.startswith(("| plain ", "| `posthoc`, the default"))
    ]
    (plain, default), columns = rows[:2], (3, 4)
    before, after = ([float(cells[k]) for k in columns] for cells in (plain, default))
    return (
        f"the AUROC of Fashion-MNIST rises from {before[0]:.2f} to {after[0]:.3f} and that of letters from "
        f"{before[1]:.2f} to {after[1]:.3f}"
    )


def count(number: int) -> str:
    """Small numbers in words."""
    words = [
        "no",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
    ]
    return words[number] if number < len(words) else str(number)


FRAGMENTS: dict[str, Callable[[], str]] = {
    "ood-mnist": ood_table,
    "tables": tables_sentence,
    "posthoc": posthoc_sentence,
}


# results/claims.md


def claims_page() -> str:
    """Every claim of the paper: what was measured here, whether it agrees, and why not."""
    lines = [
        "# The paper's claims, one by one",
        "",
        "Written by `python tests/page_numbers.py` from the files of this folder and from `claims.toml`.",
        "Agrees: yes, no, or - where there are no runs. Numbers are means ± standard errors over seeds;",
        "without an error they are of one seed, whose scatter is not known.",
    ]
    for section in tomllib.loads((RESULTS / "claims.toml").read_text())["section"]:
        files = section.get("files") or [section["file"]]
        findings = bars(section["file"]) if "bars" in section else comparison(files, tuple(section["starts"]))
        sources = "; ".join(f"`{name}` of {commits(name)}" for name in files)
        lines += ["", f"## {section['title']}", "", section["paper"], "", f"From {sources}.", ""]
        lines += [row(("claim", "agrees", "measured", "why")), row(["---"] * 4)]
        for claim, agrees, detail in findings:
            why = next((text for start, text in section["why"] if claim.startswith(start)), "")
            lines.append(row((claim, {True: "yes", False: "**no**", None: "-"}[agrees], detail, why)))
    return "\n".join([*lines, "", *variances(), ""])


def bars(name: str) -> list[Finding]:
    """The claims that an experiment recorded with its runs."""
    return [
        Finding(bar["claim"], bar["held"], f"{bar['value']:.3g} ({bar['sense']} {bar['limit']:g})")
        for bar in content(name)["bars"]
    ]


def comparison(names: Sequence[str], starts: tuple[str, ...]) -> list[Finding]:
    """Findings from the runs of these files; those of a later file replace runs of the same form."""
    latest: dict[tuple[str, str, str], str] = {}
    for name in names:
        latest |= {_form(result): name for result in results([name])}
    runs = [result for name in names for result in results([name]) if latest[_form(result)] == name]
    findings = [finding for finding in paper_comparison(runs) if finding.claim.startswith(starts)]
    return [finding._replace(detail=_shorter(finding.detail)) for finding in findings]


def _form(result: Result) -> tuple[str, str, str]:
    return result.run.experiment, result.run.method, result.run.variant


def _shorter(detail: str) -> str:
    """A finding's numbers without what the page says once, and without the names that a value is above."""
    detail = detail.replace("; some with one seed, whose scatter is not known", "")
    return re.sub(r"; above (?!all)[^;]*", "", detail)


def variances() -> list[str]:
    """The toy's average variances of weights, beside the paper's."""
    name = "toy-paper.json"
    runs = [r for r in results([name]) if "variances" in r.metrics]
    lines = [
        "## Average variances of weights on the toy sets, published form of VB-CDN",
        "",
        "Posterior above mixing on set 1; on set 2 mixing is larger on the left than on the right, and the "
        "posterior smaller than on set 1.",
        "",
        f"From `{name}` of {commits(name)}. Means over seeds of the means, and of the medians, "
        "over draws or weights.",
        "",
        row(("variance", "paper", "mean", "median", "seeds")),
        row(["---"] * 5),
    ]
    for data in ("set_1", "set_2"):
        for part, paper in paper_weight_variances()[data].items():
            ours = [r.metrics["variances"][part] for r in runs if r.run.data.replace(" ", "_") == data]
            mean, median = (fmean(entry[kind] for entry in ours) for kind in ("mean", "median"))
            words = f"{data.replace('_', ' ')}, {part.replace('_', ', ')}"
            lines.append(row((words, f"{paper:.3f}", f"{mean:.3f}", f"{median:.3f}", str(len(ours)))))
    return lines


def filled(page: str) -> str:
    """The page with every fragment written anew."""
    for name in dict.fromkeys(re.findall(r"<!-- ([\w-]+): begin -->", page)):
        page = between(page, name, FRAGMENTS[name]())
    return page


def pages() -> dict[Path, str]:
    """What every page should say."""
    return {**{page: filled(page.read_text()) for page in PAGES}, CLAIMS: claims_page()}


def main(arguments: list[str]) -> int:
    stale = {path: text for path, text in pages().items() if not path.exists() or path.read_text() != text}
    for path, text in stale.items():
        if "--check" not in arguments:
            path.write_text(text)
        print(f"{'stale' if '--check' in arguments else 'written'}: {path.relative_to(ROOT)}")
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
