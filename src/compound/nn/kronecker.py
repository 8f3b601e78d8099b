"""Curvature of the summed loss in the weights of an affine map, and the posterior of its pre-activations.

    H = sum_n (a_n a_n^T) ⊗ (g_n^T Λ_n g_n)  over W (in + 1, out), row by row
    a = (h, 1),  g = df/ds,  Λ = -∇² log p(y | f)        s = a W: pre-activations, f: outputs of the network

`Kronecker` approximates H by mean(a a^T) ⊗ sum(g^T Λ g), with separate blocks for weights and bias; `Dense`
is H in full. The prior precision δ is added to the eigenvalues, so a new δ needs no new decomposition.
"""

import torch
from torch import Tensor, nn

from compound.nn.networks import Network
from compound.ops.affine import append_ones
from compound.ops.clamp import LIMIT, clamp_inputs, clipped_relu


class Kronecker(nn.Module):
    """H = blockdiag(A, 1) ⊗ G, with A = mean of h h^T and G = sum of g^T Λ g; before `fit` H = 0.

    `factored` adds √δ to both factors in place of δ to their product, as Ritter et al. (2018) do: a narrower
    posterior.
    """

    input_values: Tensor  # (in + 1,) the bias last
    input_vectors: Tensor  # (in, in)
    output_values: Tensor  # (out,)
    output_vectors: Tensor  # (out, out)
    size: Tensor  # () N

    def __init__(self, inputs: int, outputs: int, factored: bool = False):
        super().__init__()
        self.factored = factored
        self.register_buffer("input_values", append_ones(torch.zeros(inputs, dtype=torch.float32)))
        self.register_buffer("input_vectors", torch.eye(inputs, dtype=torch.float32))
        self.register_buffer("output_values", torch.zeros(outputs, dtype=torch.float32))
        self.register_buffer("output_vectors", torch.eye(outputs, dtype=torch.float32))
        self.register_buffer("size", torch.ones((), dtype=torch.float32))

    def zeros(self) -> list[Tensor]:
        """Accumulators for `add`, at 0: the sums behind A and G, in float64."""
        return [torch.zeros_like(v, dtype=torch.float64) for v in (self.input_vectors, self.output_vectors)]

    def add(self, sums: list[Tensor], h: Tensor, g: Tensor, weight: Tensor) -> None:
        """Add rows to accumulators from `zeros`.

        Shapes: h (rows, in), g = √(weight Λ) df/ds (rows, directions, out), weight (rows,).
        """
        g = g.flatten(0, 1)
        sums[0] += (weight.unsqueeze(-1) * h).T @ h
        sums[1] += g.T @ g

    def fit(self, sums: list[Tensor], size: Tensor) -> None:
        """Store the eigendecomposition of the sums from `add`; `size` is the sum of the rows' weights."""
        inputs, outputs = sums
        values, vectors = torch.linalg.eigh(inputs / size)
        self.input_values[:-1] = values.clamp_min(0)
        self.input_vectors.copy_(vectors)
        values, vectors = torch.linalg.eigh(outputs)
        self.output_values.copy_(values.clamp_min(0))
        self.output_vectors.copy_(vectors)
        self.size.copy_(size)

    def rescale(self, factor: Tensor) -> None:
        """Multiply H by a factor."""
        self.output_values.mul_(factor)

    def precisions(self, delta: Tensor, factor: Tensor | float = 1.0) -> Tensor:  # (in + 1, out)
        """Eigenvalues of factor H + δ I, in float64."""
        inputs = self.input_values.double()
        outputs = factor * self.output_values.double()
        if not self.factored:
            return torch.outer(inputs, outputs) + delta
        balance = self.size.double().sqrt()
        root = delta.sqrt()
        return torch.outer(balance * inputs + root, outputs / balance + root)

    def variances(self, h: Tensor, delta: Tensor) -> Tensor:  # (rows, out)
        """Posterior variances of s = [h, 1] W for h (rows, in), in the basis `output_vectors`.

        In this basis the entries of s are independent.
        """
        covariance = self.precisions(delta).reciprocal().to(h.dtype)
        return torch.addmm(covariance[-1], (h @ self.input_vectors).square(), covariance[:-1])

    def covariance(self, h: Tensor, g: Tensor, delta: Tensor) -> Tensor:
        """Posterior covariance (rows, directions, directions) of g s, where s = [h, 1] W.

        Shapes: h (rows, in), g (rows, directions, out); δ is the prior precision.
        """
        projected = (g @ self.output_vectors).double()
        return (projected * self.variances(h, delta).double().unsqueeze(1)) @ projected.mT


