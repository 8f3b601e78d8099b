"""Observation models of a compound density network for families beside the Gaussian, and for ordered classes.

Log-normal targets and ordered classes are integrated over the Gaussian of f in closed form (f_1 of a
log-normal one; its f_2 is sampled). The outputs of all other families are sampled, one draw of f per draw of
the hidden units: 1/S sum_s p(y | f_s) is an unbiased estimate of the same integral.
"""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor
from torch.nn import functional

from compound.distributions import log_mean_exp
from compound.families import FAMILIES
from compound.families.mixtures import log_lik
from compound.models.observation.family import FamilyModel
from compound.models.observation.last_layer import Draws, LastLayerModel, LogDensity
from compound.models.observation.ordinal import Ordinal
from compound.nn import Gaussian
from compound.ops.gaussian_noise import standard_normal
from compound.predictive import CategoricalPredictive, FamilyPredictive, log_mixture, safe_log, take_label
from compound.random import Generators

INTEGRATED = ("log-normal", "ordinal")  # families whose expectation over f has a closed form


class _LastLayer(LastLayerModel):
    """Draws of f: means and variances of what is integrated over, draws with variance 0 of the rest."""

    outputs: int
    integrated: Sequence[int]  # which outputs are integrated over

    def sample_noise(self, members: int, draws: int, generator: Generator, like: Tensor) -> Tensor:
        return standard_normal(generator, (members, draws, 1, self.outputs), like)

    def sample(self, last: Gaussian, noise: Tensor) -> Draws:
        mask = last.mean.new_zeros(self.outputs)
        mask[list(self.integrated)] = 1
        std = last.std.expand_as(last.mean)
        return last.mean + (1 - mask) * std * noise, mask * std.square()

    def calibrate(self, draws: Draws, y: Tensor, held_out: Tensor | None) -> None:
        """Does nothing: only Gaussian targets have a scale τ."""


class LastLayerFamily(_LastLayer, FamilyModel):
    """Targets of a family; f_1 of log-normal ones is integrated over."""

    def __init__(self, family: str, targets: int, members: int, last_layer: str):
        super().__init__(family, targets, members)
        integrates = family in INTEGRATED and last_layer == "integrate"
        self.integrated = range(0, self.outputs, self.per_target) if integrates else ()

    def last_log_prob(self, last: Gaussian, y: Tensor, generator: Generators) -> Tensor:
        mean, variance = self.sample(last, standard_normal(generator, last.mean.shape, last.mean))
        return log_lik(FAMILIES[self.name], y, self.params(mean, variance))

    def member_log_prob(self, draws: Draws, y: Tensor) -> Tensor:  # (members, rows)
        log_probs = log_lik(
            FAMILIES[self.name], y, self.params(*draws)
        )  # (members, n_samples, n_inner, rows)
        return log_mean_exp(log_probs.flatten(1, 2), 1)

    def far_log_prob(self, draws: Draws, y: Tensor, far_params: Tensor) -> LogDensity:
        log_prob = self.member_log_prob(draws, y)
        params = far_params.to(y).view(self.targets, -1).expand(len(y), -1, -1)
        far = log_lik(FAMILIES[self.name], y, params)

        def mixed(t: Tensor | None) -> Tensor:
            if t is None:
                return log_prob
            return torch.logaddexp(log_prob + functional.logsigmoid(-t), far + functional.logsigmoid(t))

        return mixed

    def draws_predictive(self, draws: Draws, paired: int = 1) -> FamilyPredictive:
        params = self.params(*draws).flatten(0, 1)
        return FamilyPredictive.from_draws(self.name, params, len(draws[0]), paired)


class LastLayerOrdinal(_LastLayer, Ordinal):
    """Ordered classes; f is integrated over, or sampled."""

    def __init__(self, classes: int, members: int, last_layer: str):
        super().__init__(classes, members)
        self.integrated = (0,) if last_layer == "integrate" else ()

    def last_log_prob(self, last: Gaussian, y: Tensor, generator: Generators) -> Tensor:
        draws = self.sample(last, standard_normal(generator, last.mean.shape, last.mean))
        return take_label(self.log_probs(*draws), y)

    def member_log_prob(self, draws: Draws, y: Tensor) -> Tensor:  # (members, rows)
        return take_label(safe_log(self.log_probs(*draws).exp().mean((1, 2))), y)

    def far_log_prob(self, draws: Draws, y: Tensor, far_params: Tensor) -> LogDensity:
        log_prob = self.member_log_prob(draws, y)
        return lambda t: log_prob if t is None else log_mixture(log_prob, t, far_params[y])

    def draws_predictive(self, draws: Draws, paired: int = 1) -> CategoricalPredictive:
        logs = self.log_probs(*draws).flatten(0, 1)
        component = self.expected_entropy(*draws).mean((0, 1, 2))
        return CategoricalPredictive.from_draws(logs, len(draws[0]), paired, component)
