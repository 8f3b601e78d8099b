"""Bayes by backprop: every weight, biases included, has a Gaussian posterior of its own.

    q(W) = prod N(W_ij; M_ij, S_ij²),    p(W) = prod N(W_ij; 0, p)
    KL = sum [ log(sqrt(p) / S) + (S² + M²) / (2 p) - 1/2 ]
    [h; 1] W ~ N([h; 1] M, [h; 1]² S²)

Blundell et al. (2015), with one Gaussian as prior. With gradients='graves' every step draws whole weight
matrices for all rows, and variances learn from squared gradients of single data in place of the curvature:

    dL/dM = mean dl/dW,    dL/dS² = 1/2 mean (dl/dW)²        (Graves 2011)

A draw: n_samples * n_inner draws of all weights; all of it is epistemic.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from compound.models.base import Loss, weighted_row_mean
from compound.models.variational import Variational, VariationalConfig
from compound.nn.mean_field import MeanFieldLinear
from compound.ops.affine import append_ones
from compound.ops.clamp import clamp_inputs, clipped_relu
from compound.ops.drawn_curvature import drawn_affine
from compound.ops.gaussian_noise import standard_normal
from compound.random import Generators, only_generator
from compound.types import Batch, Task


@dataclass(frozen=True)
class BBBConfig(VariationalConfig):
    """Options of `bbb`.

    Parameters
    ----------
    log_std : float, default=-5.0
        Initial log S.
    gradients : {'local', 'graves'}, default='local'
        Of local reparametrisation, or those of Graves' diagonal variational inference: one draw of all
        weights for all rows, and squared gradients for the variances.
    """

    log_std: float = -5.0
    gradients: Literal["local", "graves"] = "local"


class BBB(Variational):
    """A network with independent Gaussian weights."""

    method = "bbb"
    Config = BBBConfig
    reference = "Blundell et al. (2015)"

    def __init__(self, inputs: int, task: Task, config: BBBConfig, seed: int = 0):
        super().__init__(inputs, task, config, seed)
        if config.gradients not in ("local", "graves"):
            raise ValueError(f"gradients is {config.gradients!r}: use 'local' or 'graves'")

    def _layer(self, mean: Tensor, prior_variance: float) -> MeanFieldLinear:
        return MeanFieldLinear(mean, self.config.log_std, prior_variance)

    def loss(self, batch: Batch, generator: Generators) -> Loss:
        if self.config.gradients == "local":
            return super().loss(batch, generator)
        stream, samples = only_generator(generator), self.config.samples
        h = clamp_inputs(batch.x).expand(samples, -1, -1)
        share = row_shares(batch) / samples
        kl = h.new_zeros(())
        for number, layer in enumerate(self.stack):
            assert isinstance(layer, MeanFieldLinear)
            h = append_ones(clipped_relu(h) if number else h)
            noise = standard_normal(stream, (samples, *layer.mean.shape), h)
            h = drawn_affine(h, layer.mean, layer.log_std, noise, share)  # (S, rows, width)
            kl = kl + layer.kl()
        nll, kl = self.likelihood.nll(h, batch.y, batch.row_weights).mean(), kl / batch.size
        return Loss(nll + kl, nll.detach(), kl.detach())


@torch.enable_grad()
def row_shares(batch: Batch) -> Tensor:  # (rows,)
    """The weight of each row's log-likelihood in its mean over the batch."""
    values = torch.zeros(len(batch), dtype=batch.x.dtype, device=batch.x.device, requires_grad=True)
    (shares,) = torch.autograd.grad(weighted_row_mean(values, batch.row_weights).sum(), values)
    return shares
