"""Layers with random scales: the compiled autograd function against the reference."""

import pytest
import torch
from kernel_checks import assert_all_close, randn

from compound.nn.multiplicative import MultiplicativeLinear
from compound.ops.multiplicative_linear import Noise
from compound.random import named_generator


@pytest.mark.parametrize("inputs", [6, 1])  # with one input the flows are planar
@pytest.mark.parametrize(("rows", "groups", "flows"), [(8, 2, (1, 1)), (7, 3, (0, 0)), (5, 1, (2, 1))])
@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_outputs_bound_and_gradients_are_those_of_the_reference(inputs, rows, groups, flows, scale):
    """At 40 the log-precisions of the auxiliary posterior exceed their bound."""
    layer = MultiplicativeLinear(inputs, 5, named_generator(1), flows, 4, prior_variance=0.7, log_std=-1.0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.3 * randn(*parameter.shape).float()
        layer.bias[1] += 8.0  # a variance of the bias that shows in the bound
        layer.vectors[4] *= scale
    noise = Noise(
        randn(groups, inputs),
        layer.flow.masks(groups, named_generator(2)),
        randn(rows, 5),
        randn(groups, 5, seed=3),
        layer.reverse_flow.masks(groups, named_generator(4)),
    )
    results = []
    for dtype in (torch.float32, torch.float64):
        layer.to(dtype)
        x = randn(rows, inputs).float().to(dtype).requires_grad_()
        out, bound = layer.forward_given(x, Noise(*[value.float().to(dtype) for value in noise]))
        weights = randn(rows, 5, seed=5).to(dtype), randn(groups, seed=6).abs().to(dtype)
        loss = (out * weights[0]).sum() + bound @ weights[1]
        results.append([out, bound, *torch.autograd.grad(loss, [x, *layer.parameters()])])
    tolerances = (1e-4, 2e-5) if inputs > 1 else (1e-3, 1e-3)  # planar flows amplify rounding
    assert_all_close(*results, *tolerances)
