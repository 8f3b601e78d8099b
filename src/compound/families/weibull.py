"""The Weibull distribution: times until an event."""

import math

import torch
from torch import Tensor

from compound.families.base import Family


class Weibull(Family):
    """P(Y > y) = exp(-(y / scale)^shape)."""

    parameters = ("scale", "shape")
    positive = True

    def log_prob(self, y: Tensor, params: Tensor) -> Tensor:
        scale, shape = params.unbind(-1)
        z = _log_hazard(y, scale, shape)
        return shape.log() - y.log() + z - z.exp()

    def log_survival(self, y: Tensor, params: Tensor) -> Tensor:
        scale, shape = params.unbind(-1)
        return -_log_hazard(y, scale, shape).exp()

    def cdf(self, y: Tensor, params: Tensor) -> Tensor:
        return -torch.expm1(self.log_survival(y.double(), params.double()))

    def survival(self, y: Tensor, params: Tensor) -> Tensor:
        return self.log_survival(y.double(), params.double()).exp()

    def icdf(self, q: Tensor, params: Tensor) -> Tensor:
        scale, shape = params.double().unbind(-1)
        return scale * (-torch.log1p(-q.double())) ** (1 / shape)

    def isf(self, q: Tensor, params: Tensor) -> Tensor:
        scale, shape = params.double().unbind(-1)
        return scale * (-q.double().log()) ** (1 / shape)

    def mean(self, params: Tensor) -> Tensor:
        scale, shape = params.unbind(-1)
        return scale * torch.lgamma(1 + 1 / shape).exp()

    def variance(self, params: Tensor) -> Tensor:
        scale, shape = params.unbind(-1)
        first, second = torch.lgamma(1 + 1 / shape), torch.lgamma(1 + 2 / shape)
        # E Y² (1 - (E Y)² / E Y²), without cancellation where the shape is large
        return -scale.square() * second.exp() * torch.expm1(2 * first - second)

    def rescale(self, params: Tensor, shift: Tensor | float, scale: Tensor | float) -> Tensor:
        width, shape = params.unbind(-1)
        return torch.stack([scale * width, shape], -1)


def _log_hazard(y: Tensor, scale: Tensor, shape: Tensor) -> Tensor:
    """log of (y / scale)^shape, the cumulative hazard; bounded, so that gradients stay numbers."""
    z = shape * (y.log() - scale.log())
    return z.clamp_max(0.9 * math.log(torch.finfo(z.dtype).max))
