"""An affine map with random scales on its inputs; `ops.multiplicative_linear` has the formulas."""

import math

import torch
from torch import Generator, Tensor, nn

from compound.nn.flows import init_normal, make_flow
from compound.ops.gaussian_noise import standard_normal
from compound.ops.multiplicative_linear import (
    Flows,
    Noise,
    Parameters,
    conditional_std,
    multiplicative_linear,
)
from compound.precision import full_precision


class MultiplicativeLinear(nn.Module):
    """Draws of x W + b with W_ij ~ N(z_i M_ij, S_ij²) and random z, and an upper bound on the KL.

    The KL is that of q(W) q(b) to N(0, prior_variance). Louizos and Welling (2017).
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        generator: Generator,
        flows: tuple[int, int] = (2, 2),  # steps of q's flow and of r's
        flow_hidden: int = 50,  # width of both flows
        prior_variance: float = 1.0,
        log_std: float = -9.0,  # initial log S
    ):
        super().__init__()
        self.inputs = inputs
        self.outputs = outputs
        self.prior_variance = prior_variance
        self.mean = nn.Parameter(init_normal(generator, inputs, outputs))  # M
        self.log_std = nn.Parameter(torch.full((inputs, outputs), log_std, dtype=torch.float32))  # log S
        bias = torch.tensor([[0.0], [-9.0]], dtype=torch.float32).repeat(1, outputs)
        self.bias = nn.Parameter(bias)  # μ_b and log v_b
        z_mean = init_normal(generator, inputs) + float(flows[0] == 0)  # a flow learns the level of z itself
        z_log_var = torch.full_like(z_mean, math.log(0.1))
        auxiliary = [init_normal(generator, inputs) for _ in range(3)]
        self.vectors = nn.Parameter(torch.stack([z_mean, z_log_var, *auxiliary]))  # m_0, log v_0, c, b_1, b_2
        self.flow = make_flow(inputs, flows[0], flow_hidden, generator)
        self.reverse_flow = make_flow(inputs, flows[1], flow_hidden, generator)

    @full_precision
    def forward(self, x: Tensor, groups: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Draws of x W + b (rows, out) for x (rows, in), and the bound on the KL for each z (groups,).

        `groups` vectors z are drawn; row k uses number k modulo `groups`.
        """
        noise = Noise(
            standard_normal(generator, (groups, self.inputs), x),
            self.flow.masks(groups, generator),
            standard_normal(generator, (len(x), self.outputs), x),
            standard_normal(generator, (groups, self.outputs), x),
            self.reverse_flow.masks(groups, generator),
        )
        return self.forward_given(x, noise)

    def forward_given(self, x: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """`forward` with given random numbers, for as many z as they have."""
        parameters = Parameters(self.mean, self.log_std, self.bias, self.vectors)
        flow_parameters = tuple(self.flow.parameters()), tuple(self.reverse_flow.parameters())
        flows = Flows(self.flow.op, self.reverse_flow.op, *flow_parameters)
        return multiplicative_linear(x, noise, parameters, flows, self.prior_variance)

    @full_precision
    def draw(self, n: int, generator: Generator) -> Tensor:  # (n, in)
        """n draws of the scales z."""
        mean, log_var = self.vectors[:2]
        noise = standard_normal(generator, (n, self.inputs), mean)
        return self.flow(torch.addcmul(mean, log_var.exp().sqrt(), noise), generator)[0]

    @full_precision
    def means(self, x: Tensor, z: Tensor) -> Tensor:  # (draws, rows, out)
        """E[x W + b | z] at x (draws or 1, rows, in), for every z (draws, in)."""
        if x.shape[-2] > self.outputs:  # z multiplies the smaller factor
            return torch.baddbmm(self.bias[0], x.expand(len(z), -1, -1), z.unsqueeze(-1) * self.mean)
        scaled = (x * z.unsqueeze(-2)).flatten(0, 1)
        return torch.addmm(self.bias[0], scaled, self.mean).unflatten(0, (len(z), -1))

    @full_precision
    def std(self, x: Tensor) -> Tensor:  # (..., rows, out)
        """Standard deviation of x W + b given z, for x (..., rows, in); it is the same for every z."""
        return conditional_std(x, self.log_std, self.bias[1])
