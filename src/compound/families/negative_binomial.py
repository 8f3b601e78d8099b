"""The negative binomial distribution of counts, and its limit, the Poisson distribution."""

from collections.abc import Callable

import torch
from scipy.special import betainc, gammainc, gammaincc
from torch import Tensor

from compound.families.base import Family, special

SMALL = 1e-9  # a smaller dispersion counts as 0


class NegativeBinomial(Family):
    """Counts with E Y = mean and Var Y = mean + dispersion mean²; dispersion 0 is the Poisson distribution.

    In terms of r = 1 / dispersion and p = r / (r + mean), Y is the number of failures before the r-th
    success, each of probability p.
    """

    parameters = ("mean", "dispersion")
    discrete = True

    def log_prob(self, y: Tensor, params: Tensor) -> Tensor:
        # in float64: differences of log-gammas cancel where the dispersion is small
        mean, dispersion = params.double().unbind(-1)
        y = y.double()
        poisson = torch.xlogy(y, mean) - mean - torch.lgamma(y + 1)
        if bool((dispersion < SMALL).all()):
            return poisson.to(params.dtype)
        r = 1 / dispersion.clamp_min(SMALL)
        ways = torch.lgamma(y + r) - torch.lgamma(r) - torch.lgamma(y + 1)
        log_failure = mean.log() - (r + mean).log()
        log_prob = ways - r * torch.log1p(mean / r) + y * log_failure
        return torch.where(dispersion < SMALL, poisson, log_prob).to(params.dtype)

    def log_survival(self, y: Tensor, params: Tensor) -> Tensor:
        return self.survival(y, params).log()

    def cdf(self, y: Tensor, params: Tensor) -> Tensor:
        return self._tail(y, params, lower=True)

    def survival(self, y: Tensor, params: Tensor) -> Tensor:
        return self._tail(y, params, lower=False)

    def _tail(self, y: Tensor, params: Tensor, lower: bool) -> Tensor:
        """P(Y <= y), or P(Y > y)."""
        mean, dispersion = params.double().unbind(-1)
        mean, dispersion, after = torch.broadcast_tensors(mean, dispersion, y.double().floor() + 1)
        k = after.clamp_min(1)
        # of the first k values: by the incomplete gamma function of a Poisson distribution, or the beta one
        tail = special(gammaincc if lower else gammainc, k, mean)
        spread = dispersion >= SMALL
        if bool(spread.any()):
            r = 1 / dispersion.clamp_min(SMALL)
            success, failure = r / (r + mean), mean / (r + mean)
            beta = (r, k, success) if lower else (k, r, failure)
            tail = torch.where(spread, special(betainc, *beta), tail)
        return torch.where(after < 1, 0.0 if lower else 1.0, tail)

    def icdf(self, q: Tensor, params: Tensor) -> Tensor:
        return self._search(lambda y: self.cdf(y, params) >= q, params, q)

    def isf(self, q: Tensor, params: Tensor) -> Tensor:
        return self._search(lambda y: self.survival(y, params) <= q, params, q)

    def _search(self, reached: Callable[[Tensor], Tensor], params: Tensor, q: Tensor) -> Tensor:
        shape = torch.broadcast_shapes(params.shape[:-1], q.shape)
        start = self.mean(params).double() + self.variance(params).double().sqrt()
        return first_integer(reached, start.expand(shape))

    def mean(self, params: Tensor) -> Tensor:
        return params[..., 0]

    def variance(self, params: Tensor) -> Tensor:
        mean, dispersion = params.unbind(-1)
        return mean + dispersion * mean.square()

    def rescale(self, params: Tensor, shift: Tensor | float, scale: Tensor | float) -> Tensor:
        return params


def first_integer(reached: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """The smallest y = 0, 1, 2, ... for which `reached(y)` is true, elementwise, by bisection.

    `reached` maps a tensor of numbers to booleans and is false, then true; `start` is a first guess of an
    upper bound.
    """
    low = torch.full_like(start, -1.0)
    high = start.ceil().clamp(1, 2.0**52)
    while not bool((done := reached(high) | (high >= 2.0**52)).all()):
        low, high = torch.where(done, low, high), torch.where(done, high, 2 * high)
    while bool((high - low > 1).any()):
        middle = ((low + high) / 2).floor().maximum(low)
        above = reached(middle)
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return high
