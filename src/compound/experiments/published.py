"""Numbers from publications: the compound density network paper, and others for the UCI tables."""

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def published() -> dict[str, Any]:
    """The content of published.json: "paper" and "uci_regression". Callers must not change it."""
    content: dict[str, Any] = json.loads(files("compound.experiments").joinpath("published.json").read_text())
    return content


def paper_table_1() -> dict[str, list[float]]:
    """Method -> MMC-in, MMC-out, AUROC of MNIST against notMNIST, as in table 1 of the paper.

    The row "CDN" stands under "ml-cdn": the paper does not say which of the two it is, but calls ML-CDN
    "more confident than all other models" in distribution, and the row has the highest MMC-in.
    """
    rows: dict[str, list[float]] = published()["paper"]["table_1_mnist_notmnist"]["rows"]
    return {"ml-cdn" if name == "cdn" else name: row for name, row in rows.items()}


def paper_lambdas() -> tuple[float, ...]:
    """The values of λ of ml-cdn among which the paper selects."""
    return tuple(published()["paper"]["lambda_grid"])


def paper_weight_variances() -> dict[str, dict[str, float]]:
    """Toy data set ("set_1", "set_2") -> name of an average -> average variance of the weights of VB-CDN."""
    variances: dict[str, dict[str, float]] = published()["paper"]["toy_average_variance_vb_cdn"]
    return variances


def paper_accuracy_bounds() -> dict[str, float]:
    """Method -> lower bound of its accuracy at all attack strengths, trained with ten samples (figure 4)."""
    bounds: dict[str, float] = published()["paper"]["fgsm_mnist_10_training_samples"]
    return bounds


def uci_results() -> dict[str, Any]:
    """Method -> metric -> {"values": table -> [mean, standard error], "status"}.

    Status "seen": the numbers were read in their publication; "memory": they were not.
    """
    results: dict[str, Any] = published()["uci_regression"]["methods"]
    return results