class Dense(nn.Module):
    """H in full; weights are ordered output by output: (out, in + 1), the bias last."""

    values: Tensor  # (weights,)
    vectors: Tensor  # (weights, weights)

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.inputs = inputs
        self.outputs = outputs
        weights = (inputs + 1) * outputs
        self.register_buffer("values", torch.zeros(weights, dtype=torch.float32))
        self.register_buffer("vectors", torch.eye(weights, dtype=torch.float32))

    def zeros(self) -> list[Tensor]:
        """The accumulator for `add`, at 0, in float64."""
        shape = (self.outputs, self.outputs, self.inputs + 1, self.inputs + 1)
        return [torch.zeros(shape, dtype=torch.float64, device=self.values.device)]

    def add(self, sums: list[Tensor], h: Tensor, g: Tensor, weight: Tensor) -> None:
        """As `Kronecker.add`; the weights are already in g."""
        h_aug = append_ones(h)
        curvature = g.mT @ g  # (rows, out, out)
        for i in range(self.outputs):
            for j in range(i + 1):
                block = (curvature[:, i, j].unsqueeze(-1) * h_aug).T @ h_aug
                sums[0][i, j] += block
                if i != j:
                    sums[0][j, i] += block

    def fit(self, sums: list[Tensor], size: Tensor) -> None:
        """As `Kronecker.fit`; `size` is not used."""
        values, vectors = torch.linalg.eigh(sums[0].transpose(1, 2).reshape(self.vectors.shape))
        self.values.copy_(values.clamp_min(0))
        self.vectors.copy_(vectors)

    def rescale(self, factor: Tensor) -> None:
        """Multiply H by a factor."""
        self.values.mul_(factor)

    def precisions(self, delta: Tensor, factor: Tensor | float = 1.0) -> Tensor:  # (weights,)
        """Eigenvalues of factor H + δ I, in float64."""
        return factor * self.values.double() + delta

    def covariance(self, h: Tensor, g: Tensor, delta: Tensor) -> Tensor:
        """As `Kronecker.covariance`."""
        # (out, rows, weights)
        projected = append_ones(h) @ self.vectors.view(self.outputs, self.inputs + 1, -1)
        projected = projected * self.precisions(delta).rsqrt().to(h.dtype)
        root = (g @ projected.transpose(0, 1)).double()  # (rows, directions, weights)
        return root @ root.mT


def layer_inputs(network: Network, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """The inputs (rows, in) of each layer of a single network, and its outputs f (rows, out)."""
    *first, last = network.layers
    inputs = [clamp_inputs(x)]
    for layer in first:
        inputs.append(clipped_relu(torch.addmm(layer.bias[0], inputs[-1], layer.weight[0])))
    return inputs, torch.addmm(last.bias[0], inputs[-1], last.weight[0])


def jacobians(network: Network, inputs: list[Tensor], directions: Tensor) -> list[Tensor]:
    """`directions` (rows, directions, outputs) times df/ds of each of the last len(inputs) layers.

    `inputs` are those of these layers, from `layer_inputs`; each product is (rows, directions, out).
    """
    products = [directions]
    for layer, h in zip(network.layers[:0:-1], inputs[:0:-1], strict=False):
        is_open = (h > 0) & (h < LIMIT)  # units that are neither off nor clipped
        products.append((products[-1] @ layer.weight[0].T) * is_open.unsqueeze(1))
    return products[::-1]
