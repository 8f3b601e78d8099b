"""Vectors of 16 float32 numbers in registers, for compiled loops whose sums must stay in them.

numba may write `out[j] += x * w[j]` to memory after every step, or not vectorise it. With lanes a loop says
what is kept in registers:

    total = splat(F(0))
    for i in range(n):
        total = splat_at(x, i) * load(w, 16 * i) + total
    store(out, 0, total)

Addresses are those that loops receive, offsets count numbers. Sums are computed in the order written, and
products may be fused with them. Processors without vectors of 16 use several smaller ones.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, models, register_model

from compound.ops.jit import ROUND, F, as_intrinsic, kernel

LANES = 16
_FLOAT, _INT, _LONG = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, LANES)
_INTEGERS = ir.VectorType(_INT, LANES)


class _Lanes(types.Type):  # type: ignore[misc]
    """numba's type of these vectors."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


_lanes = _Lanes()


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


def _arithmetic(function: Callable[..., Any], instruction: str) -> None:
    """Teach numba an operator of two vectors."""

    @infer_global(function)
    class _Template(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: Sequence[Any], _: Any) -> Any:
            return signature(_lanes, _lanes, _lanes) if tuple(args) == (_lanes, _lanes) else None

    @lower_builtin(function, _lanes, _lanes)
    def _lower(_: Any, builder: Any, __: Any, args: Any) -> Any:
        return getattr(builder, instruction)(*args, flags=("contract",))


