"""Compiled operations in float32 against their reference formulas in float64, gradients included."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.testing import assert_close

from compound.ops.jit import can_use_kernel
from compound.random import named_generator


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=named_generator(seed, *shape), dtype=torch.float64)


def gradients_of(op: Callable[..., Sequence[Tensor]], inputs: list[Tensor]) -> list[Tensor | None]:
    """Outputs of op(*inputs), and the gradients of a fixed weighted sum of them."""
    leaves = [value.detach().requires_grad_() for value in inputs]
    outputs = [out for out in op(*leaves) if out.numel()]
    loss = sum((out.double() * randn(*out.shape, seed=9)).sum() for out in outputs)
    return [*outputs, *torch.autograd.grad(loss, leaves, allow_unused=True)]


def assert_all_close(
    ours: Sequence[Tensor | None],
    exact: Sequence[Tensor | None],
    rtol: float,
    scaled_atol: float | None = None,
) -> None:
    """Within rtol of every entry, or within scaled_atol (default: rtol) of the tensor's largest entry."""
    scaled_atol = rtol if scaled_atol is None else scaled_atol
    for one, other in zip(ours, exact, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None and other.numel():
            scale = float(other.detach().abs().max())
            assert_close(one.double(), other.double(), rtol=rtol, atol=scaled_atol * scale)


def assert_matches_reference(
    op: Callable[..., Sequence[Tensor]],
    reference: Callable[..., Sequence[Tensor]],
    inputs: list[Tensor],
    rtol: float = 2e-5,
    scaled_atol: float | None = None,
) -> None:
    """Values and gradients of `op`, compiled, against `reference`; inputs are rounded to float32 first.

    In float64 `op` must choose the reference itself.
    """
    single = [value.float() for value in inputs]
    double = [value.double() for value in single]
    assert can_use_kernel(*single) and not can_use_kernel(*double)
    exact = gradients_of(reference, double)
    assert_all_close(gradients_of(op, single), exact, rtol, scaled_atol)
    assert_all_close(gradients_of(op, double), exact, 1e-12)
