"""Adaptive conformal inference: calibration that follows a drift, as truths arrive.

For a nominal miscoverage a, the threshold at time t is the quantile of level 1 - a_t of the newest scores,
and after each row

    a_{t+1} = a_t + gamma (a - 1{score_t > threshold_t})

Over T rows the coverage is 1 - a up to 1 / (gamma T), whatever the data do: they may drift, or be chosen by
an adversary. Gibbs and Candès (2021). Here a_t is kept for a grid of levels and interpolated between them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from compound.estimators.columns import Array

WINDOW = 500  # newest scores that thresholds are quantiles of
GAMMA = 0.02  # step of a_t
MISCOVERAGES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
BEYOND = 1.5  # threshold where a_t < 0, in units of the largest score: intervals must stay finite


@dataclass(frozen=True)
class AdaptiveConformal:
    """Scores of the newest rows in order of time, and the miscoverages a_t: one per level and target."""

    scores: Tensor  # (rows, targets) float64, oldest first
    miscoverages: Tensor  # (levels, targets) float64, a_t for each of MISCOVERAGES

    @classmethod
    def start(cls, scores: Tensor) -> Self:
        """From the scores (rows, targets) of the first calibration."""
        nominal = torch.tensor(MISCOVERAGES, dtype=torch.float64).unsqueeze(1)
        return cls(scores[-WINDOW:].clone(), nominal.expand(-1, scores.shape[1]).clone())

    @property
    def effective_rows(self) -> float:
        """The number of scores in the window."""
        return float(len(self.scores))

    def update(self, scores: Iterable[Tensor], gamma: float = GAMMA, window: int = WINDOW) -> Self:
        """After rows with these scores (targets,) each, in order of time."""
        nominal = np.array(MISCOVERAGES)[:, None]
        current = self.miscoverages.numpy().copy()
        recent = self.scores.numpy()
        for score in scores:
            missed = score.numpy() > _thresholds(recent, current)  # (levels, targets)
            current += gamma * (nominal - missed)
            recent = np.concatenate([recent[-(window - 1) :], score.numpy()[None]])
        return type(self)(torch.from_numpy(recent.copy()), torch.from_numpy(current))

    def conformal_quantile(self, coverage: float) -> Tensor:  # (targets,)
        """The score up to which an interval of this coverage reaches now."""
        columns = self.miscoverages.numpy().T
        now = np.array(
            [[np.interp(1 - coverage, MISCOVERAGES, column) for column in columns]]
        )  # (1, targets)
        thresholds = _thresholds(self.scores.numpy(), now)[0]
        largest = self.scores.amax(0).numpy()
        beyond = np.isposinf(thresholds)
        return torch.from_numpy(np.where(beyond, BEYOND * largest.clip(0.5), thresholds.clip(0)))


@dataclass(frozen=True)
class AdaptiveSets(AdaptiveConformal):
    """The same for prediction sets, scores (rows, 1): a set may hold all classes."""

    def conformal_quantile(self, coverage: float) -> float:  # type: ignore[override]
        """The set of this coverage holds the classes of at most this score."""
        threshold = float(super().conformal_quantile(coverage)[0])
        return np.inf if threshold > float(self.scores.max()) else threshold


def _thresholds(recent: Array, now: Array) -> Array:  # (levels, targets)
    """Quantiles of level 1 - `now` (levels, targets) of scores (rows, targets), infinite beyond them."""
    ordered = np.sort(recent, axis=0)
    ranks = np.ceil((len(ordered) + 1) * (1 - now) - 1e-9).astype(np.int64)
    inside = np.take_along_axis(ordered, ranks.clip(1, len(ordered)) - 1, 0)
    finite = np.where(ranks < 1, -np.inf, inside)
    return np.where(ranks > len(ordered), np.inf, finite)
