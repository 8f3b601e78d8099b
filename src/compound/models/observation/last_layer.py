"""Observation models of a compound density network, whose last layer gives a Gaussian distribution of f.

Given the hidden units of one draw, f ~ N(mean, std²). This Gaussian is integrated over, or f is sampled.
Training needs log-densities of y under it. Prediction keeps two arrays for all draws (`Draws`):

    targets:  means of f, and its variances;            variances are 0 where f was sampled
    classes:  means of f, and its standard deviations;  these are 0 where f was sampled
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Generator, Tensor

from compound.distributions import gaussian_log_prob, log_mean_exp
from compound.models.base import weighted_row_mean
from compound.models.observation.categorical import Categorical
from compound.models.observation.gaussian import HomoscedasticGaussian
from compound.nn import Gaussian
from compound.ops.class_parts import class_parts
from compound.ops.gaussian_noise import row_normal, standard_normal
from compound.ops.mixture_parts import mixture_parts
from compound.ops.softmax import expected_entropy, expected_softmax
from compound.predictive import (
    CategoricalPredictive,
    GaussianPredictive,
    Predictive,
    log_mixture,
    safe_log,
    take_label,
)
from compound.random import Generators

LastLayer = Literal["integrate", "sample"]
Draws = tuple[Tensor, Tensor]  # (members, n_samples, n_inner, rows, outputs) each
LogDensity = Callable[[Tensor | None], Tensor]  # far noise t (rows,), or None, -> log p(y) (members, rows)


class LastLayerModel(ABC):
    """The methods that a compound density network needs of its observation model."""

    @abstractmethod
    def last_log_prob(
        self, last: Gaussian, y: Tensor, generator: Generators
    ) -> Tensor:  # (members, draws, rows)
        """log p(y) of each row and draw for f ~ `last`, whose arrays are (members, draws, rows, outputs).

        Classes with sampled logits have `last_draws` times as many draws in the result.
        """

    @abstractmethod
    def sample_noise(self, members: int, draws: int, generator: Generator, like: Tensor) -> Tensor:
        """Standard normal noise (members, draws, ...) for `sample`; all rows share it."""

    @abstractmethod
    def sample(self, last: Gaussian, noise: Tensor) -> Draws:
        """The two arrays that prediction keeps, (members, draws, rows, outputs) each, from f ~ `last`.

        `last` has the same shape, and `noise` comes from `sample_noise`. Classes with sampled logits have
        `last_draws` times as many draws in the result.
        """

    @abstractmethod
    def member_log_prob(self, draws: Draws, y: Tensor) -> Tensor:  # (members, rows)
        """log p(y) of each row under each member's own predictive, the mixture over its draws."""

    def stopping_log_prob(self, draws: Draws, y: Tensor, weight: Tensor | None) -> Tensor:  # (members, rows)
        """`member_log_prob`, by which training stops.

        weight is that of the rows, (rows,) or (members, rows), or None.
        """
        return self.member_log_prob(draws, y)

    @abstractmethod
    def far_log_prob(self, draws: Draws, y: Tensor, far_params: Tensor) -> LogDensity:
        """`member_log_prob` as a function of the far noise t (rows,) that is added; None adds none.

        Far from the training rows `far_params` are standard deviations or probabilities, (outputs,).
        """

    @abstractmethod
    def calibrate(self, draws: Draws, y: Tensor, held_out: Tensor | None) -> None:
        """Fit the scale of the predictive on held-out rows.

        Each member is judged on those with 1 in held_out (members, rows); with None their mixture on all.
        """

    @abstractmethod
    def draws_predictive(self, draws: Draws, paired: int = 1) -> Predictive:
        """The predictive of the mixture over the draws of all members.

        `paired` neighbouring draws of the hidden units depend on each other, as stratified ones do.
        """


