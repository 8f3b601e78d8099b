"""The checks before every compiled loop: its arguments are validated here, before any address is used.

A loop declares what it expects in its own body: `array(x_aug_, (rows, r))` makes the argument `x_aug_` the
address of rows times r numbers. These lines are parsed, so that the sizes that are checked are the sizes that
are used, and turned into one generated function per loop: small loops run some thirty times in a training
step, and a generic check would take longer than they do.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import gt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from compound.compat import transforms

Offsets = NDArray[np.int64]  # where the parts of an axis begin, in order, and where the last one ends
Doubles = NDArray[np.float64]
TENSOR_TYPES = (Tensor, torch.nn.Parameter)  # no subclasses: they may be more than their numbers
FLOAT = torch.float32
INT64 = np.dtype(np.int64)
FLOAT64 = np.dtype(np.float64)


class Loop:
    """A compiled loop and its signature: addresses of arrays (named with a trailing "_"), then numbers."""

    def __init__(self, function: Callable[..., Any], compiled: Callable[..., Any], writes: str):
        self.function = function
        self.compiled = compiled
        self.name = function.__name__
        parameters = inspect.signature(function).parameters
        kinds = {name: parameter.annotation for name, parameter in parameters.items()}
        self.arrays = [name for name in kinds if name.endswith("_")]
        self.numbers = {name: kind for name, kind in kinds.items() if name not in self.arrays}
        self.writes = [name.removesuffix("_") in writes.split() for name in self.arrays]

    @cached_property
    def counts(self) -> dict[str, str]:
        """For each array an expression, in the loop's numbers, of how many elements it has."""
        (source,) = ast.parse(textwrap.dedent(inspect.getsource(self.function))).body
        shapes: dict[str, list[str]] = {}
        aliases: dict[str, str] = {}  # local names that shapes are written with, such as c = offsets[-1]
        for node in ast.walk(source):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "array":
                shapes[ast.unparse(node.args[0])] = [ast.unparse(side) for side in node.args[1].elts]  # type: ignore[attr-defined]
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                aliases.setdefault(node.targets[0].id, ast.unparse(node.value))
        aliases = {name: value for name, value in aliases.items() if name not in self.numbers}
        sizes = {name: [f"({aliases.get(n, n)})" for n in shapes[name]] for name in self.arrays}
        return {name: " * ".join(size) for name, size in sizes.items()}

    @cached_property
    def check(self) -> Callable[..., tuple[tuple[int, ...], tuple[int, ...]] | None]:
        """Generated function: first and last addresses of the arrays; None if some argument does not fit."""
        tables = [name for name, kind in self.numbers.items() if kind in (Offsets, Doubles)]
        conditions = [f"type({n}) is int and {n} >= 0" for n, kind in self.numbers.items() if kind is int]
        others = [(n, kind.__name__) for n, kind in self.numbers.items() if kind in (float, bool)]
        conditions += [f"type({n}) is {kind}" for n, kind in others]
        conditions += [f"is_{n}({n})" for n in tables]
        to_lists = "".join(f"    {n} = {n}.tolist()\n" for n in tables)
        fits = (
            "type({0}) in TENSOR_TYPES and {0}.dtype is FLOAT and {0}.is_cpu and {0}.numel() == {0}n"
            " and {0}.is_contiguous() and not {0}.is_neg()"
        )
        templates = ("{0}", "{0}n", "{0}p", "{0}.data_ptr()", "{0}p + 4 * {0}n")
        arrays, counts, begins, addresses, ends = (", ".join(map(t.format, self.arrays)) for t in templates)
        code = (
            f"def check(tensors, {', '.join(self.numbers)}):\n"
            f"    {arrays}, = tensors\n"
            f"    if not ({' and '.join(conditions)} and transforms() is None):\n"
            f"        return None\n"
            f"{to_lists}"
            f"    {counts}, = {', '.join(self.counts.values())},\n"
            f"    if not ({' and '.join(map(fits.format, self.arrays))}):\n"
            f"        return None\n"
            f"    {begins}, = {addresses},\n"
            f"    return ({begins},), ({ends},)\n"
        )
        namespace: dict[str, Any] = {"TENSOR_TYPES": TENSOR_TYPES, "FLOAT": FLOAT, "transforms": transforms}
        tests = {Offsets: _is_offsets, Doubles: _is_doubles}
        namespace |= {f"is_{name}": tests[self.numbers[name]] for name in tables}
        exec(code, namespace)
        return namespace["check"]  # type: ignore[no-any-return]


