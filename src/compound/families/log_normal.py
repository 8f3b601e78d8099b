"""The log-normal distribution: positive targets over orders of magnitude, and times until an event."""

import torch
from torch import Tensor

from compound.distributions import gaussian_log_prob
from compound.families.base import Family


class LogNormal(Family):
    """log y ~ N(mu, sigma²)."""

    parameters = ("mu", "sigma")
    positive = True

    def log_prob(self, y: Tensor, params: Tensor) -> Tensor:
        mu, sigma = params.unbind(-1)
        log_y = y.log()
        return gaussian_log_prob(log_y, mu, sigma.square()) - log_y

    def log_survival(self, y: Tensor, params: Tensor) -> Tensor:
        mu, sigma = params.unbind(-1)
        return torch.special.log_ndtr((mu - y.log()) / sigma)

    def cdf(self, y: Tensor, params: Tensor) -> Tensor:
        mu, sigma = params.double().unbind(-1)
        return torch.special.log_ndtr((y.double().log() - mu) / sigma).exp()

    def survival(self, y: Tensor, params: Tensor) -> Tensor:
        mu, sigma = params.double().unbind(-1)
        return torch.special.log_ndtr((mu - y.double().log()) / sigma).exp()

    def icdf(self, q: Tensor, params: Tensor) -> Tensor:
        mu, sigma = params.double().unbind(-1)
        return (mu + sigma * torch.special.ndtri(q.double())).exp()

    def isf(self, q: Tensor, params: Tensor) -> Tensor:
        mu, sigma = params.double().unbind(-1)
        return (mu - sigma * torch.special.ndtri(q.double())).exp()

    def mean(self, params: Tensor) -> Tensor:
        mu, sigma = params.unbind(-1)
        return (mu + 0.5 * sigma.square()).exp()

    def variance(self, params: Tensor) -> Tensor:
        mu, sigma = params.unbind(-1)
        return torch.expm1(sigma.square()) * (2 * mu + sigma.square()).exp()

    def rescale(self, params: Tensor, shift: Tensor | float, scale: Tensor | float) -> Tensor:
        mu, sigma = params.unbind(-1)
        return torch.stack([mu + torch.as_tensor(scale, dtype=mu.dtype).log(), sigma], -1)