class LastLayerGaussian(HomoscedasticGaussian, LastLayerModel):
    """Targets: y ~ N(f, σ² + floor).

    After training, `calibrate` chooses a factor τ <= `max_tau`. Deviations of each member's predictive from
    its mean are multiplied by τ, variances (but not the floor) by τ². With `max_tau` above 1, training stops
    by the NLL at the best τ: means still improve when variances are already too small.
    """

    tau: Tensor  # ()
    max_tau: float = 1.0

    def __init__(self, targets: int, members: int, noise: float, last_layer: LastLayer):
        super().__init__(targets, members, noise)
        self.integrate = last_layer == "integrate"
        self.register_buffer("tau", torch.ones((), dtype=torch.float32))

    def last_log_prob(self, last: Gaussian, y: Tensor, generator: Generators) -> Tensor:
        if self.integrate:
            variance = last.std.square() + self._variance_like(last.mean)
            return gaussian_log_prob(y, last.mean, variance).sum(-1)
        return self.log_prob(last.draw(row_normal(generator, last.mean.shape, last.mean)), y)

    def last_variance(self, last: Gaussian) -> Tensor:  # (members, rows)
        """Variance of y given x under the mixture over draws; of several targets the geometric mean."""
        component = last.std.square() + self._variance_like(last.mean)
        return (component.mean(1) + last.mean.var(1, correction=0)).log().mean(-1).exp()

    def sample_noise(self, members: int, draws: int, generator: Generator, like: Tensor) -> Tensor:
        return standard_normal(generator, (members, draws, 1, self.outputs), like)

    def sample(self, last: Gaussian, noise: Tensor) -> Draws:
        """Means and variances of f; a sampled f is a mean with variance 0."""
        if self.integrate:
            return last.mean, last.std.square()
        return last.draw(noise), torch.zeros_like(last.mean)

    def member_log_prob(self, draws: Draws, y: Tensor) -> Tensor:
        return self._log_prob(draws, y, float(self.tau), 0.0)

    @torch.no_grad()
    def stopping_log_prob(self, draws: Draws, y: Tensor, weight: Tensor | None) -> Tensor:
        """`member_log_prob`; with `max_tau` above 1 at the τ of a coarse grid that is best for y."""
        if self.max_tau == 1:
            return self.member_log_prob(draws, y)
        grid = np.geomspace(1 / self.max_tau, self.max_tau, 13).tolist()
        log_probs = [self._log_prob(draws, y, tau, 0.0) for tau in grid]
        scores = [float(weighted_row_mean(each, weight).sum()) for each in log_probs]
        return log_probs[int(np.argmax(scores))]

    def far_log_prob(self, draws: Draws, y: Tensor, far_params: Tensor) -> LogDensity:
        def log_prob(t: Tensor | None) -> Tensor:
            far = 0.0 if t is None else far_params.square() * t.exp().unsqueeze(-1)  # (rows, targets)
            return self._log_prob(draws, y, float(self.tau), far)

        return log_prob

    def _log_prob(
        self, draws: Draws, y: Tensor, tau: float, far: Tensor | float
    ) -> Tensor:  # (members, rows)
        """`member_log_prob` for the factor `tau`, with the variance `far` (rows, targets) added."""
        means, variances = (draw.flatten(1, 2) for draw in draws)  # (members, draws, rows, targets)
        centre = means.mean(1, keepdim=True)
        noise = self.noise_variance()[:, None, None]
        variance = tau**2 * (variances + noise) + self.known_floor() + far
        return log_mean_exp(gaussian_log_prob(y, centre + tau * (means - centre), variance).sum(-1), 1)

    @torch.no_grad()
    def calibrate(self, draws: Draws, y: Tensor, held_out: Tensor | None) -> None:
        """Set τ to the value of a grid with the highest log-density of the held-out rows."""

        def score(tau: float) -> float:
            log_prob = self._log_prob(draws, y, tau, 0.0)  # (members, rows)
            return float(log_mean_exp(log_prob, 0).sum() if held_out is None else (held_out * log_prob).sum())

        grid = np.geomspace(0.1, self.max_tau, 1 + round(20 * math.log(10 * self.max_tau))).tolist()
        self.tau = torch.tensor(max(grid, key=score), dtype=y.dtype)

    def draws_predictive(self, draws: Draws, paired: int = 1) -> GaussianPredictive:
        means, variances = draws
        if means.shape[1] == 1 and paired > 1:
            return self._stratified_predictive(means.squeeze(1), variances.squeeze(1), paired)
        centre = means.mean((1, 2), keepdim=True)  # of each member, as in `calibrate`
        means = (centre + self.tau * (means - centre)).flatten(0, 1)
        square = self.tau.square()
        n_samples = len(means) // len(variances)
        noise = self.noise_variance().repeat_interleave(n_samples, 0)[:, None, None]  # of each draw's member
        noise = square * noise + self.known_floor()
        variances = square * variances.flatten(0, 1)
        return GaussianPredictive.from_draws(means, noise, variances, members=len(centre), paired=paired)

    def _stratified_predictive(self, means: Tensor, variances: Tensor, paired: int) -> GaussianPredictive:
        """`draws_predictive` of one ψ per member, for means and variances (members, draws, rows, targets)."""
        shape = means.shape[2:]
        noise = self.tau.square() * self.noise_variance() + self.known_floor()  # (members, targets)
        columns = noise.unsqueeze(1).expand(-1, *shape).flatten(1)  # (members, rows targets)
        parts = mixture_parts(means.flatten(2), variances.flatten(2), columns, float(self.tau), paired)
        component = noise.mean(0).expand(shape)
        mixing, posterior = (part.view(shape) for part in (parts.mixing, parts.posterior))
        mixture = (draw.flatten(0, 1).unflatten(1, shape) for draw in (parts.means, parts.variances))
        return GaussianPredictive(component, mixing, posterior, *mixture)


