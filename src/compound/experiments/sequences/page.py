"""The page of the sequences experiment: a table for each data set, and claims about the compound network."""

from collections.abc import Sequence

from compound.experiments.means import Mean
from compound.experiments.runs import Result
from compound.report.page import Cell, Claim, Page

TITLES = {
    "vowels": "Japanese vowels: means over nine speakers, each left out in turn",
    "demand": "Electricity demand one day ahead",
}
COMPOUND, PLAIN, ENSEMBLE = "compound-gru", "gru", "gru-ensemble"
COVERAGE = (0.87, 0.93)


def draw_page(results: Sequence[Result], page: Page) -> list[Claim]:
    """Fill the page of the sequences experiment; return its claims."""
    page.text(
        "AUROC is the probability that an utterance of the speaker who was left out has a larger predictive "
        "entropy than one of the others. Calibrated: temperature and far noise on the features, fitted to "
        "held-out utterances. Demand is in gigawatts; 90% intervals are conformal to the 60 days before."
    )
    claims: list[Claim] = []
    for data, title in TITLES.items():
        chosen = [result for result in results if result.run.data == data]
        if not chosen:
            continue
        page.heading(title)
        methods = list(dict.fromkeys(result.run.method for result in chosen))
        names = [name for name, value in _all_metrics(chosen).items() if isinstance(value, float)]
        rows: list[list[Cell]] = []
        for method in methods:
            means = [_mean(chosen, method, name) for name in names]
            rows.append([method, *(None if mean is None else mean.text(4) for mean in means)])
        page.table(("network", *names), rows)
        claims += _vowel_claims(chosen) if data == "vowels" else _demand_claims(chosen)
    page.claims(claims)
    return claims


def _all_metrics(results: Sequence[Result]) -> dict[str, object]:
    return {name: value for result in results for name, value in result.metrics.items()}


def _mean(results: Sequence[Result], method: str, name: str) -> Mean | None:
    values = [r.metrics[name] for r in results if r.run.method == method and name in r.metrics]
    return Mean.from_values(values) if values else None


def _claim(text: str, mean: Mean | None, limit: Mean | float | None, at_most: bool = False) -> list[Claim]:
    if mean is None or limit is None:
        return []
    bound = limit.mean if isinstance(limit, Mean) else limit
    return [Claim(text, mean.mean, bound, "at most" if at_most else "at least")]


def _vowel_claims(results: Sequence[Result]) -> list[Claim]:
    accuracy = "accuracy, calibrated"
    auroc = _mean(results, ENSEMBLE, "auroc")
    return [
        *_claim(
            "accuracy beside a plain network",
            _mean(results, COMPOUND, accuracy),
            _mean(results, PLAIN, "accuracy"),
        ),
        *_claim("AUROC beside the ensemble", _mean(results, COMPOUND, "auroc, calibrated"), auroc),
    ]


def _demand_claims(results: Sequence[Result]) -> list[Claim]:
    coverage = _mean(results, COMPOUND, "coverage")
    return [
        *_claim(
            "CRPS beside the ensemble",
            _mean(results, COMPOUND, "crps"),
            _mean(results, ENSEMBLE, "crps"),
            at_most=True,
        ),
        *_claim("coverage of 90% intervals", coverage, COVERAGE[0]),
        *_claim("coverage of 90% intervals", coverage, COVERAGE[1], at_most=True),
    ]
