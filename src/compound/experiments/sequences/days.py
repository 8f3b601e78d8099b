"""Days of electricity demand: the seven days before, as seven steps, and the 48 half-hours to predict."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from compound.datasets import sequences as datasets
from compound.estimators.calibration import ConformalIntervals
from compound.predictive import GaussianPredictive

STEPS = 48  # half-hours of a day
HISTORY = 7  # days that a network sees
HELD_OUT = 226  # first day that is held out
TEST = 286  # first test day, 14 October
STRIDE = 4  # half-hours between the starts of training windows
WINDOW = 60  # days before, to which intervals are conformal


class Days(NamedTuple):
    """Windows of half-hours, in standard units."""

    x: Tensor  # (rows, HISTORY, numbers)
    lengths: Tensor  # (rows,) HISTORY
    y: Tensor  # (rows, STEPS)


class Demand(NamedTuple):
    """Windows to train on, which start at any time of the day, and days, which start at midnight."""

    train: Days
    held_out: Days
    test: Days
    scale: float  # unit of y in gigawatts


def load(data_dir: Path | None) -> Demand:
    """The windows, in units of the half-hours before the first held-out day."""
    raw = datasets.demand(data_dir)
    first = HELD_OUT * STEPS
    scale = raw.demand[:first].std()
    demand, temperature = ((v - v[:first].mean()) / v[:first].std() for v in (raw.demand, raw.temperature))
    parts = (
        torch.arange(HISTORY * STEPS, first - STEPS + 1, STRIDE),
        torch.arange(HELD_OUT, TEST) * STEPS,
        torch.arange(TEST, len(demand) // STEPS) * STEPS,
    )
    train, held_out, test = (_windows(demand, temperature, raw.workday, starts) for starts in parts)
    return Demand(train, held_out, test, float(scale))


def _windows(demand: Tensor, temperature: Tensor, workday: Tensor, starts: Tensor) -> Days:
    """Windows that start at half-hours `starts` (rows,).

    A step holds a day's demand, its temperature every three hours, whether its first and last half-hour, and
    those of the day to predict, are on a working day, and the time of the day. No weather to come is known.
    """
    history = starts.unsqueeze(1) + torch.arange(-HISTORY * STEPS, 0)
    ahead = starts.unsqueeze(1) + torch.arange(STEPS)
    by_day = (len(starts), HISTORY, STEPS)
    known = workday[ahead][:, [0, -1]].unsqueeze(1).expand(-1, HISTORY, -1)
    angle = (2 * torch.pi / STEPS * starts).view(-1, 1, 1).expand(-1, HISTORY, -1)
    x = [
        demand[history].view(by_day),
        temperature[history].view(by_day)[..., ::6],
        workday[history].view(by_day)[..., [0, -1]],
        known,
        angle.sin(),
        angle.cos(),
    ]
    return Days(torch.cat(x, -1), torch.full((len(starts),), HISTORY), demand[ahead])


def gaussian_nll(outputs: Tensor, y: Tensor) -> Tensor:
    """Mean NLL of y (rows, targets) under means and log-variances (rows, 2 targets)."""
    mean, log_variance = outputs.chunk(2, -1)
    return 0.5 * (log_variance + (y - mean).square() * (-log_variance).exp()).mean()


def rolling_intervals(
    p: GaussianPredictive, z: Tensor, before: int, level: float
) -> tuple[Tensor, Tensor]:  # (days, STEPS) each
    """Intervals of each day, conformal to the WINDOW days before it.

    z (before + days, STEPS) are the scores of the days before the first one, then of the days themselves; a
    day's own score and those of later days take no part.
    """
    lower, upper = [], []
    for day in range(len(p)):
        known = z[max(0, before + day - WINDOW) : before + day]
        quantile = ConformalIntervals.fit([known.double()], z.shape[1]).conformal_quantile(level)
        low, high = p[day : day + 1].z_quantiles(torch.stack([-quantile, quantile]))
        lower.append(low)
        upper.append(high)
    return torch.cat(lower), torch.cat(upper)
