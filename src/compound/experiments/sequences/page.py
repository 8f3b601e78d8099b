"""The page of the sequences experiment: a table for each data set, and claims about the compound network."""

from collections.abc import Sequence

from compound.experiments.mean_tables import Numbers, claims_about, mean_of, mean_table
from compound.experiments.runs import Result
from compound.report.page import Claim, Page

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
        by_method: dict[str, list[Numbers]] = {}
        for result in results:
            if result.run.data == data:
                by_method.setdefault(result.run.method, []).append(result.metrics)
        if not by_method:
            continue
        page.heading(title)
        first = {name: v for runs in by_method.values() for name, v in runs[0].items()}
        names = [name for name, value in first.items() if isinstance(value, float)]
        mean_table(page, "network", dict(zip(names, names, strict=True)), by_method)
        claims += _vowel_claims(by_method) if data == "vowels" else _demand_claims(by_method)
    page.claims(claims)
    return claims


def _vowel_claims(runs: dict[str, list[Numbers]]) -> list[Claim]:
    compound, plain, ensemble = (runs.get(name, []) for name in (COMPOUND, PLAIN, ENSEMBLE))
    accuracies = mean_of(compound, "accuracy, calibrated"), mean_of(plain, "accuracy")
    areas = mean_of(compound, "auroc, calibrated"), mean_of(ensemble, "auroc")
    return [
        *claims_about("accuracy beside a plain network", *accuracies),
        *claims_about("AUROC beside the ensemble", *areas),
    ]


def _demand_claims(runs: dict[str, list[Numbers]]) -> list[Claim]:
    compound, ensemble = (runs.get(name, []) for name in (COMPOUND, ENSEMBLE))
    coverage = mean_of(compound, "coverage")
    crps = mean_of(compound, "crps"), mean_of(ensemble, "crps")
    return [
        *claims_about("CRPS beside the ensemble", *crps, at_most=True),
        *claims_about("coverage of 90% intervals", coverage, COVERAGE[0]),
        *claims_about("coverage of 90% intervals", coverage, COVERAGE[1], at_most=True),
    ]
