"""Factorised Gaussian posteriors of a network's weights, and of the latent inputs of every training row."""

from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional


class Posterior(NamedTuple):
    """Independent Gaussians q = N(mean, prior sigmoid(rho)), with the prior p = N(0, prior)."""

    mean: Tensor
    rho: Tensor  # of the shape of mean
    prior: float  # a variance

    def transform(self, noise: Tensor) -> Tensor:
        """mean + std noise: draws from q, for standard normal noise (..., *shape of mean)."""
        return torch.addcmul(self.mean, (self.prior * torch.sigmoid(self.rho)).sqrt(), noise)

    def log_ratio(self, value: Tensor, noise: Tensor) -> Tensor:
        """log p(value) - log q(value) elementwise, where value = transform(noise)."""
        return 0.5 * (functional.logsigmoid(self.rho) - value.square() / self.prior + noise.square())

    def kl(self) -> Tensor:
        """KL(q || p) of each Gaussian, of the shape of mean."""
        squares = self.mean.square() / self.prior
        return 0.5 * (torch.sigmoid(self.rho) + squares - 1 - functional.logsigmoid(self.rho))


class Weights(nn.Module):
    """q(W) of one layer; the last row of W (inputs + 1, outputs) is the bias."""

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
    """q(z_n) of every training row n; there are none before `on_fit_start`."""

    size: Tensor  # () number of rows that are trained on

    def __init__(self, latents: int, prior: float):
        super().__init__()
        self.prior = prior
        self.mean = nn.Parameter(torch.zeros(0, latents, dtype=torch.float32))
        self.rho = nn.Parameter(torch.zeros(0, latents, dtype=torch.float32))
        self.register_buffer("size", torch.zeros((), dtype=torch.float32))

    def on_fit_start(self, rows: int, size: int) -> None:
        """Create posteriors for `rows` rows, close to the prior; `size` of the rows are trained on."""
        self._resize(rows)
        self.size.fill_(size)

    def select(self, index: Tensor) -> Posterior:
        """The posteriors (rows, latents) of the training rows with the numbers `index` (rows,)."""
        return Posterior(self.mean.index_select(0, index), self.rho.index_select(0, index), self.prior)

    def _resize(self, rows: int) -> None:
        self.mean.data = self.mean.new_zeros(rows, self.mean.shape[1])
        self.rho.data = self.rho.new_full((rows, self.rho.shape[1]), 5.0)  # almost the prior

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        saved = state_dict.get(f"{prefix}mean")
        if saved is not None and saved.ndim == 2:
            self._resize(len(saved))
        super()._load_from_state_dict(state_dict, prefix, *rest)
