"""What held-out rows add to a predictive: temperature, far noise, conformal sets, an OOD threshold.

Held-out rows are rows that the network was not trained on: on those it was trained on it is more accurate and
their features lie nearer to each other, so that every number fitted here would be too confident.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Generator, Tensor, nn

from compound.estimators.calibration import ConformalIntervals, ConformalSets, TemperatureScaler
from compound.estimators.conformal_scores import z_score
from compound.ood import CombinedNoise
from compound.ood.detector import ood_threshold
from compound.ood.ramp import GRIDS
from compound.ops.clamp import clamp_inputs
from compound.predictive import CategoricalPredictive, GaussianPredictive, OODScores, Predictive, aps_score
from compound.types import Task

# Nats that far noise may cost in the first view of a row, and in each further one: less than in a model of
# its own, since new rows lie a little farther from the training rows than the few that calibrate do.
BUDGET = 0.002
FURTHER = 0.001
RAMPS = GRIDS | {"classification": GRIDS["classification"]._replace(levels=(math.log(0.1 * BUDGET),))}
SIZED_BY_DATA = ("conformal_scores", "conformal_weights")


class Calibrator(nn.Module):
    """Maps the predictive of a network, and views of its rows, to the calibrated predictive.

    `features` are the columns of each view of a row, `normalized` says which of them are features of a
    network, `strength` is that of far noise (0: none), `false_positive_rate` the part of ordinary rows that
    `is_ood` may flag.
    """

    temperature: Tensor  # ()
    far_params: Tensor  # far away: standard deviations (targets,), or equal probabilities (classes,)
    threshold: Tensor  # () of the scores
    conformal_scores: Tensor  # (rows,) or (rows, targets), float64, ascending
    conformal_weights: Tensor

    def __init__(
        self,
        task: Task,
        features: Sequence[int],
        normalized: Sequence[bool],
        strength: float,
        false_positive_rate: float,
    ):
        super().__init__()
        self.task = task
        self.features = tuple(features)
        self.strength = strength
        self.false_positive_rate = false_positive_rate
        self.noise = CombinedNoise(features, normalized)
        self.register_buffer("temperature", torch.ones((), dtype=torch.float32))
        initial = 1.0 if task.kind == "regression" else 1.0 / task.size
        self.register_buffer("far_params", torch.full((task.size,), initial, dtype=torch.float32))
        self.register_buffer("threshold", torch.full((), torch.inf, dtype=torch.float32))
        shape = (0,) if task.kind == "classification" else (0, task.size)
        for name in SIZED_BY_DATA:
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))

    @property
    def fitted(self) -> bool:
        return self.noise.fitted

    @torch.no_grad()
    def fit(
        self,
        predictive: Predictive,
        y: Tensor,
        weight: Tensor,
        train: Sequence[Tensor],
        held_out: Sequence[Tensor],
        target_std: Tensor | None,
        generator: Generator,
    ) -> None:
        """Fit everything to the predictive of held-out rows with targets y and weights (rows,).

        `train` and `held_out` are views of the rows that the network was and was not trained on, each (rows,
        features); `target_std` (targets,) is the standard deviation of the training targets.
        """
        if isinstance(predictive, CategoricalPredictive):
            scaler = TemperatureScaler.fit(predictive.probs, y, weight)
            self.temperature.fill_(scaler.value)
        if target_std is not None:
            self.far_params.copy_(self.strength * target_std)
        predictive = self._scaled(predictive)
        seen, new = ([clamp_inputs(x) for x in views] for views in (train, held_out))
        distances = self.noise.fit(seen, new, generator)

        def log_densities(t: Tensor | None) -> Tensor:  # (1, rows)
            noisy = predictive if t is None else predictive.with_far_noise(t, self.far_params)
            return noisy.log_prob(y).unsqueeze(0)

        if self.strength:
            budgets = [BUDGET] + [FURTHER] * (len(distances) - 1)
            self.noise.choose_ramps(RAMPS[self.task.kind], distances, log_densities, budgets)
        threshold, _ = ood_threshold(self.noise.scores(distances), self.false_positive_rate)
        self.threshold.fill_(threshold)
        conformal = self._conformal(self._with_far_noise(predictive, distances), y, weight)
        self.conformal_scores, self.conformal_weights = conformal.scores, conformal.weights

    def forward(self, predictive: Predictive, views: Sequence[Tensor]) -> Predictive:
        """The calibrated predictive of rows, given their views (rows, features) each."""
        sizes, expected = tuple(view.shape[1] for view in views), self.features
        if sizes != expected:
            raise ValueError(f"rows have {sizes} features and inputs, they had {expected} in training")
        distances = self.noise.distances([clamp_inputs(view) for view in views])
        scores = OODScores(self.noise.scores(distances), float(self.threshold))
        conformal: Any = ConformalSets if self.task.kind == "classification" else ConformalIntervals
        quantile = conformal(self.conformal_scores, self.conformal_weights).conformal_quantile
        noisy = self._with_far_noise(self._scaled(predictive), distances)
        return replace(noisy, ood=scores, conformal=quantile)

    def _scaled(self, predictive: Predictive) -> Predictive:
        if not isinstance(predictive, CategoricalPredictive):
            return predictive
        return TemperatureScaler(float(self.temperature))(predictive)

    def _with_far_noise(self, predictive: Predictive, distances: Tensor) -> Predictive:
        if not self.strength:
            return predictive
        return predictive.with_far_noise(self.noise.from_distance(distances), self.far_params)

    def _conformal(self, predictive: Predictive, y: Tensor, weight: Tensor) -> Any:
        if isinstance(predictive, CategoricalPredictive):
            scores = aps_score(predictive.probs).gather(-1, y.unsqueeze(-1)).squeeze(-1)
            return ConformalSets.fit(scores, weight)
        p = cast(GaussianPredictive, predictive)
        double = replace(p.to(torch.float64), ood=None)
        return ConformalIntervals.fit([z_score(double, y.double())], self.task.size, weight)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Before loading, give the buffers of SIZED_BY_DATA the shapes of the saved ones."""
        for name in SIZED_BY_DATA:
            if prefix + name in state_dict:
                setattr(self, name, getattr(self, name).new_empty(state_dict[prefix + name].shape))
        super()._load_from_state_dict(state_dict, prefix, *rest)
