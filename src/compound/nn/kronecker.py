"""Curvature of the summed loss in the weights of an affine map, in eigenform, and what it says about pre-activations.

    H = sum_n (a_n a_n^T) ⊗ (g_n^T Λ_n g_n)  over W (in + 1, out), row by row;  a = (h, 1), g = df/ds, Λ = -∇² log p(y | f)

`Kronecker` approximates H by mean(a a^T) ⊗ sum(g^T Λ g), weights and bias each in a block of their own; `Dense` keeps all of it.
The prior's precision δ is added to the eigenvalues, so another δ costs nothing.
"""

import torch
from torch import Tensor, nn

from compound.nn.networks import LIMIT, Network, clamp_inputs, clipped_relu


class Kronecker(nn.Module):
    """H = blockdiag(A, 1) ⊗ G, with A = mean of h h^T and G = sum of g^T Λ g; before `fit` H = 0.

    `factored` adds √δ to both factors in place of δ to their product, as Ritter et al. (2018) do: a narrower posterior.
    """

    input_values: Tensor  # (in + 1,) the bias last
    input_vectors: Tensor  # (in, in)
    output_values: Tensor  # (out,)
    output_vectors: Tensor  # (out, out)
    size: Tensor  # () N

    def __init__(self, inputs: int, outputs: int, factored: bool = False):
        super().__init__()
        self.factored = factored
        self.register_buffer(
            "input_values",
            torch.cat([torch.zeros(inputs, dtype=torch.float32), torch.ones(1, dtype=torch.float32)]),
        )
        self.register_buffer("input_vectors", torch.eye(inputs, dtype=torch.float32))
        self.register_buffer("output_values", torch.zeros(outputs, dtype=torch.float32))
        self.register_buffer("output_vectors", torch.eye(outputs, dtype=torch.float32))
        self.register_buffer("size", torch.ones((), dtype=torch.float32))

    def zeros(self) -> list[Tensor]:
        """Where `add` sums up: A and G, in float64."""
        inputs, outputs = self.input_vectors, self.output_vectors
        return [torch.zeros_like(inputs, dtype=torch.float64), torch.zeros_like(outputs, dtype=torch.float64)]

    def add(self, sums: list[Tensor], h: Tensor, g: Tensor, weight: Tensor) -> None:
        """Rows h (rows, in), g = √(weight Λ) df/ds (rows, directions, out), weight (rows,)."""
        g = g.flatten(0, 1)
        sums[0] += (weight.unsqueeze(-1) * h).T @ h
        sums[1] += g.T @ g

    def fit(self, sums: list[Tensor], size: Tensor) -> None:
        """The eigenvectors of what was summed over all rows; `size` is the sum of their weights."""
        inputs, outputs = sums
        values, vectors = torch.linalg.eigh(inputs / size)
        self.input_values[:-1] = values.clamp_min(0)
        self.input_vectors.copy_(vectors)
        values, vectors = torch.linalg.eigh(outputs)
        self.output_values.copy_(values.clamp_min(0))
        self.output_vectors.copy_(vectors)
        self.size.copy_(size)

    def rescale(self, factor: Tensor) -> None:
        self.output_values.mul_(factor)

    def precisions(self, delta: Tensor, factor: Tensor | float = 1.0) -> Tensor:  # (in + 1, out)
        """Eigenvalues of factor H + δ I, in float64."""
        inputs, outputs = self.input_values.double(), factor * self.output_values.double()
        if not self.factored:
            return torch.outer(inputs, outputs) + delta
        balance, root = self.size.double().sqrt(), delta.sqrt()
        return torch.outer(balance * inputs + root, outputs / balance + root)

    def variances(self, h: Tensor, delta: Tensor) -> Tensor:  # (rows, out)
        """Posterior variances of s = [h, 1] W along the columns of `output_vectors`, which make them independent."""
        covariance = self.precisions(delta).reciprocal().to(h.dtype)
        return torch.addmm(covariance[-1], (h @ self.input_vectors).square(), covariance[:-1])

    def covariance(
        self, h: Tensor, g: Tensor, delta: Tensor
    ) -> Tensor:  # (rows, directions, directions) float64
        """Posterior covariance of g s, for g (rows, directions, out)."""
        turned = (g @ self.output_vectors).double()
        return (turned * self.variances(h, delta).double().unsqueeze(1)) @ turned.mT


class Dense(nn.Module):
    """H in full; its (in + 1) out entries go output by output: (out, in + 1), the bias last."""

    values: Tensor  # (numbers,)
    vectors: Tensor  # (numbers, numbers)

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        numbers = (inputs + 1) * outputs
        self.register_buffer("values", torch.zeros(numbers, dtype=torch.float32))
        self.register_buffer("vectors", torch.eye(numbers, dtype=torch.float32))

    def zeros(self) -> list[Tensor]:
        wide = self.inputs + 1
        return [
            torch.zeros(
                self.outputs, self.outputs, wide, wide, dtype=torch.float64, device=self.values.device
            )
        ]

    def add(self, sums: list[Tensor], h: Tensor, g: Tensor, weight: Tensor) -> None:
        """As `Kronecker.add`; the weights are already in g."""
        wide = _wide(h)
        curvature = g.mT @ g  # (rows, out, out)
        for i in range(self.outputs):
            for j in range(i + 1):
                block = (curvature[:, i, j].unsqueeze(-1) * wide).T @ wide
                sums[0][i, j] += block
                if i != j:
                    sums[0][j, i] += block

    def fit(self, sums: list[Tensor], size: Tensor) -> None:
        values, vectors = torch.linalg.eigh(sums[0].transpose(1, 2).reshape(self.vectors.shape))
        self.values.copy_(values.clamp_min(0))
        self.vectors.copy_(vectors)

    def rescale(self, factor: Tensor) -> None:
        self.values.mul_(factor)

    def precisions(self, delta: Tensor, factor: Tensor | float = 1.0) -> Tensor:  # (numbers,)
        return factor * self.values.double() + delta

    def covariance(
        self, h: Tensor, g: Tensor, delta: Tensor
    ) -> Tensor:  # (rows, directions, directions) float64
        turned = _wide(h) @ self.vectors.view(self.outputs, self.inputs + 1, -1)  # (out, rows, numbers)
        root = g @ (turned * self.precisions(delta).rsqrt().to(h.dtype)).transpose(
            0, 1
        )  # (rows, directions, numbers)
        root = root.double()
        return root @ root.mT


def _wide(h: Tensor) -> Tensor:  # (rows, in + 1)
    return torch.cat([h, torch.ones_like(h[:, :1])], 1)


def layer_inputs(network: Network, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """What each layer of a single network is given, (rows, in), and the outputs f (rows, out)."""
    *first, last = network.layers
    inputs = [clamp_inputs(x)]
    for layer in first:
        inputs.append(clipped_relu(torch.addmm(layer.bias[0], inputs[-1], layer.weight[0])))
    return inputs, torch.addmm(last.bias[0], inputs[-1], last.weight[0])


def jacobians(network: Network, inputs: list[Tensor], directions: Tensor) -> list[Tensor]:
    """directions (rows, directions, outputs) times df/ds of the last layers, as many as `inputs`: (rows, directions, out) each."""
    found = [directions]
    for layer, h in zip(network.layers[:0:-1], inputs[:0:-1], strict=False):
        is_open = (h > 0) & (h < LIMIT)  # units that are neither off nor saturated
        found.append((found[-1] @ layer.weight[0].T) * is_open.unsqueeze(1))
    return found[::-1]