for _operator, _name in ((operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul")):
    _arithmetic(_operator, _name)


def _pointer(builder: Any, address: Any, offset: Any, kind: Any) -> Any:
    numbers = builder.inttoptr(address, _FLOAT.as_pointer())
    return builder.bitcast(builder.gep(numbers, [offset]), kind.as_pointer())


def _fill(builder: Any, value: Any) -> Any:
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(_INT, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_INTEGERS, [0] * LANES))


@as_intrinsic
def load(_: Any, address: Any, offset: Any) -> Any:
    """The 16 numbers at an address, from an offset on."""
    return _lanes(types.int64, types.int64), lambda context, builder, _, args: builder.load(
        _pointer(builder, args[0], args[1], _VECTOR), align=4
    )


@as_intrinsic
def store(_: Any, address: Any, offset: Any, values: Any) -> Any:
    """Write a vector to an address, from an offset on."""

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        builder.store(args[2], _pointer(builder, args[0], args[1], _VECTOR), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, _lanes), generate


@as_intrinsic
def splat(_: Any, value: Any) -> Any:
    """A vector of 16 equal numbers."""
    return _lanes(types.float32), lambda context, builder, _, args: _fill(builder, args[0])


@as_intrinsic
def splat_at(_: Any, address: Any, offset: Any) -> Any:
    """A vector of 16 copies of the number at an offset."""
    return _lanes(types.int64, types.int64), lambda context, builder, _, args: _fill(
        builder, builder.load(_pointer(builder, args[0], args[1], _FLOAT), align=4)
    )


def _join(builder: Any, low: Any, high: Any) -> Any:
    """Two vectors of 8 as one of 16."""
    return builder.shuffle_vector(low, high, ir.Constant(_INTEGERS, list(range(LANES))))


@as_intrinsic
def load_halves(_: Any, address: Any, low: Any, high: Any) -> Any:
    """The 8 numbers from one offset on, then the 8 from another one on."""

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        half = ir.VectorType(_FLOAT, LANES // 2)
        parts = [builder.load(_pointer(builder, args[0], at, half), align=4) for at in args[1:]]
        return _join(builder, *parts)

    return _lanes(types.int64, types.int64, types.int64), generate


@as_intrinsic
def splat_halves(_: Any, address: Any, low: Any, high: Any) -> Any:
    """8 copies of the number at one offset, then 8 of that at another one."""

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        numbers = [builder.load(_pointer(builder, args[0], at, _FLOAT), align=4) for at in args[1:]]
        low, high = (_fill(builder, number) for number in numbers)
        mask = ir.Constant(_INTEGERS, [0] * (LANES // 2) + [LANES] * (LANES // 2))
        return builder.shuffle_vector(low, high, mask)

    return _lanes(types.int64, types.int64, types.int64), generate


def _compare(relation: str) -> Callable[..., Any]:
    """The code of an intrinsic: bit k is 1 where the relation holds in lane k."""

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        bits = builder.bitcast(builder.fcmp_unordered(relation, *args), ir.IntType(LANES))
        return builder.zext(bits, _LONG)

    return generate


@as_intrinsic
def differ(_: Any, x: Any, y: Any) -> Any:
    """An integer whose bit k is 1 where x != y in lane k, or one of them is NaN."""
    return types.int64(_lanes, _lanes), _compare("!=")


@as_intrinsic
def below(_: Any, x: Any, y: Any) -> Any:
    """An integer whose bit k is 1 where x < y in lane k, or one of them is NaN."""
    return types.int64(_lanes, _lanes), _compare("<")


def _choose(relation: str) -> Callable[..., Any]:
    return lambda context, builder, _, args: builder.select(builder.fcmp_ordered(relation, *args), *args)


@as_intrinsic
def maximum(_: Any, x: Any, y: Any) -> Any:
    """The larger of two vectors, lane by lane; y where one of them is NaN."""
    return _lanes(_lanes, _lanes), _choose(">")


@as_intrinsic
def minimum(_: Any, x: Any, y: Any) -> Any:
    """The smaller of two vectors, lane by lane; y where one of them is NaN."""
    return _lanes(_lanes, _lanes), _choose("<")


@as_intrinsic
def add_lanes(_: Any, x: Any) -> Any:
    """The sum of the 16 numbers: lane k plus lane k + 8, of these k plus k + 4, and so on."""

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        (values,) = args
        width = LANES
        while width > 1:
            width //= 2
            undefined = ir.Constant(values.type, ir.Undefined)
            kind = ir.VectorType(_INT, width)
            halves = [range(width), range(width, 2 * width)]
            parts = [ir.Constant(kind, list(half)) for half in halves]
            values = builder.fadd(*(builder.shuffle_vector(values, undefined, part) for part in parts))
        return builder.extract_element(values, ir.Constant(_INT, 0))

    return types.float32(_lanes), generate


@as_intrinsic
def _power_of_two(_: Any, n: Any) -> Any:
    """2^n for whole n from -126 to 127."""

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        bias, shift = (ir.Constant(_INTEGERS, [value] * LANES) for value in (127, 23))
        return builder.bitcast(
            builder.shl(builder.add(builder.fptosi(args[0], _INTEGERS), bias), shift), _VECTOR
        )

    return _lanes(_lanes), generate


@as_intrinsic
def lowest_bit(_: Any, bits: Any) -> Any:
    """The number of the lowest bit that is 1, of an integer that is not 0."""

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        flag = ir.IntType(1)
        kind = ir.FunctionType(_LONG, [_LONG, flag])
        count = cgutils.get_or_insert_function(builder.module, kind, "llvm.cttz.i64")
        return builder.call(count, [args[0], ir.Constant(flag, 1)])

    return types.int64(types.int64), generate


@as_intrinsic
def address_of(_: Any, values: Any) -> Any:
    """The address of an array that a loop has made, as long as the loop holds it."""

    def generate(context: Any, builder: Any, kind: Any, args: Any) -> Any:
        return builder.ptrtoint(context.make_array(kind.args[0])(context, builder, args[0]).data, _LONG)

    return types.int64(values), generate


@kernel({"contract"})
def lanes_exp(x: Any) -> Any:
    """`exp` of `jit`, in every lane."""
    x = minimum(splat(F(88)), maximum(splat(F(-87)), x))  # in this order NaN stays NaN
    n = (x * splat(F(1.4426950408889634)) + splat(ROUND)) - splat(ROUND)
    f = (x - n * splat(F(0.693359375))) - n * splat(F(-2.12194440e-4))
    p = splat(F(1.9875691500e-4)) * f + splat(F(1.3981999507e-3))
    p = ((p * f + splat(F(8.3334519073e-3))) * f + splat(F(4.1665795894e-2))) * f + splat(F(1.6666665459e-1))
    p = (p * f + splat(F(5.0000001201e-1))) * f * f + f + splat(F(1))
    return p * _power_of_two(n)
