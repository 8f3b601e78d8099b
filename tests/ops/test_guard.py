"""The guard before the compiled loops: 10,000 invalid calls, each refused before anything is written."""

import pkgutil
import random
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from compound import ops
from compound.ops.compound_moments import MomentOptions, compound_moments, reference
from compound.ops.gaussian_noise import normal_loop
from compound.ops.guard import Doubles, Loop, Offsets
from compound.ops.hidden_samples import sample_loop
from compound.ops.jit import can_use_kernel, launch

MODULES = [import_module(f"compound.ops.{module.name}") for module in pkgutil.iter_modules(ops.__path__)]
LOOPS = {name: loop for module in MODULES for name, loop in vars(module).items() if isinstance(loop, Loop)}

FAKE = FakeTensorMode()


class Sub(Tensor):
    """A tensor that is more than its numbers."""


def numbers_of(loop: Loop, rng: random.Random) -> list[Any]:
    """Numbers that go together: rows come in equal parts, one for each member."""
    parts = [0, *(rng.randint(1, 3) for _ in range(rng.randint(1, 3)))]
    makers: dict[Any, Callable[[], Any]] = {
        int: lambda: rng.randint(1, 4),
        float: lambda: rng.uniform(0.5, 2.0),
        bool: lambda: rng.random() < 0.7,
        Offsets: lambda: np.cumsum(parts),
        Doubles: lambda: np.ones(len(parts) - 1),
    }
    numbers = {name: makers[kind]() for name, kind in loop.numbers.items()}
    if "members" in numbers and "rows" in numbers and "gaussians" not in numbers:
        numbers["rows"] *= numbers["members"]
    if "paired" in numbers:  # draws come in groups of so many, columns or rows in vectors
        numbers["draws"] *= numbers["paired"]
        numbers["columns" if "columns" in numbers else "rows"] *= 16
    if "edge_count" in numbers:  # columns with as many bins each
        numbers["bins"] *= numbers["columns"]
        numbers["edge_count"] = 16 * numbers["columns"]
    return list(numbers.values())


def counts_of(loop: Loop, numbers: list[Any]) -> list[int]:
    return [int(eval(count, dict(zip(loop.numbers, numbers, strict=True)))) for count in loop.counts.values()]


def random_call(loop: Loop, rng: random.Random) -> tuple[list[Tensor], list[Any]]:
    numbers = numbers_of(loop, rng)
    tensors = [torch.randn(count) for count in counts_of(loop, numbers)]
    if "index_" in loop.arrays:  # numbers of matrices
        at = loop.arrays.index("index_")
        tensors[at] = (torch.rand(len(tensors[at])) * numbers[list(loop.numbers).index("count")]).floor()
    if "binned_" in loop.arrays:  # inputs, groups, first bins, numbers of bins and first edges
        of = dict(zip(loop.numbers, numbers, strict=True))
        bins, column = of["bins"] // of["columns"], torch.arange(of["columns"])
        rows = 0 * column, 0 * column + of["groups"] - 1, bins * column, 0 * column + bins, 16 * column
        tensors[loop.arrays.index("binned_")] = torch.cat(rows).float()
        tensors[loop.arrays.index("kept_")] = torch.zeros(2 * of["kept"])
    return tensors, numbers


def overlapping(values: Tensor, other: Tensor) -> list[Tensor]:
    """Two tensors of these sizes in one memory, the second beginning inside the first."""
    memory = torch.rand(len(values) + len(other))
    return [memory[: len(values)], memory[len(values) - 1 : len(values) - 1 + len(other)]]


