"""The page of the images experiment: a table for each data set, and claims about the compound head."""

from collections.abc import Sequence
from typing import Any

from compound.experiments.mean_tables import Numbers, claims_about, mean_of, mean_table
from compound.experiments.runs import Result
from compound.report.page import Claim, Page

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
SCORES = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE"}
AREAS = {"auroc": "entropy", "auroc_score": "score"}  # by what outliers are told from test images
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
        "AUROC is the probability that an outlier has a larger predictive entropy, or a larger "
        "out-of-distribution score, than a test image. The score is the one that `is_ood` compares with its "
        "threshold: distances of features and pixels, and the predictive. Calibrated: temperature and far "
        "noise on features and pixels, fitted to held-out training images. Limits are for the score; on "
        "CIFAR-10 they are the plain network's numbers, its entropy's AUROC."
    )
    claims: list[Claim] = []
    for data, title in TITLES.items():
        chosen = [result for result in results if result.run.data == data]
        if not chosen:
            continue
        page.heading(title)
        rows: dict[str, list[Numbers]] = {}
        for result in chosen:
            for form, label in FORMS.items():
                rows.setdefault(result.run.method + label, []).append(flat(result.metrics[form]))
        names = [name for runs in rows.values() for name in runs[0]]
        mean_table(page, "head", {name: column(name) for name in dict.fromkeys(names)}, rows)
        claims += _claims(data, title, rows)
    page.claims(claims)
    return claims


def flat(numbers: dict[str, Any]) -> Numbers:
    """Scores of the test images, and AUROCs of outliers, as one mapping."""
    areas = {
        f"{name} {area}": float(numbers[name][area])
        for name in SETS
        if name in numbers
        for area in AREAS
        if area in numbers[name]
    }
    return {name: float(numbers[name]) for name in SCORES} | areas


def column(name: str) -> str:
    """The title of a column of `flat` numbers."""
    if name in SCORES:
        return SCORES[name]
    outliers, area = name.split()
    return f"AUROC {SETS[outliers]}, {AREAS[area]}"


def _claims(data: str, title: str, rows: dict[str, list[Numbers]]) -> list[Claim]:
    """The compound head against limits; on CIFAR-10 against the plain network."""
    compound, plain = (rows.get(name, []) for name in ("ml-cdn, calibrated", "map"))
    limits: dict[str, Any] = dict(LIMITS.get(data, {}))
    if not limits and plain:
        limits = {name: mean_of(plain, name) for name in ("nll", "ece")}
        limits["svhn"] = mean_of(plain, "svhn auroc")
        accuracy = mean_of(plain, "accuracy")
        limits["accuracy"] = None if accuracy is None else accuracy.mean - ACCURACY_LOSS
    claims = []
    for name, limit in limits.items():
        key = f"{name} auroc_score" if name in SETS else name
        text = f"{title}: {column(key)}"
        claims += claims_about(text, mean_of(compound, key), limit, name in ("nll", "ece"))
    return claims
