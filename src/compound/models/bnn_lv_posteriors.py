"""Factorised Gaussian posteriors of a network's weights, and of the latent inputs of every training row."""

from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional


class Posterior(NamedTuple):
    """Independent Gaussians N(mean, prior sigmoid(rho)) beside their prior N(0, prior)."""

    mean: Tensor
    rho: Tensor
    prior: float  # a variance

    def transform(self, noise: Tensor) -> Tensor:
        """Draws from standard normal noise, of the noise's shape."""
        return torch.addcmul(self.mean, (self.prior * torch.sigmoid(self.rho)).sqrt(), noise)

    def log_ratio(self, value: Tensor, noise: Tensor) -> Tensor:
        """log p / q of each value that came from this noise."""
        return 0.5 * (functional.logsigmoid(self.rho) - value.square() / self.prior + noise.square())

    def kl(self) -> Tensor:
        """KL of each Gaussian to its prior."""
        return 0.5 * (
            torch.sigmoid(self.rho) + self.mean.square() / self.prior - 1 - functional.logsigmoid(self.rho)
        )


class Weights(nn.Module):
    """q(W) of one affine map, the bias as last row."""

    def __init__(self, inputs: int, outputs: int, prior: float, stream: Generator):
        super().__init__()
        self.prior = prior
        self.mean = nn.Parameter(
            0.1 * torch.randn(inputs + 1, outputs, generator=stream, dtype=torch.float32)
        )
        self.rho = nn.Parameter(torch.full((inputs + 1, outputs), -10.0, dtype=torch.float32))

    @property
    def posterior(self) -> Posterior:
        return Posterior(self.mean, self.rho, self.prior)


class Latents(nn.Module):
    """q(z_n) of every training row; how many there are is known when training starts."""

    size: Tensor  # () rows that are trained on

    def __init__(self, latents: int, prior: float):
        super().__init__()
        self.prior = prior
        self.mean = nn.Parameter(torch.zeros(0, latents, dtype=torch.float32))
        self.rho = nn.Parameter(torch.zeros(0, latents, dtype=torch.float32))
        self.register_buffer("size", torch.zeros((), dtype=torch.float32))

    def on_fit_start(self, rows: int, size: int) -> None:
        self._resize(rows)
        self.size.fill_(size)

    def select(self, index: Tensor) -> Posterior:
        """The posteriors of the latent inputs of these training rows."""
        return Posterior(self.mean.index_select(0, index), self.rho.index_select(0, index), self.prior)

    def _resize(self, rows: int) -> None:
        self.mean.data = self.mean.new_zeros(rows, self.mean.shape[1])
        self.rho.data = self.rho.new_full((rows, self.rho.shape[1]), 5.0)  # almost the prior

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        saved = state_dict.get(f"{prefix}mean")
        if saved is not None and saved.ndim == 2:
            self._resize(len(saved))
        super()._load_from_state_dict(state_dict, prefix, *rest)
