"""Monte Carlo error of an estimator's predictions at its default number of draws, against 20,000 draws.

    python tests/measurements/draw_errors.py [--tables computers txhousing wachurn] [--models FOLDER]

Root mean squares over rows and seeds: of mean, standard deviation and both bounds of the 90% interval in
units of the row's standard deviation; of probabilities p in units of sqrt(p (1 - p)), at least 0.02.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from compound import CompoundClassifier, CompoundRegressor, named_generator
from compound.datasets import tables
from compound.estimators.prediction import n_draws
from compound.estimators.validation import encode_table

EPOCHS, ROWS, SEEDS, MANY = 15, 150, 8, 20_000


def numbers(predictive: Any) -> Tensor:
    """Mean, std and bounds, (4, rows); or the probability of the first class, (1, rows)."""
    if hasattr(predictive, "probs"):
        return predictive.probs[:, 0].double().unsqueeze(0)
    return torch.stack([predictive.mean, predictive.std, *predictive.interval(0.9)])[..., 0].double()


def errors(estimator: Any, x: Tensor) -> list[float]:
    """Root mean squared errors of `numbers` for encoded rows."""
    model = estimator.model_
    exact = numbers(model.predict(x, named_generator(0, "many"), MANY, 1))
    unit = exact[1] if len(exact) > 1 else (exact * (1 - exact)).sqrt().clamp_min(0.02)
    predictives = (model.predict(x, named_generator(seed, "few"), *n_draws(model)) for seed in range(SEEDS))
    return (
        torch.stack([(numbers(p) - exact) / unit for p in predictives]).square().mean((0, 2)).sqrt().tolist()
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", nargs="*", default=["computers", "txhousing", "wachurn"])
    parser.add_argument("--models", type=Path, help="folder with fitted estimators, by table")
    options = parser.parse_args()
    for name in options.tables:
        split = tables.load(name, 0)
        kind = CompoundRegressor if tables.TABLES[name].kind == "regression" else CompoundClassifier
        path = options.models / name if options.models else None
        estimator = kind.load(path) if path else kind(max_epochs=EPOCHS, random_state=0).fit(split.x, split.y)
        x = encode_table(estimator, split.x_test[:ROWS])
        print(name, " ".join(f"{error:.4f}" for error in errors(estimator, x)), flush=True)
