"""Loops over float32 arrays, compiled: what takes torch a dozen passes over a batch, each with its own start, takes one here.

Every formula stands in plain torch where it is used (`nn.moments.reference`, `nn.matrix_gaussian.reference`); that form serves other dtypes
and devices, and the tests hold these loops against it. numba compiles a loop when it is first called and keeps it on disk.
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
from compound.ops.guard import PLAIN, Loop
from compound.ops.guard import launch as launch

F = np.float32
# sums may be taken in any order and products fused; infinities and NaN stay what they are
LOOSE = {"reassoc", "contract", "nsz"}


def can_use_kernel(*tensors: Tensor) -> bool:
    """Whether the loops may work on these: plain float32 tensors in this machine's memory, with no trace looking on."""
    return (
        all(t.dtype is torch.float32 and t.is_cpu and type(t) in PLAIN for t in tensors) and not is_tracing()
    )


def is_tracing() -> bool:
    """Whether a trace or a transform of torch.func looks on, which sees only what torch does."""
    return bool(compat.dispatch_modes()) or compat.transforms() is not None


def kernel(flags: set[str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compiles a loop at its first call, and keeps it on disk until a file of this folder changes (see `cache`)."""

    def wrap(loop: Callable[..., Any]) -> Callable[..., Any]:
        compiled: Any = njit(fastmath=flags, error_model="numpy")(loop)
        with suppress(RuntimeError):  # no place on disk may be written: compiled anew in every process
            compiled._cache = LoopCache(loop)
        return compiled

    return wrap


def loop(flags: set[str], writes: str) -> Callable[[Callable[..., Any]], Loop]:
    """A kernel that `launch` calls with the addresses of arrays; it names those that it writes to."""
    return lambda function: Loop(function, kernel(flags)(function), writes)


def _intrinsic(typed: Callable[[Any, Any], Any]) -> Any:
    """Of one argument, whatever mypy makes of the context that numba adds."""
    return intrinsic(typed)


@_intrinsic
def as_float(_: Any, bits: Any) -> Any:
    """The float32 with these bits."""
    return types.float32(types.int32), lambda context, builder, _, args: builder.bitcast(
        args[0], context.get_value_type(types.float32)
    )


@_intrinsic
def as_bits(_: Any, value: Any) -> Any:
    return types.int32(types.float32), lambda context, builder, _, args: builder.bitcast(
        args[0], context.get_value_type(types.int32)
    )


@_intrinsic
def pointer(_: Any, address: Any) -> Any:
    kind = types.CPointer(types.float32)
    return kind(types.int64), lambda context, builder, _, args: builder.inttoptr(
        args[0], context.get_value_type(kind)
    )


@kernel(LOOSE)
def array(address: int, shape: Any) -> Any:
    """The float32 array at an address."""
    return carray(pointer(address), shape)


@kernel(LOOSE)
def each_of(members: int, rows: int) -> int:
    """How many rows each member has; all have as many."""
    if members < 1 or rows % members != 0:
        raise ValueError("rows do not come in equal parts, one for each member")
    return rows // members


@loop(LOOSE, "")
def largest(x_: int, count: int) -> float:
    """The largest size of a number; NaN counts as larger than all."""
    x, bits = array(x_, (count,)), np.int32(0)
    for i in range(count):
        bits = max(
            bits, as_bits(x[i]) & np.int32(0x7FFFFFFF)
        )  # without their sign, bits are ordered as the numbers are
    return as_float(bits)


ROUND = F(
    1.5 * 2**23
)  # adding and taking it off rounds to a whole number; needs operations in the order written


@kernel({"contract"})
def exp(x: Any) -> Any:
    """e^x to the last bit or two, in operations that run for many numbers at once (a call of the C library would not).

    Beyond -87 and 88, where float32 ends, it stays what it is there; NaN stays NaN.
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
    """ln x for ordinary positive x, likewise."""
    bits = as_bits(x)
    power = (bits - np.int32(0x3F3504F3)) >> np.int32(23)
    f = as_float(bits - (power << np.int32(23))) - F(1)  # x = 2^power (1 + f), sqrt(1/2) <= 1 + f < sqrt(2)
    p = ((F(7.0376836292e-2) * f - F(1.1514610310e-1)) * f + F(1.1676998740e-1)) * f - F(1.2420140846e-1)
    p = ((p * f + F(1.4249322787e-1)) * f - F(1.6668057665e-1)) * f + F(2.0000714765e-1)
    p = (p * f - F(2.4999993993e-1)) * f + F(3.3333331174e-1)
    return F(np.float32(power)) * F(math.log(2)) + (f + f * f * (f * p - F(0.5)))


@kernel({"contract"})
def log1p(x: Any) -> Any:
    """ln(1 + x) for x >= 0; what 1 + x rounds away is put back."""
    u = F(1) + x
    return log(u) - ((u - F(1)) - x) / u
