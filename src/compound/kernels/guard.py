"""The one door to the compiled loops: what they are handed is checked here, before any address is taken.

A loop says what it expects in its own words: `array(wide_, (rows, r))` makes the argument `wide_` the address of rows times r numbers.
These lines are read, so that what is checked is what is used.
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

Ints = NDArray[np.int64]  # where the parts of an axis begin, one after the other, and where the last one ends
Doubles = NDArray[np.float64]
TABLES = {Ints: np.dtype(np.int64), Doubles: np.dtype(np.float64)}
PLAIN = (Tensor, torch.nn.Parameter)
FLOAT = torch.float32


class Loop:
    """A compiled loop, and what it expects: addresses of arrays first (named with a last "_"), then numbers."""

    def __init__(self, function: Callable[..., Any], compiled: Callable[..., Any], writes: str):
        self.function, self.compiled, self.name = function, compiled, function.__name__
        parameters = inspect.signature(function).parameters
        self.arrays = [name for name in parameters if name.endswith("_")]
        self.numbers = {name: parameter.annotation for name, parameter in parameters.items() if not name.endswith("_")}
        self.types = tuple(np.ndarray if kind in TABLES else kind for kind in self.numbers.values())
        self.tables = [(k, TABLES[kind]) for k, kind in enumerate(self.numbers.values()) if kind in TABLES]
        self.writes = [name in writes.split() for name in (array.removesuffix("_") for array in self.arrays)]

    @cached_property
    def counts(self) -> Callable[..., tuple[int, ...]]:
        """How many numbers each array holds, as a function of the numbers that go with them."""
        (source,) = ast.parse(textwrap.dedent(inspect.getsource(self.function))).body
        shapes: dict[str, list[ast.expr]] = {}
        short: dict[str, str] = {}  # names that the loop gives to what its shapes are made of
        for node in ast.walk(source):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "array":
                shapes[ast.unparse(node.args[0])] = node.args[1].elts  # type: ignore[attr-defined]
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(node.targets[0].elts, node.value.elts, strict=True)
                short |= {
                    name.id: ast.unparse(value) for name, value in pairs if isinstance(name, ast.Name) and name.id not in self.numbers
                }
        sides = {name: [short.get(ast.unparse(side), ast.unparse(side)) for side in shape] for name, shape in shapes.items()}
        sizes = [" * ".join(f"({side})" for side in sides[name]) for name in self.arrays]
        wholes = ", ".join(name for name, kind in self.numbers.items() if kind is int)
        code = f"lambda {', '.join(self.numbers)}: () if min({wholes}, 0) < 0 else ({', '.join(sizes)},)"
        return eval(code)  # type: ignore[no-any-return]

    def expected(self, numbers: Sequence[Any]) -> tuple[int, ...]:
        """The counts for these numbers; a ValueError where numbers are of the wrong kind or below 0."""
        if tuple(map(type, numbers)) != self.types:
            wanted = ", ".join(f"{name} ({kind.__name__})" for name, kind in zip(self.numbers, self.types, strict=True))
            raise ValueError(f"loop {self.name} is given {', '.join(type(n).__name__ for n in numbers)}: it takes {wanted}")
        sizes = list(numbers)
        for k, kind in self.tables:
            table, name = numbers[k], list(self.numbers)[k]
            if table.dtype != kind or table.strides != (8,):
                raise ValueError(f"{name} of loop {self.name} is an array of {table.dtype}: give a row of {kind} without gaps")
            sizes[k] = table.tolist()
            if kind.kind == "i" and (sizes[k] != sorted(sizes[k]) or sizes[k][:1] != [0]):
                raise ValueError(f"{name} of loop {self.name} is {sizes[k]}: give numbers that rise from 0 on")
        counts = self.counts(*sizes)
        if len(counts) != len(self.arrays):
            raise ValueError(f"loop {self.name} is given a number below 0: {dict(zip(self.numbers, numbers, strict=True))}")
        return counts


def run(loop: Loop, tensors: Sequence[Tensor], *numbers: Any) -> Any:
    """A loop over tensors, and what it returns. It is handed addresses: making arrays of tensors takes longer than many a loop.

    Here the tensors are kept alive until the loop is done. Each must be a plain float32 tensor in this machine's memory, without gaps,
    of as many numbers as the loop walks over; none that the loop writes to may share memory with another.
    """
    counts = loop.expected(numbers)
    if len(tensors) != len(counts):
        raise ValueError(f"loop {loop.name} is given {len(tensors)} tensors: it takes {', '.join(loop.arrays)}")
    addresses: list[int] = []
    for values, count in zip(tensors, counts, strict=True):
        if not (type(values) in PLAIN and values.dtype is FLOAT and values.is_cpu and values.numel() == count and values.is_contiguous()):
            raise _refusal(loop, len(addresses), values, count)
        address = 0 if values.is_neg() else _address(values)
        if address == 0 and count > 0:
            raise _refusal(loop, len(addresses), values, count)
        addresses.append(address)
    ends = [address + 4 * count for address, count in zip(addresses, counts, strict=True)]
    if any(map(gt, sorted(ends), sorted(addresses)[1:])):  # some share memory: of those only read, they may
        _check_overlap(loop, list(zip(addresses, ends, loop.writes, strict=True)))
    return loop.compiled(*addresses, *numbers)


def _address(values: Tensor) -> int:
    """0 where there is none: tensors inside a transform of torch.func."""
    try:
        return values.data_ptr()
    except RuntimeError:
        return 0


def _refusal(loop: Loop, place: int, values: Any, count: int) -> ValueError:
    name = f"{loop.arrays[place].removesuffix('_')} of loop {loop.name}"
    if type(values) not in PLAIN:
        return ValueError(f"{name} is a {type(values).__name__}: hand over a plain torch.Tensor")
    if values.dtype is not FLOAT or not values.is_cpu:
        return ValueError(f"{name} is {values.dtype} on {values.device}: hand over torch.float32 on cpu")
    if values.numel() != count:
        return ValueError(f"{name} has shape {tuple(values.shape)}, {values.numel()} numbers: it must have {count}")
    if values.layout is torch.strided and not values.is_contiguous():
        return ValueError(f"{name} has shape {tuple(values.shape)} with gaps (strides {values.stride()}): hand over values.contiguous()")
    return ValueError(f"{name} has no numbers of its own in memory (a transform of torch.func, or another view): hand over values.clone()")


def _check_overlap(loop: Loop, spans: list[tuple[int, int, bool]]) -> None:
    for k, (begin, end, written) in enumerate(spans):
        for j, (other, stop, also) in enumerate(spans[:k]):
            if (written or also) and max(begin, other) < min(end, stop):
                first, second = (loop.arrays[place].removesuffix("_") for place in (j, k))
                raise ValueError(f"{first} and {second} of loop {loop.name} share memory, and one of them is written to: clone one of them")
