"""Student's t distribution: targets with outliers."""

import math

import torch
from scipy.special import stdtr, stdtrit
from torch import Tensor

from compound.families.base import Family, special


class StudentT(Family):
    """y = loc + scale T, where T has Student's t distribution with df degrees of freedom.

    The mean is that of df > 1 and the variance that of df > 2; below they are infinite or do not exist.
    """

    parameters = ("loc", "scale", "df")

    def log_prob(self, y: Tensor, params: Tensor) -> Tensor:
        loc, scale, df = params.unbind(-1)
        z = (y - loc) / scale
        constant = torch.lgamma(0.5 * (df + 1)) - torch.lgamma(0.5 * df) - 0.5 * (math.pi * df).log()
        return constant - scale.log() - 0.5 * (df + 1) * (z.square() / df).log1p()

    def log_survival(self, y: Tensor, params: Tensor) -> Tensor:
        return self.survival(y, params).log()

    def cdf(self, y: Tensor, params: Tensor) -> Tensor:
        loc, scale, df = params.double().unbind(-1)
        return special(stdtr, *torch.broadcast_tensors(df, (y - loc) / scale))

    def survival(self, y: Tensor, params: Tensor) -> Tensor:
        loc, scale, df = params.double().unbind(-1)
        return special(stdtr, *torch.broadcast_tensors(df, (loc - y) / scale))

    def icdf(self, q: Tensor, params: Tensor) -> Tensor:
        loc, scale, df = params.double().unbind(-1)
        return loc + scale * special(stdtrit, *torch.broadcast_tensors(df, q.double()))

    def isf(self, q: Tensor, params: Tensor) -> Tensor:
        loc, scale, df = params.double().unbind(-1)
        return loc - scale * special(stdtrit, *torch.broadcast_tensors(df, q.double()))

    def mean(self, params: Tensor) -> Tensor:
        return params[..., 0]

    def variance(self, params: Tensor) -> Tensor:
        _, scale, df = params.unbind(-1)
        return scale.square() * torch.where(df > 2, df / (df - 2), torch.inf)

    def rescale(self, params: Tensor, shift: Tensor | float, scale: Tensor | float) -> Tensor:
        loc, width, df = params.unbind(-1)
        return torch.stack([shift + scale * loc, scale * width, df], -1)
