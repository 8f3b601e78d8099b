"""The choice of far noise's ramp: the steepest whose cost on calibration rows is negligible."""

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

BUDGET = 0.003  # nats of held-out log-density that far noise may cost, by default
ERRORS = 1.0  # standard errors of the mean cost that count as cost: few rows cannot tell a gain from chance


class RampGrid(NamedTuple):
    """The ramps to choose from: every pair of a level and a kappa."""

    levels: tuple[float, ...]  # t at the median distance
    kappas: tuple[float, ...]  # its rise from there to the 99% quantile
    cap: float  # largest t


# Classes: log-odds, a tenth of the budget at the median row. Targets: log-variances, relative to the cap.
GRIDS = {
    "classification": RampGrid(
        (math.log(0.1 * BUDGET),), (20.0, 16.0, 12.0, 10.0, 9.0, *(0.25 * k for k in range(33, 1, -1))), 14.0
    ),
    "regression": RampGrid(
        (-6.0, -9.0, -12.0, -15.0, -18.0),
        (18.0, 16.0, 14.0, 12.0, 10.0, 8.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0),
        0.0,
    ),
}


class Ramped(Protocol):
    """Far noise with a ramp to be chosen."""

    def from_distance(self, distance: Tensor) -> Tensor: ...

    def set_ramp(self, level: float, kappa: float, cap: float) -> None: ...


def choose_ramp(
    noise: Ramped,
    grid: RampGrid,
    distances: Tensor,
    log_densities: Callable[[Tensor | None], Tensor],
    budget: float = BUDGET,
) -> None:
    """Set the steepest ramp that costs no more than the budget on the calibration rows.

    Parameters
    ----------
    noise : DistanceAwareNoise
        Its distance is fitted; its ramp is set.
    grid : RampGrid
        Ramps to choose from.
    distances : Tensor of shape (1 + quantiles, rows)
        First the distances of the calibration rows; then other distances at which a row's cost is computed
        too, and averaged.
    log_densities : callable
        Maps t (rows,), or None for no far noise, to log-densities (scores, rows) of the calibration rows.
    budget : float, default=0.003
        Nats of mean log-density that far noise may cost.

    Notes
    -----
    A ramp is safe if the mean gain in each score, minus its standard error, is at least -budget. Of the safe
    ramps the steepest is set whose mean gains are within the budget of the best safe ramp's: an overconfident
    network gains by far noise, and a steeper ramp must not use up that gain. If there is none the gentlest
    one is set, so that there is far noise in any case.
    """
    # steepest last, by t one more 50%-to-99% stretch beyond the 99% quantile
    ramps = sorted(
        ((level, kappa) for level in grid.levels for kappa in grid.kappas),
        key=lambda ramp: (ramp[0] + 2 * ramp[1], ramp[0]),
    )
    without = log_densities(None).double()
    gains = []
    for level, kappa in ramps:
        noise.set_ramp(level, kappa, grid.cap)
        actual, *represented = [log_densities(noise.from_distance(d)).double() - without for d in distances]
        gains.append(torch.cat([actual, torch.stack(represented).mean(0)]) if represented else actual)
    gain = torch.stack(gains)  # (ramps, scores, rows)
    mean = gain.mean(-1)
    error = gain.std(-1, correction=0) / math.sqrt(max(1, gain.shape[-1] - 1))
    safe = (mean - ERRORS * error >= -budget).all(1)
    best = mean[safe].amax(0).clamp_min(0) if bool(safe.any()) else 0.0
    cheap = (safe & (best - mean <= budget).all(1)).nonzero().squeeze(1).tolist()
    noise.set_ramp(*ramps[cheap[-1] if cheap else 0], grid.cap)
