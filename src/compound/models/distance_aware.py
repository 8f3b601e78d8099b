"""Far noise for any method: doubt that grows with the distance from the training data, put on the finished answer.

`Method("map", far=3.0)` builds the method inside `DistanceAware`. Training is left alone; after it the distance is learnt from the
training rows, and the steepest ramp is chosen that costs next to nothing on held-out rows (on training rows where none are).

Classes: with log-odds t(x) nothing is known and all classes are alike, so the label never changes. Targets: the variance
(far · standard deviation of the target)² exp(t(x)) is added to every component. What is added is epistemic.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Generator, Tensor

from compound.models.base import Draws, Loss, Model, OptimizerSettings, train_mask
from compound.models.limits import Limits
from compound.ood.noise import DistanceAwareNoise
from compound.ops.clamp import clamp_inputs
from compound.predictive import CategoricalPredictive, GaussianPredictive, Predictive
from compound.random import Generators
from compound.types import Batch, Task

BUDGET = 0.003  # nats of held-out log-density that far noise may cost
ERRORS = 1.0  # standard errors of the mean cost that count as cost: few rows cannot tell a gain from luck
MAX_CALIBRATION_ROWS = 2000  # rows that far noise is chosen on
SHARES = 10  # distances that one of them stands for, at most


class Scale(NamedTuple):
    """What loudness means for a task."""

    levels: tuple[float, ...]  # to choose from, at the median distance
    kappas: tuple[float, ...]  # and its rise from there to the 99% quantile
    cap: float  # the largest


# Classes: log-odds, a tenth of the budget on an ordinary row. Targets: log-variances, in a unit reached at the cap.
SCALES = {
    "classification": Scale(
        (math.log(0.1 * BUDGET),), (20.0, 16.0, 12.0, 10.0, 9.0, *(0.25 * k for k in range(33, 1, -1))), 14.0
    ),
    "regression": Scale(
        (-6.0, -9.0, -12.0, -15.0, -18.0),
        (18.0, 16.0, 14.0, 12.0, 10.0, 8.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0),
        0.0,
    ),
}


def choose_ramp(
    far: DistanceAwareNoise, task: Task, distance: Tensor, scores: Callable[[Tensor | None], Tensor]
) -> None:
    """The steepest ramp that costs no more than the budget at the judging rows' own distances and at all others, (1 + shares, rows).

    `scores(t)` are log-densities (scores, rows) of their targets under far noise of loudness t, None: none.

    No mean over rows, less its standard error, may fall by more than the budget below that without noise; nor may it
    fall by more below the best of such ramps: a network too sure of itself gains by far noise, which is no licence to lose it again.
    Where none is cheap enough the gentlest one stays, almost silent on ordinary rows, for the sake of rows far away.
    """
    levels, kappas, cap = SCALES[task.kind]
    # by reach: loudness one more 50%-to-99% stretch beyond the 99% quantile
    ramps = sorted(
        ((level, kappa) for level in levels for kappa in kappas),
        key=lambda ramp: (ramp[0] + 2 * ramp[1], ramp[0]),
    )
    plain, gains = scores(None).double(), []
    for level, kappa in ramps:
        far.set_ramp(level, kappa, cap)
        own, *shares = [scores(far.at(share)).double() - plain for share in distance]
        gains.append(torch.cat([own, torch.stack(shares).mean(0)]) if shares else own)
    gain = torch.stack(gains)  # (ramps, scores, rows)
    mean, error = gain.mean(-1), gain.std(-1, correction=0) / math.sqrt(max(1, gain.shape[-1] - 1))
    safe = (mean - ERRORS * error >= -BUDGET).all(1)
    best = mean[safe].amax(0).clamp_min(0) if bool(safe.any()) else 0.0
    cheap = (safe & (best - mean <= BUDGET).all(1)).nonzero().squeeze(1).tolist()
    far.set_ramp(*ramps[cheap[-1] if cheap else 0], cap)


def calibration_rows(data: Batch, held: Tensor, generator: Generator) -> Tensor:  # (judges,)
    """Rows to judge by: those somebody held out, of held (members, rows); any rows where nobody did."""
    some = held.any(0)
    order = torch.randperm(len(data), generator=generator)
    return (order[some[order]] if bool(some.any()) else order)[:MAX_CALIBRATION_ROWS]


def fit_distance(
    far: DistanceAwareNoise, data: Batch, calibration: Tensor, generator: Generator
) -> Tensor:  # (1 + shares, judges)
    """Fit `far` on the training rows; distances of the judging rows, from what was learnt without them, and those they stand for.

    Few judges may all be near by chance, and noise on the rest would seem to cost nothing. So each stands for its share of all rows
    too: by distance the farthest of 45 judges for the farthest 1/45, at up to SHARES of their quantiles.
    """
    seen = train_mask(data).nonzero().squeeze(-1)
    away = torch.full((len(data),), torch.nan, dtype=data.x.dtype)
    away[seen] = far.fit(clamp_inputs(data.x[seen]), generator)
    fresh = calibration[away[calibration].isnan()]  # rows no member trained on
    away[fresh] = far.distance(clamp_inputs(data.x[fresh]))
    distance, known = away[calibration], away[~away.isnan()]
    shares = min(SHARES, MAX_CALIBRATION_ROWS // len(calibration), len(known) // len(calibration))
    if shares < 2:
        return distance.unsqueeze(0)
    levels = torch.arange(0.5, shares * len(calibration)) / (shares * len(calibration))
    quantiles = (
        torch.quantile(known.double(), levels.double()).to(known.dtype).reshape(-1, shares)
    )  # (judges, shares)
    return torch.cat([distance.unsqueeze(0), quantiles[distance.argsort(stable=True).argsort()].T])


class DistanceAware(Model):
    """Another method with far noise on its answer."""

    unit: Tensor  # (targets,) targets: the standard deviation far away

    def __init__(self, inner: Model, far: float):
        super().__init__()
        if not far >= 0:
            raise ValueError(f"far is {far}: it may not be negative; 0 turns far noise off")
        self.inner, self.strength = inner, far
        self.inputs, self.task, self.members = inner.inputs, inner.task, inner.members
        self.method, self.config = inner.method, inner.config  # type: ignore[misc]
        self.far, self.limits = DistanceAwareNoise(inner.inputs), Limits(self.task.size)
        self.register_buffer(
            "unit", torch.ones(self.task.size if self.task.kind == "regression" else 1, dtype=torch.float32)
        )

    def on_fit_start(self, data: Batch, generator: Generator) -> None:
        self.inner.on_fit_start(data, generator)
        if self.task.kind == "regression":
            spread = data.y[train_mask(data)].double().std(0, correction=0)
            self.unit.copy_(self.strength * torch.where(spread > 0, spread, 1.0))

    def loss(self, batch: Batch, generator: Generators) -> Loss:
        return self.inner.loss(batch, generator)

    def nll(self, batch: Batch, n: int, generator: Generator) -> Tensor:
        return self.inner.nll(batch, n, generator)

    def optimizer(self, settings: OptimizerSettings) -> torch.optim.Optimizer:
        return self.inner.optimizer(settings)

    @torch.no_grad()
    def on_fit_end(self, data: Batch, generator: Generator) -> None:
        self.inner.on_fit_end(data, generator)
        held = (
            data.weight.reshape(-1, len(data)) == 0
            if data.weight is not None
            else torch.zeros(1, len(data), dtype=torch.bool)
        )
        judges = calibration_rows(data, held, generator)
        plain, y = self.inner.predict(data.x[judges], 100, generator), data.y[judges]
        if isinstance(plain, GaussianPredictive):
            self.limits.fit(data.y[train_mask(data)], plain)
        if not self.strength:
            return

        def scores(t: Tensor | None) -> Tensor:
            return (plain if t is None else self._noisy(plain, t)).log_prob(y).unsqueeze(0)

        choose_ramp(self.far, self.task, fit_distance(self.far, data, judges, generator), scores)

    def predict_chunk(self, x: Tensor, n: Draws, generator: Generator) -> Predictive:
        plain = self.inner.predict_chunk(x, n, generator)
        if isinstance(plain, GaussianPredictive):
            plain = self.limits(plain)
        return self._noisy(plain, self.far(clamp_inputs(x))) if self.far.fitted else plain

    def _noisy(self, plain: Predictive, t: Tensor) -> Predictive:
        """The answer with far noise of loudness t (rows,)."""
        if isinstance(plain, GaussianPredictive):
            return plain.with_far_noise(t, self.unit)
        return cast(CategoricalPredictive, plain).mix_with_uniform(t)

    def floats_per_row(self, n: Draws) -> int:
        return max(self.inner.floats_per_row(n), 3 * self.inputs)
