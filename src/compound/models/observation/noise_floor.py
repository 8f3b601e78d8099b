"""A lower bound of the noise variance of targets.

Without it the density of targets that were rounded, and so repeat exactly, could grow without bound.
"""

from typing import Any

import torch
from torch import Tensor, nn


class NoiseFloor(nn.Module):
    """Holds a lower bound of the noise variance; unknown until `set_floor` or a loaded state dict sets it."""

    floor: Tensor  # (targets,) a variance; -1: unknown

    def __init__(self, targets: int):
        super().__init__()
        self.register_buffer("floor", torch.full((targets,), -1.0, dtype=torch.float32))
        self.floor_is_known = False

    def set_floor(self, floor: Tensor) -> None:
        self.floor = floor
        self.floor_is_known = True

    def known_floor(self) -> Tensor:  # (targets,)
        """The bound; ValueError where it is unknown."""
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
    """A lower bound of the noise variance of targets y (rows, targets).

    It is the variance step² / 12 of rounding errors, but at least (1e-4 std of y)² and 1e-12.
    """
    step = torch.stack([rounding_step(column) for column in y.double().T])
    std = y.double().std(0, correction=0)
    return torch.maximum(step.square() / 12, (1e-4 * std).square().clamp_min(1e-12)).to(y.dtype)


def rounding_step(values: Tensor) -> Tensor:  # ()
    """The step to which `values` (rows,) were rounded, 0 where they seem not to be.

    It is the median gap between distinct values, if more than 5 % of the values are repetitions.
    """
    distinct = values.unique()
    gaps = distinct.diff()
    gaps = gaps[gaps > 1e-6 * values.std(correction=0)]
    return gaps.median() if len(gaps) > 0 and len(distinct) < 0.95 * len(values) else values.new_zeros(())
