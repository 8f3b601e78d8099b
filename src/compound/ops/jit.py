"""Compiled loops over float32 arrays: one pass where torch would make a dozen, each with its overhead.

Each operation has its own file: the reference formula in torch, the loop and the loop's gradient. numba
compiles a loop when it is first called and keeps the machine code on disk (see `cache`).
"""

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.extending import intrinsic
from torch import Tensor

from compound import compat
from compound.ops.cache import LoopCache
from compound.ops.guard import TENSOR_TYPES, Loop
from compound.ops.guard import launch as launch

F = np.float32
# Sums may be reordered and products fused; infinities and NaN keep their meaning.
FASTMATH = {"reassoc", "contract", "nsz"}


def can_use_kernel(*tensors: Tensor) -> bool:
    """Whether compiled loops may run on these tensors: plain, float32, on the CPU, outside of any trace."""
    return (
        all(t.dtype is torch.float32 and t.is_cpu and type(t) in TENSOR_TYPES for t in tensors)
        and not is_tracing()
    )


def can_use_opaque_kernel(*tensors: Tensor) -> bool:
    """Whether torch.compile traces these tensors, and loops may run on them in an operation of their own.

    An exported program has torch's own operations only.
    """
    return (
        torch.compiler.is_compiling()
        and not torch.compiler.is_exporting()
        and all(t.dtype is torch.float32 and t.is_cpu for t in tensors)
    )


def is_tracing() -> bool:
    """Whether a trace, a compiler or a transform of torch.func sees only what torch itself computes."""
    return torch.compiler.is_compiling() or bool(compat.dispatch_modes()) or compat.transforms() is not None


def kernel(fastmath: set[str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: compile a function at its first call, cached on disk until a file of this folder changes."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        compiled: Any = njit(fastmath=fastmath, error_model="numpy", nogil=True)(function)
        with suppress(RuntimeError):  # no folder can be written: compiled again in every process
            compiled._cache = LoopCache(function)
        return compiled

    return wrap


def loop(fastmath: set[str], writes: str) -> Callable[[Callable[..., Any]], Loop]:
    """Decorator: compile a loop over arrays, for `launch` to call, with numba's `fastmath` options.

    `writes` names the arrays that the loop writes to, separated by spaces.
    """
    return lambda function: Loop(function, kernel(fastmath)(function), writes)


def as_intrinsic(typed: Callable[..., Any]) -> Any:
    """numba's `intrinsic`: inside loops the function is called without its first argument, the context."""
    return intrinsic(typed)


@as_intrinsic
def as_float(_: Any, bits: Any) -> Any:
    """The float32 with the given bits."""
    return types.float32(types.int32), lambda context, builder, _, args: builder.bitcast(
        args[0], context.get_value_type(types.float32)
    )


@as_intrinsic
def as_bits(_: Any, value: Any) -> Any:
    """The bits of a float32."""
    return types.int32(types.float32), lambda context, builder, _, args: builder.bitcast(
        args[0], context.get_value_type(types.int32)
    )


@as_intrinsic
def pointer(_: Any, address: Any) -> Any:
    """An address as a pointer to float32."""
    kind = types.CPointer(types.float32)
    return kind(types.int64), lambda context, builder, _, args: builder.inttoptr(
        args[0], context.get_value_type(kind)
    )


@kernel(FASTMATH)
def array(address: int, shape: Any) -> Any:
    """The float32 array of this shape at an address; for use inside loops."""
    return carray(pointer(address), shape)


@kernel(FASTMATH)
def rows_per_member(members: int, rows: int) -> int:
    """The number of rows of each member; all members have equally many."""
    if members < 1 or rows % members != 0:
        raise ValueError("rows do not divide into equal parts, one per member")
    return rows // members


# Adding and subtracting it rounds to an integer; needs operations in the order written.
ROUND = F(1.5 * 2**23)


@kernel({"contract"})
def exp(x: Any) -> Any:
    """e^x to the last bit or two, in operations that vectorise (a call of the C library would not).

    The argument is clamped to [-87, 88], the range of float32; NaN stays NaN.
    """
    x = F(-87) if x < F(-87) else x
    x = F(88) if x > F(88) else x
    n = (x * F(1.4426950408889634) + ROUND) - ROUND
    f = (x - n * F(0.693359375)) - n * F(-2.12194440e-4)  # |f| <= ln 2 / 2; Cephes' polynomial
    p = F(1.9875691500e-4) * f + F(1.3981999507e-3)
    p = ((p * f + F(8.3334519073e-3)) * f + F(4.1665795894e-2)) * f + F(1.6666665459e-1)
    p = (p * f + F(5.0000001201e-1)) * f * f + f + F(1)
    return p * as_float((np.int32(n) + np.int32(127)) << np.int32(23))


@kernel({"contract"})
def log(x: Any) -> Any:
    """ln x for normal positive x, to the last bits, in operations that vectorise."""
    bits = as_bits(x)
    power = (bits - np.int32(0x3F3504F3)) >> np.int32(23)
    f = as_float(bits - (power << np.int32(23))) - F(1)  # x = 2^power (1 + f), sqrt(1/2) <= 1 + f < sqrt(2)
    p = ((F(7.0376836292e-2) * f - F(1.1514610310e-1)) * f + F(1.1676998740e-1)) * f - F(1.2420140846e-1)
    p = ((p * f + F(1.4249322787e-1)) * f - F(1.6668057665e-1)) * f + F(2.0000714765e-1)
    p = (p * f - F(2.4999993993e-1)) * f + F(3.3333331174e-1)
    return F(np.float32(power)) * F(math.log(2)) + (f + f * f * (f * p - F(0.5)))


@kernel({"contract"})
def log1p(x: Any) -> Any:
    """ln(1 + x) for x >= 0, with a correction for what 1 + x rounds away."""
    u = F(1) + x
    return log(u) - ((u - F(1)) - x) / u
