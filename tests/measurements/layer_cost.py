"""Cost of compound layers beside torch's own, and of compiled layers beside eager ones.

    python tests/measurements/layer_cost.py [--rounds 30] [--bayes] [--skip-compiled]

Processor time of forward and backward on one thread, with the gradient of the input, as inside a network.
The layers of a line take turns; a ratio is the median over the rounds.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from compound.nn import CompoundConv2d, CompoundGRUCell, CompoundLinear, CompoundLSTMCell, sampling
from compound.random import named_generator

CALLS = 0.05  # seconds that the calls of one measurement take, at least


class Case(NamedTuple):
    """A plain layer and its compound form, called on the same inputs."""

    name: str
    plain: nn.Module
    compound: nn.Module
    forward: Callable[[nn.Module, Tensor, Any], Tensor]
    x: Tensor


def single(layer: nn.Module, x: Tensor, draws: Any) -> Tensor:
    return layer(x)


def steps(layer: nn.Module, x: Tensor, draws: Any) -> Tensor:
    """A cell over all steps of x (steps, rows, in)."""
    weights = ()
    if draws is not None and layer.draw == "sequence":
        weights = (layer.draw_weights(x.mean(0)),)
    state = None
    for x_t in x:
        state = layer(x_t, state, *weights)
    return state[0] if isinstance(state, tuple) else state


def cases(bayes: bool) -> Iterator[Case]:
    generator = named_generator(0, "inputs")

    def inputs(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).requires_grad_()

    for channels, side in ((16, 28), (32, 28), (32, 14), (64, 14), (64, 7)):
        options = {"kernel_size": 3, "padding": 1}
        plain = nn.Conv2d(channels, channels, **options)
        compound = CompoundConv2d(channels, channels, **options, bayes=bayes)
        x = inputs(50, channels, side, side)
        yield Case(f"Conv2d, 3 x 3, {channels} channels, {side} x {side}", plain, compound, single, x)
    for size in (128, 512):
        x = inputs(100, size)
        compound = CompoundLinear(size, size, bayes=bayes)
        yield Case(f"Linear, {size}", nn.Linear(size, size), compound, single, x)
    for kind, plain_kind in ((CompoundGRUCell, nn.GRUCell), (CompoundLSTMCell, nn.LSTMCell)):
        for draw in ("step", "sequence"):
            for inner, state in ((32, 64), (64, 128), (128, 256)):
                cell = kind(inner, state, draw, bayes=bayes)
                name = f"{plain_kind.__name__}, {inner} inputs, {state} states, 20 steps, draw={draw!r}"
                yield Case(name, plain_kind(inner, state), cell, steps, inputs(20, 50, inner))


def run(case: Case, layer: nn.Module, has_draws: bool) -> None:
    case.x.grad = None
    layer.zero_grad(set_to_none=True)
    if not has_draws:
        case.forward(layer, case.x, None).sum().backward()
        return
    with sampling(named_generator(0, "noise")) as draws:
        out = case.forward(layer, case.x, draws)
    (out.sum() + draws.kl).backward()


def cost(call: Callable[[], None], calls: int) -> float:
    start = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - start) / calls


def compiled(case: Case) -> Case | None:
    """The case with a compiled layer, without graph breaks; None for loops over steps."""
    if case.forward is steps:
        return None
    return case._replace(compound=torch.compile(case.compound, fullgraph=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--bayes", action="store_true")
    parser.add_argument("--skip-compiled", action="store_true")
    parser.add_argument("--only", default="", help="cases whose names begin so")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| layer | plain, ms | compound / plain | compiled / eager |\n| --- | --- | --- | --- |")
    for case in cases(options.bayes):
        if not case.name.startswith(options.only):
            continue
        forms = [partial(run, case, case.plain, False), partial(run, case, case.compound, True)]
        faster = None if options.skip_compiled else compiled(case)
        if faster is not None:
            forms.append(partial(run, faster, faster.compound, True))
        for form in forms:
            cost(form, 3)  # compiles and fills caches
        calls = [max(1, round(CALLS / cost(form, 3))) for form in forms]
        turns = list(zip(forms, calls, strict=True))
        rounds = [[cost(form, n) for form, n in turns] for _ in range(options.rounds)]
        plain = 1e3 * median(r[0] for r in rounds)
        ratio = median(r[1] / r[0] for r in rounds)
        last = f"{median(r[2] / r[1] for r in rounds):.2f}" if faster is not None else ""
        print(f"| {case.name} | {plain:.2f} | {ratio:.2f} | {last} |", flush=True)


if __name__ == "__main__":
    main()
