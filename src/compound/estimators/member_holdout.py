"""Rows held out by ensemble members, and their calibration scores."""

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor

from compound.estimators.calibration import MAX_ROWS
from compound.estimators.conformal_scores import event_scores
from compound.estimators.prediction import predictives, to_float64
from compound.models import Model
from compound.predictive import TargetPredictive
from compound.random import named_generator
from compound.train.holdout import holdout_weights

COMMON_FROM = 5000  # with at least so many rows, some are held out by all members
MIN_COMMON = 500  # such rows at least: the coverage of a 90% interval then has the standard deviation 1.3%
MAX_COMMON = 2000  # and a twentieth of the rows up to so many, .7%; beyond, a hundredth


def member_holdout_weights(rows: int, members: int, fraction: float, seed: int) -> Tensor:  # (members, rows)
    """Training weights: 1, or 0 for rows that a member holds out, about `fraction` of `rows`.

    Each member holds out different rows, so that together they train on all. A single member has larger
    errors than the mixture, so intervals calibrated by its errors are somewhat too wide. From COMMON_FROM
    rows on, some hundreds are held out by all members; intervals are then calibrated by the mixture's errors.
    """
    weight = holdout_weights(rows, members, fraction, seed)
    if rows < COMMON_FROM or members == 1:
        return weight
    per_member = int((weight[0] == 0).sum())
    common = min(per_member, common_count(rows))
    order = torch.randperm(rows, generator=named_generator(seed, "hold out in common"))
    weight = torch.ones(members, rows, dtype=torch.float32)
    weight[:, order[:common]] = 0
    remaining = rows - common
    weight[:, order[common:]] = holdout_weights(remaining, members, (per_member - common) / remaining, seed)
    return weight


def common_count(rows: int) -> int:
    """How many of `rows` rows all members hold out, if each holds out at least so many."""
    return max(MIN_COMMON, min(rows // 20, MAX_COMMON), rows // 100)


def calibration_rows(held_out: Tensor, seed: int) -> tuple[Tensor | None, Tensor]:  # (rows',) each
    """Choose the rows to calibrate on, and the member that scores each: a pair of indices (members, rows).

    held_out is a mask (rows,) or (members, rows). If some rows are held out by all members, these are scored,
    by the mixture: members is None. Otherwise each held-out row is scored by the first member that holds it
    out, so that it counts once. At most MAX_ROWS rows are chosen, at random.
    """
    held_out = held_out.reshape(-1, held_out.shape[-1])  # (1 or members, rows)
    common = held_out.all(0)
    members = None
    if common.any():
        rows = common.nonzero().squeeze(1)
    else:
        members, rows = (held_out & (held_out.cumsum(0) == 1)).nonzero().T
    chosen = torch.randperm(len(rows), generator=named_generator(seed, "calibrate"))[:MAX_ROWS]
    return None if members is None else members[chosen], rows[chosen]


def calibration_scores(
    model: Model, x: Tensor, y: Tensor, held_out: Tensor, seed: int
) -> Iterator[Tensor]:  # (some rows, targets) each
    """Scores |z| of the rows of `calibration_rows`, in their order, in blocks.

    x (rows, width) is encoded, y that of the model; held_out is (rows,) or (members, rows).
    """
    members, rows = calibration_rows(held_out, seed)
    generator = named_generator(seed, "censored")
    start = 0
    for block in predictives(model, x[rows], seed):
        part = slice(start, start + len(block.component))
        predictive = to_float64(cast(TargetPredictive, block))
        if members is not None:
            predictive = predictive.of_members(members[part], len(held_out))
        yield event_scores(predictive, y[rows[part]].double(), generator)
        start = part.stop
