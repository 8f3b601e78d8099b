"""The smallest noise variance of targets: rounded numbers have no finer density."""

from typing import Any

import torch
from torch import Tensor, nn


class NoiseFloor(nn.Module):
    """A lower bound of the noise variance, set from the training targets or by a loaded state.

    Unknown before.
    """

    floor: Tensor  # (targets,) a variance; -1: unknown

    def __init__(self, targets: int):
        super().__init__()
        self.register_buffer("floor", torch.full((targets,), -1.0, dtype=torch.float32))
        self.floor_is_known = False

    def set_floor(self, floor: Tensor) -> None:
        self.floor = floor
        self.floor_is_known = True

    def known_floor(self) -> Tensor:  # (targets,)
        if not self.floor_is_known:
            raise ValueError(
                "the noise floor of the targets is not known yet: "
                "call on_fit_start with the training rows first"
            )
        return self.floor

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self.floor_is_known = bool((self.floor >= 0).all())


def noise_floor(y: Tensor) -> Tensor:  # (targets,)
    """The smallest sensible variance of targets y (rows, targets).

    That of their rounding, and never quite 0.
    """
    step = torch.stack([rounding_step(column) for column in y.double().T])
    std = y.double().std(0, correction=0)
    return torch.maximum(step.square() / 12, (1e-4 * std).square().clamp_min(1e-12)).to(y.dtype)


def rounding_step(values: Tensor) -> Tensor:  # ()
    """The step to which numbers (rows,) were rounded.

    The median gap of distinct values where many repeat, else 0.
    """
    distinct = values.unique()
    gaps = distinct.diff()
    gaps = gaps[gaps > 1e-6 * values.std(correction=0)]
    return gaps.median() if len(gaps) > 0 and len(distinct) < 0.95 * len(values) else values.new_zeros(())
