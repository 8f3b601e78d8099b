"""Noisy K-FAC: matrix-Gaussian posteriors from the curvature of the natural gradient.

The Fisher information of a layer is kept as A (x) G, A = E[a a^T] of its inputs (with a constant 1), G = E[g
g^T] of its scores. With A = Q_a diag(α) Q_a^T and G = Q_g diag(β) Q_g^T all is elementwise in the eigenbases:

    W = M + Q_a (σ * E) Q_g^T,    σ_ij² = λ / N / d_ij(γ)
    step = Q_a [ (Q_a^T D Q_g)_ij / d_ij(γ + extra) ] Q_g^T

    unfactored:  d_ij(γ) = α_i β_j + γ,   the exact posterior where the model is linear and Gaussian
    factored:    d_ij(γ) = (α_i + π √γ) (β_j + √γ / π),   π² = mean(α) / mean(β),   as published

A of the first layer depends on the data alone. Its inputs are rotated by Q_a, where A is diagonal and the
prior the same. Zhang, Sun, Duvenaud, Grosse (2018).

A draw: n_samples * n_inner draws of the weights of all layers from their posterior; all of it is epistemic.
"""

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Generator, Tensor
from torch.nn import functional

from compound.models.noisy import Noisy, NoisyConfig
from compound.models.noisy_layer import Layer, Prior, ema_update
from compound.types import Batch, Task


@dataclass(frozen=True)
class NoisyKFACConfig(NoisyConfig):
    """Options of `noisy-kfac`.

    Parameters
    ----------
    damping : {'unfactored', 'factored'}, default='unfactored'
        Exact damping, or as published.
    cache : bool, default=True
        Keep the rotated training rows: twice the memory of the inputs, for steps several times as fast.
    """

    damping: Literal["unfactored", "factored"] = "unfactored"
    cache: bool = True


class KroneckerLayer(Layer):
    """W ~ N(M, λ/N (A (x) G + γ)^-1).

    With `rotated`, inputs are already in the eigenbasis of A: the layer has no `inputs` and `basis_in`.
    """

    inputs: Tensor  # (in + 1, in + 1) A
    outputs: Tensor  # (out, out) G
    basis_in: Tensor  # Q_a
    basis_out: Tensor  # Q_g
    values_in: Tensor  # (in + 1,) α
    values_out: Tensor  # (out,) β

    def __init__(self, mean: Tensor, damping: str, rotated: bool):
        super().__init__(mean)
        rows, columns = mean.shape
        self.damping, self.rotated = damping, rotated
        for name, size in (("out", columns),) if rotated else (("in", rows), ("out", columns)):
            self.register_buffer(f"{name}puts", torch.eye(size, dtype=torch.float32))
            self.register_buffer(f"basis_{name}", torch.eye(size, dtype=torch.float32))
        self.register_buffer("values_in", torch.ones(rows, dtype=torch.float32))
        self.register_buffer("values_out", torch.ones(columns, dtype=torch.float32))

    def fisher(self) -> Tensor:
        return torch.outer(self.values_in, self.values_out)

    def damped(self, damping: float) -> Tensor:
        """Damped eigenvalues d_ij(γ) of the Fisher information (see above) for γ = damping, (in + 1, out)."""
        if self.damping == "unfactored":
            return super().damped(damping)
        tiny = 1e-10  # the mean of β falls towards 0 as classes become certain
        pi = (self.values_in.mean().clamp_min(tiny) / self.values_out.mean().clamp_min(tiny)).sqrt()
        return torch.outer(self.values_in + pi * damping**0.5, self.values_out + damping**0.5 / pi)

    def collect(self, a: Tensor, g: Tensor, row_weight: Tensor, decay: float) -> None:
        if not self.rotated:
            ema_update(self.inputs, (a * row_weight).mT @ a, decay)
        ema_update(self.outputs, (g * row_weight).mT @ g, decay)

    def refresh(self, prior: Prior) -> None:
        if not self.rotated:
            _eigen(self.inputs, self.values_in, self.basis_in)
        _eigen(self.outputs, self.values_out, self.basis_out)
        super().refresh(prior)

    def to_basis(self, weight: Tensor) -> Tensor:
        weight = weight @ self.basis_out
        return weight if self.rotated else self.basis_in.mT @ weight

    def from_basis(self, weight: Tensor) -> Tensor:
        weight = weight @ self.basis_out.mT
        return weight if self.rotated else self.basis_in @ weight

    def inputs_to_basis(self, a: Tensor) -> Tensor:
        return a if self.rotated else a @ self.basis_in

    def outputs_from_basis(self, noise: Tensor) -> Tensor:
        return noise @ self.basis_out.mT