class LastLayerCategorical(Categorical, LastLayerModel):
    """Classes: logits are integrated over, or sampled `last_draws` times (antithetically) per hidden draw."""

    def __init__(self, classes: int, last_layer: LastLayer, last_draws: int):
        super().__init__(classes)
        self.integrate = last_layer == "integrate"
        self.last_draws = last_draws

    def last_log_prob(self, last: Gaussian, y: Tensor, generator: Generators) -> Tensor:
        if self.integrate:
            return take_label(safe_log(expected_softmax(last.mean, last.std)), y)
        members, draws, rows, _ = last.mean.shape
        noise = self._noise((members, draws), rows, generator, last.mean)
        logits = torch.addcmul(last.mean.unsqueeze(2), last.std.unsqueeze(2), noise)
        return self.log_prob(logits, y).view(members, -1, rows)

    def sample_noise(self, members: int, draws: int, generator: Generator, like: Tensor) -> Tensor:
        return self._noise((members, draws), 1, generator, like)

    def _noise(self, draws: tuple[int, int], rows: int, generator: Generators, like: Tensor) -> Tensor:
        """Antithetic standard normal noise (*draws, last_draws, rows, classes)."""
        pairs = (self.last_draws + 1) // 2
        return antithetic(row_normal(generator, (*draws, pairs, rows, self.outputs), like), self.last_draws)

    def sample(self, last: Gaussian, noise: Tensor) -> Draws:
        """Means and standard deviations of the logits; sampled logits are means with standard deviation 0."""
        if self.integrate:
            return last.mean, last.std
        logits = torch.addcmul(last.mean.unsqueeze(2), last.std.unsqueeze(2), noise).flatten(1, 2)
        return logits, logits.new_zeros(()).expand_as(logits)

    def member_log_prob(self, draws: Draws, y: Tensor) -> Tensor:
        """Log-probability of each label under the mean over each member's draws, (members, rows)."""
        probs = expected_softmax(*draws) if self.integrate else torch.softmax(draws[0], -1)
        return take_label(safe_log(probs.mean((1, 2))), y)

    def far_log_prob(self, draws: Draws, y: Tensor, far_params: Tensor) -> LogDensity:
        log_prob = self.member_log_prob(draws, y)
        return lambda t: log_prob if t is None else log_mixture(log_prob, t, far_params[y])

    def calibrate(self, draws: Draws, y: Tensor, held_out: Tensor | None) -> None:
        """Does nothing: the estimators calibrate probabilities."""

    def draws_predictive(self, draws: Draws, paired: int = 1) -> CategoricalPredictive:
        members = len(draws[0])
        if not self.integrate and draws[0].shape[1] == 1:
            parts = class_parts(draws[0].squeeze(1), paired * self.last_draws)
            return CategoricalPredictive.from_parts(*parts)
        logits, std = (draw.flatten(0, 1) for draw in draws)
        if not self.integrate:
            logs = torch.log_softmax(logits, -1)
            return CategoricalPredictive.from_draws(logs, members, paired * self.last_draws)
        component = expected_entropy(logits, std).mean((0, 1))
        logs = safe_log(expected_softmax(logits, std))
        return CategoricalPredictive.from_draws(logs, members, paired, component)


def antithetic(noise: Tensor, count: int) -> Tensor:
    """`count` draws along axis 2: the noise given, with ceil(count / 2) draws, followed by its negative."""
    return noise if count == 1 else torch.cat([noise, -noise], 2)[:, :, :count]
