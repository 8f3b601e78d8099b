"""The one door to the compiled loops: what they are handed is checked here, before any address is used.

A loop says what it expects in its own words: `array(wide_, (rows, r))` makes the argument `wide_` the address of rows times r numbers.
These lines are read, so that what is checked is what is used, and written out as one function per loop: small loops are called some
thirty times in a step of training, and a general check would take longer than they do.
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

Ints = NDArray[np.int64]  # where the parts of an axis begin, one after the other, and where the last one ends
Doubles = NDArray[np.float64]
PLAIN = (Tensor, torch.nn.Parameter)
FLOAT = torch.float32
INT, DOUBLE = np.dtype(np.int64), np.dtype(np.float64)


class Loop:
    """A compiled loop, and what it expects: addresses of arrays first (named with a last "_"), then numbers."""

    def __init__(self, function: Callable[..., Any], compiled: Callable[..., Any], writes: str):
        self.function, self.compiled, self.name = function, compiled, function.__name__
        kinds = {
            name: parameter.annotation for name, parameter in inspect.signature(function).parameters.items()
        }
        self.arrays = [name for name in kinds if name.endswith("_")]
        self.numbers = {name: kind for name, kind in kinds.items() if name not in self.arrays}
        self.writes = [name.removesuffix("_") in writes.split() for name in self.arrays]

    @cached_property
    def counts(self) -> dict[str, str]:
        """How many numbers each array holds, in terms of the numbers that go with them."""
        (source,) = ast.parse(textwrap.dedent(inspect.getsource(self.function))).body
        shapes: dict[str, list[str]] = {}
        short: dict[str, str] = {}  # names that the loop gives to what its shapes are made of
        for node in ast.walk(source):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "array":
                shapes[ast.unparse(node.args[0])] = [ast.unparse(side) for side in node.args[1].elts]  # type: ignore[attr-defined]
            elif (
                isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Tuple)
                and isinstance(node.value, ast.Tuple)
            ):
                pairs = zip(node.targets[0].elts, node.value.elts, strict=True)
                short |= {
                    ast.unparse(a): ast.unparse(b) for a, b in pairs if ast.unparse(a) not in self.numbers
                }
        return {
            name: " * ".join(f"({short.get(side, side)})" for side in shapes[name]) for name in self.arrays
        }

    @cached_property
    def look(self) -> Callable[..., tuple[tuple[int, ...], tuple[int, ...]] | None]:
        """Where the arrays begin and end, of these tensors and numbers; None where some do not fit."""
        sizes = [f"type({name}) is int and {name} >= 0" for name, kind in self.numbers.items() if kind is int]
        others = [
            f"type({name}) is {kind.__name__}" for name, kind in self.numbers.items() if kind in (float, bool)
        ]
        tables = [f"is_{name}({name})" for name, kind in self.numbers.items() if kind in (Ints, Doubles)]
        lists = "".join(
            f"    {name} = {name}.tolist()\n"
            for name, kind in self.numbers.items()
            if kind in (Ints, Doubles)
        )
        fits = "type({0}) in PLAIN and {0}.dtype is FLOAT and {0}.is_cpu and {0}.numel() == {0}n and {0}.is_contiguous()"
        forms = ("{0}", "{0}n", "{0}p", "{0}.data_ptr()", "{0}p + 4 * {0}n")
        arrays, counts, begins, addresses, ends = (", ".join(map(form.format, self.arrays)) for form in forms)
        code = (
            f"def look(tensors, {', '.join(self.numbers)}):\n"
            f"    {arrays}, = tensors\n"
            f"    if not ({' and '.join([*sizes, *others, *tables])} and transforms() is None):\n"
            f"        return None\n"
            f"{lists}"
            f"    {counts}, = {', '.join(self.counts.values())},\n"
            f"    if not ({' and '.join(f'{fits} and not {{0}}.is_neg()'.format(name) for name in self.arrays)}):\n"
            f"        return None\n"
            f"    {begins}, = {addresses},\n"
            f"    return ({begins},), ({ends},)\n"
        )
        known: dict[str, Any] = {"PLAIN": PLAIN, "FLOAT": FLOAT, "transforms": transforms}
        known |= {
            f"is_{name}": {Ints: _is_rising, Doubles: _is_row}.get(kind)
            for name, kind in self.numbers.items()
        }
        exec(code, known)
        return known["look"]  # type: ignore[no-any-return]


def launch(loop: Loop, tensors: Sequence[Tensor], *numbers: Any) -> Any:
    """A loop over tensors, and what it returns. It is handed addresses: making arrays of tensors takes longer than many a loop.

    Here the tensors are kept alive until the loop is done. Each must be a plain float32 tensor in this machine's memory, without gaps,
    of as many numbers as the loop walks over; none that the loop writes to may share memory with another.
    """
    if len(tensors) != len(loop.arrays) or len(numbers) != len(loop.numbers):
        raise ValueError(
            f"loop {loop.name} is given {len(tensors)} tensors and {len(numbers)} numbers: it takes {_words(loop)}"
        )
    try:
        found = loop.look(tensors, *numbers)
    except (RuntimeError, AttributeError):  # what is no tensor, or a tensor without an address
        found = None
    if found is None:
        raise ValueError(_reason(loop, tensors, numbers))
    begins, ends = found
    if len(begins) > 1 and any(
        map(gt, sorted(ends), sorted(begins)[1:])
    ):  # some share memory: of those only read, they may
        _refuse_overlap(loop, begins, ends)
    if 0 in begins:
        _refuse_nowhere(loop, begins, ends)
    return loop.compiled(*begins, *numbers)


def _is_row(table: Any) -> bool:
    return (
        type(table) is np.ndarray
        and (table.dtype is DOUBLE or table.dtype == DOUBLE)
        and table.strides == (8,)
    )


def _is_rising(table: Any) -> bool:
    if not (
        type(table) is np.ndarray and (table.dtype is INT or table.dtype == INT) and table.strides == (8,)
    ):
        return False
    entries = table.tolist()
    return entries[:1] == [0] and entries == sorted(entries)


def _words(loop: Loop) -> str:
    return ", ".join(
        [
            *(name.removesuffix("_") for name in loop.arrays),
            *(f"{n} ({_name(kind)})" for n, kind in loop.numbers.items()),
        ]
    )


def _name(kind: Any) -> str:
    return {Ints: "rising int64 from 0 on", Doubles: "float64"}.get(kind) or str(kind.__name__)


def _reason(loop: Loop, tensors: Sequence[Any], numbers: Sequence[Any]) -> str:
    """Which argument does not fit, and what would."""
    for (name, kind), number in zip(loop.numbers.items(), numbers, strict=True):
        fits = (
            _is_rising(number)
            if kind is Ints
            else _is_row(number)
            if kind is Doubles
            else type(number) is kind
        )
        if not fits or (kind is int and number < 0):
            wanted = f"{_name(kind)}, not below 0" if kind is int else _name(kind)
            return f"{name} of loop {loop.name} is {number!r} ({type(number).__name__}): it must be {wanted}"
    known = dict(zip(loop.numbers, numbers, strict=True))
    for array, values in zip(loop.arrays, tensors, strict=True):
        name, count = f"{array.removesuffix('_')} of loop {loop.name}", int(eval(loop.counts[array], known))
        if type(values) not in PLAIN:
            return f"{name} is a {type(values).__name__}: hand over a plain torch.Tensor"
        if values.dtype is not FLOAT or not values.is_cpu:
            return f"{name} is {values.dtype} on {values.device}: hand over torch.float32 on cpu"
        if values.numel() != count:
            return f"{name} has shape {tuple(values.shape)}, {values.numel()} numbers: it must have {count}"
        if values.layout is torch.strided and not values.is_contiguous():
            return f"{name} has shape {tuple(values.shape)} with gaps (strides {values.stride()}): hand over values.contiguous()"
    return f"loop {loop.name} is given tensors without memory of their own (inside torch.func, or views): hand over values.clone()"


def _refuse_overlap(loop: Loop, begins: tuple[int, ...], ends: tuple[int, ...]) -> None:
    for k, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        for j in range(k):
            if (loop.writes[j] or loop.writes[k]) and max(begin, begins[j]) < min(end, ends[j]):
                first, second = (loop.arrays[place].removesuffix("_") for place in (j, k))
                raise ValueError(
                    f"{first} and {second} of loop {loop.name} share memory, and one of them is written to: clone one of them"
                )


def _refuse_nowhere(loop: Loop, begins: tuple[int, ...], ends: tuple[int, ...]) -> None:
    for name, begin, end in zip(loop.arrays, begins, ends, strict=True):
        if begin == 0 < end:
            raise ValueError(
                f"{name.removesuffix('_')} of loop {loop.name} has no memory (a functional or symbolic zero tensor): clone it"
            )
