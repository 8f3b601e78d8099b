"""The methods of `compound bench --peers`: each fits a table and returns a function that predicts rows.

All predict a mean and a variance, LightGBM the mean alone. Boosted trees are those of the tables experiment:
1,000 trees at most, stopped early by a tenth of the rows. bayesian-torch's layers are a network of 50 hidden
units, trained for 2,000 steps of 200 rows and predicted with 20 draws.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch

from compound.estimators.columns import Array
from compound.estimators.encoder import Encoder
from compound.estimators.regressor import CompoundRegressor
from compound.experiments.tables import baselines
from compound.experiments.tables.baselines import Rows
from compound.models import Method
from compound.random import named_generator

Predict = Callable[[pd.DataFrame], object]
STEPS, BATCH, DRAWS, HIDDEN = 2000, 200, 20, 50  # of bayesian-torch's layers


def ml_cdn(x: pd.DataFrame, y: Array, draws: int | None = None, members: int | None = None) -> Predict:
    """The estimator with its defaults; `draws` replaces the draws of a prediction, of 5 members each."""
    method = "ml-cdn" if members is None else Method("ml-cdn", members=members)
    model = CompoundRegressor(method, random_state=0).fit(x, y)
    if draws is None:
        return lambda rows: model.predict(rows, return_std=True)
    encode, network = model.encoder_.transform, model.model_
    generator = named_generator(0, "predict")
    return lambda rows: network.predict(torch.from_numpy(encode(rows)), generator, draws, 1)


def bayesian_torch(x: pd.DataFrame, y: Array) -> Predict:
    """A network of bayesian-torch's layers with the reparametrisation trick."""
    from bayesian_torch.layers import LinearReparameterization
    from bayesian_torch.models.dnn_to_bnn import get_kl_loss

    encoder = Encoder.fit(x, list(map(str, x.columns)))
    inputs = torch.from_numpy(encoder.transform(x))
    shift, scale = y.mean(), y.std()
    targets = torch.from_numpy(((y - shift) / scale).astype(np.float32)).unsqueeze(1)
    torch.manual_seed(0)

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = LinearReparameterization(inputs.shape[1], HIDDEN)
            self.last = LinearReparameterization(HIDDEN, 2)

        def forward(self, rows: torch.Tensor) -> Any:
            return self.last(torch.relu(self.first(rows)[0]))[0]

    network = Network()
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(STEPS):
        batch = torch.randint(len(inputs), (BATCH,))
        mean, log_variance = network(inputs[batch]).split(1, -1)
        nll = 0.5 * (log_variance + (targets[batch] - mean).square() / log_variance.exp()).mean()
        optimizer.zero_grad()
        (nll + get_kl_loss(network) / len(inputs)).backward()
        optimizer.step()

    @torch.no_grad()
    def predict(rows: pd.DataFrame) -> Any:
        encoded = torch.from_numpy(encoder.transform(rows))
        draws = torch.stack([network(encoded) for _ in range(DRAWS)])
        means, variances = draws[..., 0], draws[..., 1].exp()
        return means.mean(0), variances.mean(0) + means.var(0)

    return predict


def _boosted(fit: Callable[[Rows, Rows, int], Predict]) -> Callable[..., Predict]:
    """A method that holds out a tenth of the rows by which the trees stop early; targets are standardised."""

    def method(x: pd.DataFrame, y: Array) -> Predict:
        y = (y - y.mean()) / y.std()
        held = np.random.default_rng(0).permutation(len(x)) < len(x) // 10
        return fit(Rows(x[~held], y[~held]), Rows(x[held], y[held]), 0)

    return method


METHODS: dict[str, Callable[..., Predict]] = {
    "ml-cdn": ml_cdn,
    "catboost": _boosted(baselines.catboost_regressor),
    "lightgbm": _boosted(baselines.lightgbm_regressor),
    "ngboost": _boosted(baselines.ngboost_regressor),
    "bayesian-torch": bayesian_torch,
}