class NoisyKFAC(Noisy):
    """A network with matrix-Gaussian posteriors over its weights."""

    method = "noisy-kfac"
    rows_in_memory = "it keeps all rows in the basis of their covariance"
    Config = NoisyKFACConfig
    rotation: Tensor  # (in + 1, in + 1) Q_a of the first layer

    def __init__(self, inputs: int, task: Task, config: NoisyKFACConfig, seed: int = 0):
        if config.damping not in ("unfactored", "factored"):
            raise ValueError(f"damping is {config.damping!r}: use 'unfactored' or 'factored'")
        super().__init__(inputs, task, config, seed)
        self.register_buffer("rotation", torch.eye(inputs + 1, dtype=torch.float32))
        self._reset_cache(torch.empty(0, dtype=torch.float32), 0)

    def layer(self, k: int, mean: Tensor) -> KroneckerLayer:
        return KroneckerLayer(mean, self.config.damping, rotated=k == 0)

    def on_fit_start(self, data: Batch, generator: Generator) -> None:
        """Compute the first layer's A from all training rows, and express its means in the eigenbasis."""
        super().on_fit_start(data, generator)
        x, weight = data.x, data.weight
        weight = x.new_ones(len(x)) if weight is None else weight.reshape(-1).to(x.dtype)
        total = torch.zeros(self.rotation.shape, dtype=torch.float64)
        weights = (weight / weight.sum()).unsqueeze(1).split(4096)
        for rows, row_weight in zip(data.x.split(4096), weights, strict=True):
            a = super().augmented_inputs(rows)
            total += (a * row_weight).mT @ a
        first = cast(KroneckerLayer, self.layers[0])
        former = self.rotation.clone()
        _eigen(total, first.values_in, self.rotation)
        with torch.no_grad():
            first.mean.copy_(self.rotation.mT @ (former @ first.mean))
        self._reset_cache(data.x, len(data))

    def augmented_inputs(self, x: Tensor) -> Tensor:
        return super().augmented_inputs(x) @ self.rotation

    def on_fit_end(self, data: Batch, generator: Generator) -> None:
        super().on_fit_end(data, generator)
        self._reset_cache(data.x, 0)

    def _reset_cache(self, like: Tensor, rows: int) -> None:
        """Empty the cache of rotated rows, with room for `rows` rows of the dtype of `like`.

        It is not a buffer, so that it is not saved.
        """
        self._rows, self._checksums = like.new_empty(rows, self.inputs + 1), like.new_full((rows,), torch.nan)

    def batch_inputs(self, batch: Batch) -> Tensor:
        """The rotated rows (rows, in + 1) of a batch, from the cache where they are in it.

        Rows are cached by index, with a checksum that tells whether a row has changed.
        """
        if not self.config.cache or batch.x.requires_grad:
            return self.augmented_inputs(batch.x)
        checksums = (batch.x * torch.linspace(1, 2, self.inputs, dtype=batch.x.dtype)).sum(-1)
        if checksums.dtype != self._checksums.dtype:
            self._reset_cache(checksums, 0)
        more = int(batch.index.max()) + 1 - len(self._checksums)
        if more > 0:  # a resumed run starts with an empty cache
            self._rows = functional.pad(self._rows, (0, 0, 0, more))
            self._checksums = functional.pad(self._checksums, (0, more), value=torch.nan)
        if torch.equal(self._checksums[batch.index], checksums):
            return self._rows.index_select(0, batch.index)
        # the whole batch: the last bits of a product may depend on its shape
        rows = self.augmented_inputs(batch.x)
        self._rows[batch.index], self._checksums[batch.index] = rows, checksums
        return rows


def _eigen(matrix: Tensor, values: Tensor, basis: Tensor) -> None:
    """Write eigenvalues (n,) and eigenvectors (n, n) of a symmetric matrix into `values` and `basis`.

    They are computed in float64, in which small eigenvalues are not lost by rounding.
    """
    eigenvalues, vectors = torch.linalg.eigh(matrix.double())
    values.copy_(eigenvalues.clamp_min(0))
    basis.copy_(vectors)