TENSORS: dict[str, Callable[[Tensor], Any]] = {  # of n > 1 numbers: what must be refused instead of them
    **{
        str(kind): lambda t, kind=kind: t.to(kind)
        for kind in (
            torch.float64,
            torch.float16,
            torch.bfloat16,
            torch.int32,
            torch.bool,
            torch.complex64,
            torch.float8_e4m3fn,
        )
    },
    "one more": lambda t: torch.rand(len(t) + 1),
    "one less": lambda t: t[1:],
    "empty": lambda t: t[:0],
    "every second": lambda t: torch.rand(2 * len(t))[::2],
    "one number, expanded": lambda t: torch.rand(1).expand(len(t)),
    "transposed": lambda t: torch.rand(len(t), 2).T[0],
    "meta": lambda t: t.to("meta"),
    "subclass": lambda t: t.as_subclass(Sub),
    "fake": FAKE.from_tensor,
    "functional": torch._to_functional_tensor,
    "zero without memory": lambda t: torch._efficientzerotensor((len(t),)),
    "lazily negated": torch._neg_view,
    "sparse": lambda t: t.to_sparse(),
    "nothing": lambda t: None,
    "array": lambda t: t.numpy(),
    "list": lambda t: t.tolist(),
    "address": lambda t: t.data_ptr(),
}
NUMBERS: dict[Any, list[Callable[[Any], Any]]] = {  # by kind: what must be refused instead of them
    int: [float, str, lambda n: None, np.int64, bool, lambda n: -n, lambda n: [n], torch.tensor],
    float: [int, str, lambda n: None, np.float32, np.float64, torch.tensor],
    bool: [int, float, lambda n: None, np.bool_, str],
    Offsets: [
        lambda t: t.tolist(), lambda t: t.astype(np.int32), lambda t: t.astype(np.float64), lambda t: t[::-1],
        lambda t: -t, lambda t: t + 1, lambda t: t[:0], lambda t: np.repeat(t, 2)[::2], lambda t: t[None],
        lambda t: np.insert(t, 1, t[-1] + 1),
    ],
    Doubles: [
        lambda t: t.tolist(), lambda t: t.astype(np.float32), lambda t: np.repeat(t, 2)[::2], lambda t:
        t[None], lambda t: np.ones(9),
    ],
}  # fmt: skip


def invalid_call(loop: Loop, rng: random.Random) -> tuple[str, list[Any], list[Any]]:
    """A call with one invalid argument, and its name."""
    while True:
        tensors, numbers = random_call(loop, rng)
        k, kind = (
            rng.randrange(len(tensors)),
            rng.choice(["tensor", "tensor", "number", "size", "overlap", "few", "many", "members"]),
        )
        if kind == "tensor" and tensors[k].numel() > 1:
            name = rng.choice(list(TENSORS))
            tensors[k] = TENSORS[name](tensors[k])
            return f"{loop.arrays[k]} {name}", tensors, numbers
        if kind == "number":
            j = rng.randrange(len(numbers))
            numbers[j] = rng.choice(NUMBERS[list(loop.numbers.values())[j]])(numbers[j])
            return f"{list(loop.numbers)[j]} = {numbers[j]!r}", tensors, numbers
        if kind == "size":
            sizes = [j for j, of in enumerate(loop.numbers.values()) if of is int]
            j, before = rng.choice(sizes), counts_of(loop, numbers)
            numbers[j] = rng.choice([0, numbers[j] + 1, 1000 * numbers[j], 2**40])
            if counts_of(loop, numbers) != before:
                return f"{list(loop.numbers)[j]} = {numbers[j]}", tensors, numbers
        if kind == "overlap":
            other = rng.randrange(len(tensors))
            if (
                other != k
                and (loop.writes[k] or loop.writes[other])
                and min(tensors[k].numel(), tensors[other].numel()) > 0
            ):
                tensors[k], tensors[other] = overlapping(tensors[k], tensors[other])
                return f"{loop.arrays[k]} over {loop.arrays[other]}", tensors, numbers
        if kind in ("few", "many"):
            arguments = rng.choice([tensors, numbers])
            arguments.pop() if kind == "few" else arguments.append(arguments[-1])
            return kind, tensors, numbers
        if (
            kind == "members"
            and "members" in loop.numbers
            and "rows" in loop.numbers
            and "gaussians" not in loop.numbers
        ):
            numbers[list(loop.numbers).index("members")] = rng.choice([2, 3])
            numbers[list(loop.numbers).index("rows")] = rng.choice([1, 5, 7])
            return (
                "rows that do not divide",
                [torch.rand(count) for count in counts_of(loop, numbers)],
                numbers,
            )