def launch(loop: Loop, tensors: Sequence[Tensor], *numbers: Any) -> Any:
    """Run a loop on tensors and return its result.

    The loop takes addresses: making arrays of tensors would take longer than many a loop. Each tensor must be
    a plain, contiguous float32 tensor on the CPU, with as many elements as the loop visits; none that the
    loop writes to may share memory with another. The caller's references keep the tensors alive until the
    loop is done.

    Raises
    ------
    ValueError
        If an argument does not fit, before anything is written.
    """
    if len(tensors) != len(loop.arrays) or len(numbers) != len(loop.numbers):
        raise ValueError(
            f"loop {loop.name} is given {len(tensors)} tensors and {len(numbers)} numbers:"
            f" it takes {_signature(loop)}"
        )
    try:
        addresses = loop.check(tensors, *numbers)
    except (RuntimeError, AttributeError):  # not a tensor, or a tensor without an address
        addresses = None
    if addresses is None:
        raise ValueError(_reason(loop, tensors, numbers))
    begins, ends = addresses
    # arrays that are only read may share memory
    if len(begins) > 1 and any(map(gt, sorted(ends), sorted(begins)[1:])):
        _raise_if_overlapping(loop, begins, ends)
    if 0 in begins:
        _raise_if_without_memory(loop, begins, ends)
    return loop.compiled(*begins, *numbers)


def _is_doubles(table: Any) -> bool:
    """Whether `table` is a contiguous vector of float64."""
    is_array = type(table) is np.ndarray
    return is_array and (table.dtype is FLOAT64 or table.dtype == FLOAT64) and table.strides == (8,)


def _is_offsets(table: Any) -> bool:
    """Whether `table` is a contiguous, non-decreasing vector of int64 that starts at 0."""
    is_array = type(table) is np.ndarray
    if not (is_array and (table.dtype is INT64 or table.dtype == INT64) and table.strides == (8,)):
        return False
    entries = table.tolist()
    return entries[:1] == [0] and entries == sorted(entries)


def _signature(loop: Loop) -> str:
    arrays = [name.removesuffix("_") for name in loop.arrays]
    numbers = [f"{name} ({_type_name(kind)})" for name, kind in loop.numbers.items()]
    return ", ".join([*arrays, *numbers])


def _type_name(kind: Any) -> str:
    return {Offsets: "non-decreasing int64 from 0", Doubles: "float64"}.get(kind) or str(kind.__name__)


def _reason(loop: Loop, tensors: Sequence[Any], numbers: Sequence[Any]) -> str:
    """Which argument does not fit, and what would."""
    tests = {Offsets: _is_offsets, Doubles: _is_doubles}
    for (name, kind), number in zip(loop.numbers.items(), numbers, strict=True):
        fits = tests[kind](number) if kind in tests else type(number) is kind
        if not fits or (kind is int and number < 0):
            expected = f"{_type_name(kind)}, not below 0" if kind is int else _type_name(kind)
            return (
                f"{name} of loop {loop.name} is {number!r} ({type(number).__name__}): it must be {expected}"
            )
    sizes = dict(zip(loop.numbers, numbers, strict=True))
    for array, values in zip(loop.arrays, tensors, strict=True):
        name = f"{array.removesuffix('_')} of loop {loop.name}"
        count = int(eval(loop.counts[array], sizes))
        if type(values) not in TENSOR_TYPES:
            return f"{name} is a {type(values).__name__}: pass a plain torch.Tensor"
        if values.dtype is not FLOAT or not values.is_cpu:
            return f"{name} is {values.dtype} on {values.device}: pass torch.float32 on cpu"
        shape = tuple(values.shape)
        if values.numel() != count:
            return f"{name} has shape {shape}, {values.numel()} elements: it must have {count}"
        if values.layout is torch.strided and not values.is_contiguous():
            return f"{name} has shape {shape} and strides {values.stride()}: pass values.contiguous()"
    return (
        f"loop {loop.name} is given tensors without memory of their own (inside torch.func, or views):"
        " pass values.clone()"
    )


def _raise_if_overlapping(loop: Loop, begins: tuple[int, ...], ends: tuple[int, ...]) -> None:
    for k, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        for j in range(k):
            if (loop.writes[j] or loop.writes[k]) and max(begin, begins[j]) < min(end, ends[j]):
                first, second = (loop.arrays[i].removesuffix("_") for i in (j, k))
                raise ValueError(
                    f"{first} and {second} of loop {loop.name} share memory, and one of them is written to:"
                    " clone one of them"
                )


def _raise_if_without_memory(loop: Loop, begins: tuple[int, ...], ends: tuple[int, ...]) -> None:
    for name, begin, end in zip(loop.arrays, begins, ends, strict=True):
        if begin == 0 < end:
            raise ValueError(
                f"{name.removesuffix('_')} of loop {loop.name} has no memory (a functional or symbolic"
                " zero tensor): clone it"
            )
