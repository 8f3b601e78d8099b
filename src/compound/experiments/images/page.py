"""The page of the images experiment: a table for each data set, and claims about the compound head."""

from collections.abc import Sequence
from typing import Any

from compound.experiments.means import Mean
from compound.experiments.runs import Result
from compound.report.page import Cell, Claim, Page

TITLES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10, first 20,000 images"}
SETS = {
    "notmnist": "notMNIST",
    "fashion-mnist": "Fashion-MNIST",
    "mnist": "MNIST",
    "omniglot": "Omniglot",
    "flipped": "upside down",
    "svhn": "SVHN",
    "gtsrb": "GTSRB",
}
SCORES = ("accuracy", "nll", "ece")
LIMITS: dict[str, dict[str, float]] = {  # AUROC by the set of outliers
    "mnist": {
        "accuracy": 0.992,
        "nll": 0.04,
        "notmnist": 0.999,
        "fashion-mnist": 0.997,
        "omniglot": 0.992,
        "flipped": 0.92,
    },
    "fashion-mnist": {"accuracy": 0.915, "mnist": 0.985, "notmnist": 0.995, "flipped": 0.88},
}
ACCURACY_LOSS = 0.003  # that CIFAR-10 may cost
FORMS = {"plain": "", "calibrated": ", calibrated"}


def draw_page(results: Sequence[Result], page: Page) -> list[Claim]:
    """Fill the page of the images experiment; return its claims."""
    page.text(
        "AUROC is the probability that an outlier has a larger predictive entropy than a test image. "
        "Calibrated: temperature and far noise on features and pixels, fitted to held-out training images. "
        "On CIFAR-10 the limits are the plain network's."
    )
    claims: list[Claim] = []
    for data, title in TITLES.items():
        chosen = [result for result in results if result.run.data == data]
        if not chosen:
            continue
        page.heading(title)
        sets = [name for name in chosen[0].metrics["plain"] if name in SETS]
        rows: list[list[Cell]] = []
        for method in dict.fromkeys(result.run.method for result in chosen):
            for form, label in FORMS.items():
                found = [result.metrics[form] for result in chosen if result.run.method == method]
                names = [*SCORES, *sets]
                rows.append([method + label, *(mean(found, name).text(4) for name in names)])
        page.table(("head", "accuracy", "NLL", "ECE", *(f"AUROC {SETS[name]}" for name in sets)), rows)
        claims += _claims(data, title, chosen)
    page.claims(claims)
    return claims


def value(numbers: dict[str, Any], name: str) -> float:
    """A score of the test images, or the AUROC of a set of outliers."""
    return float(numbers[name]["auroc"] if name in SETS else numbers[name])


def mean(found: Sequence[dict[str, Any]], name: str) -> Mean:
    return Mean.from_values(value(numbers, name) for numbers in found)


def _claims(data: str, title: str, results: Sequence[Result]) -> list[Claim]:
    """The compound head against limits; on CIFAR-10 against the plain network."""
    compound = [r.metrics["calibrated"] for r in results if r.run.method == "ml-cdn"]
    plain = [r.metrics["plain"] for r in results if r.run.method == "map"]
    if not compound:
        return []
    limits = LIMITS.get(data, {})
    if not limits and plain:
        limits = {name: mean(plain, name).mean for name in ("accuracy", "nll", "ece", "svhn")}
        limits["accuracy"] -= ACCURACY_LOSS
    return [
        Claim(
            f"{title}: {f'AUROC {SETS[name]}' if name in SETS else name}",
            mean(compound, name).mean,
            limit,
            "at most" if name in ("nll", "ece") else "at least",
        )
        for name, limit in limits.items()
    ]