def copies(tensors: list[Any]) -> list[Tensor]:
    return [
        t.clone()
        for t in tensors
        if type(t) is Tensor and t.is_cpu and t.layout is torch.strided and t.dtype is torch.float32
    ]


def test_ten_thousand_invalid_calls_are_refused_and_write_nothing():
    rng = random.Random(0)
    for number in range(10_000):
        loop = LOOPS[rng.choice(list(LOOPS))]
        name, tensors, numbers = invalid_call(loop, rng)
        before = copies(tensors)
        with pytest.raises(ValueError):
            launch(loop, tensors, *numbers)
            pytest.fail(f"call {number}: {loop.name} took {name}")
        assert all(map(torch.equal, copies(tensors), before)), (
            f"call {number}: {loop.name} wrote, given {name}"
        )


@pytest.mark.parametrize("name", LOOPS)
def test_loops_write_where_they_say_and_only_there(name):
    loop, rng, changed = LOOPS[name], random.Random(1), set()
    for _ in range(30):
        tensors, numbers = random_call(loop, rng)
        before = [t.clone() for t in tensors]
        launch(loop, tensors, *numbers)
        changed |= {
            index for index, (t, b) in enumerate(zip(tensors, before, strict=True)) if not torch.equal(t, b)
        }
    assert changed == {index for index, writes in enumerate(loop.writes) if writes}


def test_what_is_only_read_may_share_memory():
    mean, out = torch.rand(6), torch.empty(8)
    launch(sample_loop, (mean, mean, mean, out), 1, 1, 1, 2, 3, 1e4)
    torch.testing.assert_close(out.view(2, 4)[:, :3].flatten(), mean + mean * mean)


MESSAGES: dict[str, Callable[[], tuple[Any, ...]]] = {
    "out of loop normal_loop is torch.float64 on cpu: pass torch.float32 on cpu": lambda: (
        (torch.zeros(8).double(),),
        2,
        1,
    ),
    "out of loop normal_loop has shape (8,), 8 elements: it must have 12": lambda: ((torch.zeros(8),), 3, 1),
    "out of loop normal_loop has shape (4, 2) and strides (1, 4): pass values.contiguous()": lambda: (
        (torch.zeros(2, 4).T,),
        2,
        1,
    ),
    "out of loop normal_loop is a Sub: pass a plain torch.Tensor": lambda: (
        (torch.zeros(8).as_subclass(Sub),),
        2,
        1,
    ),
    "quarter of loop normal_loop is -1 (int): it must be int, not below 0": lambda: (
        (torch.zeros(8),),
        -1,
        1,
    ),
    "loop normal_loop is given 0 tensors and 1 numbers: it takes out, quarter (int), key (int)": lambda: (
        (),
        1,
    ),
}


@pytest.mark.parametrize("message", MESSAGES)
def test_error_messages_name_loop_and_argument(message):
    with pytest.raises(ValueError, match=re.escape(message)):
        launch(normal_loop, *MESSAGES[message]())


def test_tensors_that_loops_cannot_take_use_the_reference():
    x_aug, heads, basis = torch.rand(5, 4), torch.rand(5, 11), torch.rand(4, 3)
    options = MomentOptions(10.0, True, True)
    expected = reference(x_aug, heads, basis, options)
    assert can_use_kernel(x_aug, heads, basis) and not can_use_kernel(x_aug.as_subclass(Sub))
    mapped = torch.func.vmap(lambda h: compound_moments(x_aug, h, basis, options))
    subclass = compound_moments(x_aug.as_subclass(Sub), heads, basis, options)
    for out in (subclass, mapped(heads[None])):
        for one, other in zip(out, expected, strict=True):
            torch.testing.assert_close(one.as_subclass(Tensor).squeeze(0), other)
