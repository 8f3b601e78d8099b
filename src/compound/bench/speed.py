"""How fast, as ratios: every row is timed beside its reference, turn by turn, in one run on one thread.

compound bench --json speed.json
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from compound.experiments.memory import keep_memory
from compound.io.atomic import write_atomic
from compound.models import Draws, Method, Model, build
from compound.ood.noise import DistanceAwareNoise
from compound.random import named_generator
from compound.train.config import TrainConfig
from compound.types import Task, make_dataset

FEATURES, CLASSES, ROWS = 784, 10, 200
RATE = 1e-12  # a network that learnt its 200 rows by heart would be slow: gradients next to 0 have denormal squares
TASK = Task("classification", CLASSES)
TRAINING = {  # a training step against the plain network's
    "mc-dropout": 1.3,
    "vmg": 2.5,
    "dpn": 2.5,
    "bbb": 2.7,
    "vib": 3.0,
    "noisy-kfac": 4.0,
    "deep-ensemble": 4.5,
    "mnf": 6.0,
}
ASKING = ("vmg", "bbb", "mc-dropout")  # 100 draws against 100 plain passes


class Row(NamedTuple):
    """One line of the benchmark; lower is better."""

    name: str
    ratio: float
    bar: float
    memory: float  # MiB allocated per call

    @property
    def met(self) -> bool:
        return self.ratio <= self.bar


def main(json_path: Path | None, quick: bool) -> list[Row]:
    """Time everything, print a table, and write it as JSON if asked."""
    from rich.console import Console
    from rich.table import Table

    if json_path is not None:
        json_path.parent.mkdir(
            parents=True, exist_ok=True
        )  # a path that cannot be written is refused before the work
    keep_memory()
    rounds = 5 if quick else 25
    console = Console()
    table = Table(
        "what", "ratio", "bar", "", "MiB", title="Cost against the reference named; lower is better"
    )
    rows = []
    with one_thread(), console.status("timing"):
        for row in measure(rounds):
            rows.append(row)
            console.print(f"{row.name}: {row.ratio:.4g} (bar {row.bar:.4g})")
    for row in rows:
        table.add_row(
            row.name,
            f"{row.ratio:.4g}",
            f"{row.bar:.4g}",
            "met" if row.met else "[red]missed[/red]",
            f"{row.memory:.1f}",
        )
    console.print(table)
    if json_path is not None:
        entries = [{"name": r.name, "ratio": r.ratio, "bar": r.bar, "memory_mib": r.memory} for r in rows]
        write_atomic(json_path, (json.dumps(entries, indent=2) + "\n").encode())
    return rows


def measure(rounds: int) -> Iterator[Row]:
    """Training steps of a 784-100-10 network on batches of 200, then predictions of 1,000 rows by 100 draws."""
    x = torch.rand(ROWS, FEATURES, generator=named_generator(0, "x"))
    y = torch.randint(CLASSES, (ROWS,), generator=named_generator(0, "y"))
    plain = plain_step(x, y)
    one = step(Method("ml-cdn", hyper=(50,), last_draws=1, members=1), x, y)
    yield compare("train ml-cdn S=1 / plain", one, plain, 5.0, rounds)
    yield compare(
        "train ml-cdn S=10 / plain",
        step(Method("ml-cdn", hyper=(50,), last_draws=1, members=1, samples=10), x, y),
        plain,
        9.0,
        rounds,
    )
    bayes = step(Method("vb-cdn", hyper=(100,), last_draws=1, members=1), x, y)
    yield compare("train vb-cdn S=1 / plain", bayes, plain, 9.0, rounds)
    five = step(Method("ml-cdn", hyper=(50,), last_draws=1, members=5), x, y)
    yield compare("train five members / one", five, one, 4.5, rounds)
    few = max(2, rounds // 8)  # the oracle is slow
    yield compare("train ml-cdn / building W per row", one, oracle_step(x, y, 50, bayes=False), 1 / 70, few)
    yield compare(
        "train vb-cdn / building W per row", bayes, oracle_step(x, y, 100, bayes=True), 1 / 150, few
    )
    for name, bar in TRAINING.items():
        least = 50 if name == "noisy-kfac" else 1  # its factors are decomposed every 50 steps
        yield compare(
            f"train {name} / plain", step(Method(name), x, y), plain, bar, max(3, rounds // least), least
        )

    many = torch.rand(1000, FEATURES, generator=named_generator(1, "x"))
    passes = hundred_passes(many)
    for name, hyper, bar in (("ml-cdn", 50, 1.2), ("vb-cdn", 100, 10.0)):
        model = build(Method(name, hyper=(hyper,), last_draws=1, members=1), FEATURES, TASK)
        yield compare(f"predict {name} 100 draws / 100 plain passes", asking(model, many), passes, bar, few)
    for name in ASKING:
        yield compare(
            f"predict {name} 100 draws / 100 plain passes",
            asking(build(name, FEATURES, TASK), many),
            passes,
            0.8,
            few,
        )
    silent = build(Method("ml-cdn", hyper=(50,), last_draws=1, members=1), FEATURES, TASK)
    loud = build(Method("ml-cdn", hyper=(50,), last_draws=1, members=1), FEATURES, TASK)
    fit_far(cast(DistanceAwareNoise, loud.far))
    yield compare(
        "predict with far noise / without",
        asking(loud, many),
        asking(silent, many),
        1.15,
        max(5, rounds // 2),
    )
    yield compare("fit laplace on the last layer / epoch", *laplace(), 2.0, few)


def compare(
    name: str,
    ours: Callable[[], None],
    reference: Callable[[], None],
    bar: float,
    rounds: int,
    least: int = 1,
) -> Row:
    """The median over rounds of the ratio of two times measured one after the other, of at least so many calls each."""
    repeats = []
    for call in (ours, reference):
        call()
        begin = time.perf_counter()
        call()
        repeats.append(max(least, round(0.03 / (time.perf_counter() - begin))))
    ratios = []
    for _ in range(rounds):
        first, second = (_seconds(call, n) for call, n in zip((ours, reference), repeats, strict=True))
        ratios.append(first / second)
    return Row(name, statistics.median(ratios), bar, _allocated(ours))


def _seconds(call: Callable[[], None], repeats: int) -> float:
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - begin) / repeats


def _allocated(call: Callable[[], None]) -> float:
    with torch.profiler.profile(profile_memory=True) as profile:
        call()
    return sum(max(0, event.self_cpu_memory_usage) for event in profile.key_averages()) / 2**20


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 100), nn.ReLU(), nn.Linear(100, CLASSES))


def plain_step(x: Tensor, y: Tensor) -> Callable[[], None]:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), RATE, fused=True)

    def call() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return call


def step(method: Method, x: Tensor, y: Tensor) -> Callable[[], None]:
    model = build(method, FEATURES, TASK)
    optimizer = model.optimizer(TrainConfig(lr=RATE))
    batch = make_dataset(x, y, TASK, x_ood=x.flip(1))
    model.on_fit_start(batch, named_generator(0, "start"))
    streams = tuple(named_generator(k, "noise") for k in range(model.members))

    def call() -> None:
        optimizer.zero_grad()
        model.loss(batch, streams).total.backward()
        optimizer.step()

    return call


def oracle_step(x: Tensor, y: Tensor, hidden: int, bayes: bool) -> Callable[[], None]:
    """A training step as the published code has it: every weight matrix is built, one per row."""
    shapes = []
    for inputs, outputs in ((FEATURES, 100), (100, CLASSES)):
        shapes.append(((inputs + 1, hidden), (hidden + 1, 2 * (inputs + 1) + outputs), (inputs + 1, outputs)))
    maps = [
        [nn.Parameter(0.01 * torch.randn(*shape, generator=named_generator(0))) for shape in group]
        for group in shapes
    ]
    logs = [[nn.Parameter(torch.full((sum(shape),), -3.0)) for shape in group[:2]] for group in shapes]
    generator = named_generator(1)
    optimizer = torch.optim.Adam([p for group in (*maps, *logs) for p in group], RATE, fused=True)

    def through(h: Tensor, weight: Tensor, log: Tensor) -> Tensor:
        wide = torch.cat([h, h.new_ones(len(h), 1)], -1)
        if not bayes:
            return wide @ weight
        row, col = (0.5 * log).exp().split(list(weight.shape))
        drawn = (
            weight + row.unsqueeze(-1) * torch.randn((len(h), *weight.shape), generator=generator) * col
        )  # (rows, in + 1, out)
        return torch.bmm(wide.unsqueeze(1), drawn).squeeze(1)

    def layer(h: Tensor, group: list[nn.Parameter], factors: list[nn.Parameter]) -> Tensor:
        hyper, heads, basis = group
        r, c = basis.shape
        s, lr, lc = through(through(h, hyper, factors[0]).tanh(), heads, factors[1]).split([r, r, c], -1)
        noise = torch.randn((len(h), r, c), generator=generator)
        w = s.unsqueeze(-1) * basis + (0.5 * lr).exp().unsqueeze(-1) * noise * (0.5 * lc).exp().unsqueeze(
            -2
        )  # (rows, r, c)
        return torch.bmm(torch.cat([h, h.new_ones(len(h), 1)], -1).unsqueeze(1), w).squeeze(1)

    def call() -> None:
        optimizer.zero_grad()
        hidden_units = layer(x, maps[0], logs[0]).relu()
        functional.cross_entropy(layer(hidden_units, maps[1], logs[1]), y).backward()
        optimizer.step()

    return call


def hundred_passes(x: Tensor) -> Callable[[], None]:
    model = network()

    @torch.no_grad()
    def call() -> None:
        for _ in range(100):
            torch.softmax(model(x), -1)

    return call


def laplace() -> tuple[Callable[[], None], Callable[[], None]]:
    """Fitting the posterior of the last layer on 10,000 rows, and one plain epoch over them."""
    x = torch.rand(10_000, FEATURES, generator=named_generator(3, "x"))
    y = torch.randint(CLASSES, (10_000,), generator=named_generator(3, "y"))
    model = build(Method("laplace", subset="last"), FEATURES, TASK)
    batch = make_dataset(x, y, TASK)
    model.on_fit_start(batch, named_generator(0, "start"))
    steps = [plain_step(*part) for part in zip(x.split(ROWS), y.split(ROWS), strict=True)]

    def epoch() -> None:
        for call in steps:
            call()

    return lambda: model.on_fit_end(batch, named_generator(0, "finish")), epoch


def asking(model: Model, x: Tensor) -> Callable[[], None]:
    def call() -> None:
        model.predict(x, Draws(100, 1), named_generator(0, "draws"))

    return call


def fit_far(far: DistanceAwareNoise) -> None:
    """Centres for inputs with the spectrum of images: a few hundred directions hold almost all variance."""
    g = named_generator(2)
    mix = torch.randn(FEATURES, FEATURES, generator=g) * torch.arange(1, FEATURES + 1) ** -0.9
    far.fit(0.5 + 0.1 * torch.randn(5000, FEATURES, generator=g) @ mix.T, g)
    far.set_ramp(-6.0, 6.0, 14.0)
