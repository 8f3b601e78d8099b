"""The interface of families of distributions."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor


class Family(ABC):
    """A parametric family of distributions of one number.

    y is (...) and the parameters are (..., n), stacked along the last axis in the order of `parameters`; both
    broadcast. `log_prob` and `log_survival` have gradients, in any dtype; all other functions compute in
    float64.

    Examples
    --------
    >>> import torch
    >>> from compound.families import FAMILIES
    >>> weibull, scale_and_shape = FAMILIES["weibull"], torch.tensor([2.0, 1.5], dtype=torch.float64)
    >>> weibull.cdf(weibull.icdf(torch.tensor(0.25), scale_and_shape), scale_and_shape)
    tensor(0.2500, dtype=torch.float64)
    """

    parameters: ClassVar[tuple[str, ...]]
    discrete: ClassVar[bool] = False  # values are 0, 1, 2, ...
    positive: ClassVar[bool] = False  # values are above 0, with a density

    @abstractmethod
    def log_prob(self, y: Tensor, params: Tensor) -> Tensor:
        """Log-density, or log-probability where values are whole numbers."""

    @abstractmethod
    def log_survival(self, y: Tensor, params: Tensor) -> Tensor:
        """log P(Y > y)."""

    @abstractmethod
    def cdf(self, y: Tensor, params: Tensor) -> Tensor:
        """P(Y <= y)."""

    @abstractmethod
    def survival(self, y: Tensor, params: Tensor) -> Tensor:
        """P(Y > y), accurate where it is small."""

    @abstractmethod
    def icdf(self, q: Tensor, params: Tensor) -> Tensor:
        """The quantile of level q, 0 < q < 1: the smallest value y with P(Y <= y) >= q."""

    @abstractmethod
    def isf(self, q: Tensor, params: Tensor) -> Tensor:
        """The quantile of level 1 - q, accurate where q is small."""

    @abstractmethod
    def mean(self, params: Tensor) -> Tensor:
        """E Y."""

    @abstractmethod
    def variance(self, params: Tensor) -> Tensor:
        """Var Y."""

    @abstractmethod
    def rescale(self, params: Tensor, shift: Tensor | float, scale: Tensor | float) -> Tensor:
        """The parameters of shift + scale Y.

        The shift must be 0 if values are positive; whole numbers have shift 0 and scale 1.
        """

    def sample(self, n: int, params: Tensor, generator: Generator) -> Tensor:  # (n, ...)
        """n draws for all parameters (..., parameters), by the quantiles of uniform numbers."""
        params = params.double()
        u = torch.rand((n, *params.shape[:-1]), generator=generator, dtype=torch.float64)
        return self.icdf(u.clamp(1e-16, 1 - 1e-16), params)


def special(function: Callable[..., Any], *arguments: Tensor) -> Tensor:
    """A function of scipy.special of tensors, in float64 on the CPU; the result is on their device."""
    values = function(*(argument.detach().double().cpu().numpy() for argument in arguments))
    return torch.as_tensor(values, dtype=torch.float64).to(arguments[0].device)
