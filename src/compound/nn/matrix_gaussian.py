"""Affine maps, and affine maps whose weights have a matrix-Gaussian posterior."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Generator, Tensor, nn

from compound.distributions import MatrixNormal
from compound.ops.affine import affine, linear
from compound.ops.gaussian_noise import row_normal, standard_normal
from compound.ops.matrix_normal import matrix_normal_kl
from compound.ops.matrix_normal_linear import matrix_normal_linear, row_scale
from compound.ops.noisy_affine import noisy_affine
from compound.ops.weight_gradients import drawn_weights
from compound.precision import full_precision
from compound.random import Generators


class Affine(nn.Module):
    """An affine map with the interface of `MatrixGaussianLinear`, whose posterior is a point.

    Parameters
    ----------
    weight : Tensor of shape (*members, in + 1, out)
        Initial weights; the last row is the bias.

    Examples
    --------
    >>> import torch
    >>> from compound.nn import Affine
    >>> layer = Affine(torch.ones(3, 2))
    >>> layer(torch.tensor([[1.0, 2.0, 1.0]]), torch.Generator()).tolist()
    [[4.0, 4.0]]
    """

    def __init__(self, weight: Tensor):
        super().__init__()
        self.weight = nn.Parameter(weight)

    @full_precision
    def forward(self, x_aug: Tensor, generator: Generators, shared: int = 1) -> Tensor:
        """The product h~ W.

        Parameters
        ----------
        x_aug : Tensor of shape (*members, rows, in + 1)
            Inputs with a constant 1 appended.
        generator : torch.Generator or sequence of torch.Generator
            Not used.
        shared : int, default 1
            Not used.

        Returns
        -------
        Tensor of shape (*members, rows, out)
        """
        return linear(x_aug, self.weight)

    def draw(self, generator: Generator) -> Tensor:
        """The weights, (*members, in + 1, out)."""
        return self.weight

    def kl(self) -> Tensor:
        """Zero for every member, (*members,): there is no prior."""
        return self.weight.new_zeros(self.weight.shape[:-2])


class MatrixGaussianLinear(nn.Module):
    """An affine map with weights W ~ MN(mean, diag(row)², diag(col)²), or several side by side.

    Each block of outputs is a matrix normal of its own, with its own row factor; their products are computed
    as one. The prior of a block is MN(prior_mean, prior_variance I, I), where only biases have a prior mean.
    Louizos and Welling (2016).

    Parameters
    ----------
    mean : Tensor of shape (*members, in + 1, out)
        Initial posterior mean; the last row is the bias.
    blocks : sequence of int, default ()
        Number of outputs of each block; one block if empty.
    log_variance : float, default -3.0
        Initial log-variance of all rows and columns.
    prior_variance : sequence of float, default (1.0,)
        Prior variance of each block.
    prior_bias : Tensor of shape (out,), optional
        Prior mean of the bias; 0 by default.
    gradients : {"local", "weights"}, default "local"
        Those of local reparametrisation, or noisier ones of weights that are drawn, see
        `compound.ops.weight_gradients`. Draws are the same in law.

    Raises
    ------
    ValueError
        If blocks and prior variances do not fit the number of outputs.

    Examples
    --------
    >>> import torch
    >>> from compound.nn import MatrixGaussianLinear
    >>> layer = MatrixGaussianLinear(torch.zeros(4, 2))
    >>> layer(torch.ones(5, 4), torch.Generator().manual_seed(0)).shape
    torch.Size([5, 2])
    >>> (weights,) = layer.posterior()
    >>> weights.event_shape, round(layer.kl().item(), 2)
    (torch.Size([4, 2]), 20.01)
    """

    prior_mean: Tensor  # (in + 1, out)

    def __init__(
        self,
        mean: Tensor,
        blocks: Sequence[int] = (),
        log_variance: float = -3.0,
        prior_variance: Sequence[float] = (1.0,),
        prior_bias: Tensor | None = None,
        gradients: Literal["local", "weights"] = "local",
    ):
        super().__init__()
        self.gradients = gradients
        *members, rows, outputs = mean.shape
        self.blocks = tuple(blocks) or (outputs,)
        self.prior_variance = tuple(prior_variance)
        if sum(self.blocks) != outputs or len(self.prior_variance) != len(self.blocks):
            raise ValueError(
                f"blocks {self.blocks} with {len(prior_variance)} prior variances do not fit"
                f" {outputs} outputs"
            )
        self.mean = nn.Parameter(mean)
        self.log_row = nn.Parameter(mean.new_full((*members, len(self.blocks), rows), log_variance))
        self.log_col = nn.Parameter(mean.new_full((*members, outputs), log_variance))
        prior_mean = torch.zeros(rows, outputs, dtype=torch.float32)
        prior_mean[-1] = 0.0 if prior_bias is None else prior_bias
        self.register_buffer("prior_mean", prior_mean, persistent=False)

    @full_precision
    def forward(self, x_aug: Tensor, generator: Generators, shared: int = 1) -> Tensor:
        """Draws of h~ W, with a weight matrix of its own for every row.

        Parameters
        ----------
        x_aug : Tensor of shape (*members, rows, in + 1)
            Inputs with a constant 1 appended.
        generator : torch.Generator or sequence of torch.Generator
            Source of the noise: one, or one per member.
        shared : int, default 1
            The rows come in this many equal parts, and row b of every part uses the same W.

        Returns
        -------
        Tensor of shape (*members, rows, out)
        """
        *members, _, outputs = self.mean.shape
        noise = row_normal(generator, (*members, x_aug.shape[-2], outputs), self.mean)
        out = noisy_affine(x_aug, self.mean, self.log_row, self.log_col, noise, self.blocks, shared)
        if self.gradients == "local" or not torch.is_grad_enabled():
            return out
        if shared != 1:
            raise ValueError("gradients is 'weights': rows may not share their weights, give samples=1")
        rows = (0.5 * self.log_row).exp().unbind(-2)
        cols = (0.5 * self.log_col).exp().unsqueeze(-2).split(self.blocks, -1)
        blocks = []
        for block, row, col in zip(out.split(self.blocks, -1), rows, cols, strict=True):
            q = x_aug * row.unsqueeze(-2)
            blocks.append(drawn_weights(block, q, col, row_normal(generator, q.shape, q)))
        return torch.cat(blocks, -1)

    @full_precision
    def draw(self, generator: Generator) -> Tensor:
        """One weight matrix for all rows, (*members, in + 1, out)."""
        noise = self._scale_rows(standard_normal(generator, self.mean.shape, self.mean))
        return torch.addcmul(self.mean, noise, (0.5 * self.log_col).exp().unsqueeze(-2))

    @full_precision
    def deviation(self, noise: Tensor) -> Tensor:
        """W - E[W] of the weights from standard normal noise, (*members, in + 1, out) each."""
        return self._scale_rows(noise) * (0.5 * self.log_col).exp().unsqueeze(-2)

    def _scale_rows(self, noise: Tensor) -> Tensor:
        """Multiply the rows of each block of noise by their standard deviations."""
        rows = (0.5 * self.log_row).exp().unbind(-2)
        parts = zip(rows, noise.split(self.blocks, -1), strict=True)
        return torch.cat([block * row.unsqueeze(-1) for row, block in parts], -1)

    @full_precision
    def moments(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (rows, out) of h~ W for h (rows, in); one block, no members."""
        scale = row_scale(h * h, self.log_row.exp()[0])
        return affine(h, self.mean), scale.unsqueeze(-1) * (0.5 * self.log_col).exp()

    @full_precision
    def sample(self, h: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Draws of h~ W for h (rows, in), and `kl()`; one block, no members, no prior mean.

        `noise` (draws, rows, out) is standard normal and is overwritten.
        """
        (prior_variance,) = self.prior_variance
        return matrix_normal_linear(h, self.mean, self.log_row, self.log_col, noise, prior_variance)

    def posterior(self) -> tuple[MatrixNormal, ...]:
        """The distribution of the weights of each block, with batch shape (*members,)."""
        rows = (0.5 * self.log_row).exp().unbind(-2)
        cols = (0.5 * self.log_col).exp().split(self.blocks, -1)
        parts = zip(self.mean.split(self.blocks, -1), rows, cols, strict=True)
        return tuple(MatrixNormal(mean, row, col, validate_args=False) for mean, row, col in parts)

    def prior(self) -> tuple[MatrixNormal, ...]:
        """The prior distribution of the weights of each block."""
        parts = zip(self.prior_mean.split(self.blocks, -1), self.prior_variance, strict=True)
        return tuple(
            MatrixNormal(mean, mean.new_full(mean.shape[:1], variance**0.5), mean.new_ones(mean.shape[1]))
            for mean, variance in parts
        )

    def kl(self) -> Tensor:
        """The KL of the posterior to the prior, (*members,), summed over blocks."""
        factors = self.mean, self.log_row, self.log_col
        return matrix_normal_kl(*factors, self.prior_mean, self.blocks, self.prior_variance)
