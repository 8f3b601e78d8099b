"""The benchmark cases: each is a function of this library, and a reference function to compare its time with.

They are training steps of a 784-100-10 network on batches of 200, predictions of 1,000 rows with 100
draws, a Laplace fit, and passes through single layers. Functions named after a task return a `Call` that
does it once.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from compound.models import Method, Model, build
from compound.models.extrapolation import ExtrapolationGuard
from compound.nn import CompoundConv2d, CompoundGRUCell, sampling
from compound.nn.compound_layer import CompoundLayer
from compound.ood.noise import DistanceAwareNoise
from compound.random import named_generator
from compound.train.config import TrainConfig
from compound.types import Task, make_dataset

FEATURES, CLASSES, ROWS = 784, 10, 200
LR = 1e-12  # the network must not fit its rows: tiny gradients have denormal squares, which are slow
TASK = Task("classification", CLASSES)
TRAINING = {  # limit of the time of a training step, relative to the plain network
    "mc-dropout": 1.3,
    "vmg": 2.5,
    "dpn": 2.5,
    "bbb": 2.7,
    "vib": 3.0,
    "noisy-kfac": 4.0,
    "deep-ensemble": 4.5,
    "mnf": 6.0,
}
PREDICTION = ("vmg", "bbb", "mc-dropout")  # methods whose 100 draws are compared with 100 plain passes
Call = Callable[[], None]


class Case(NamedTuple):
    """A function to time, the reference to compare it with, and the highest allowed ratio of their times."""

    name: str
    ours: Call
    reference: Call
    limit: float  # highest ratio of times, ours / reference
    divisor: int = 1  # the number of rounds is divided by it, for slow cases
    min_calls: int = 1  # per round


def cases() -> Iterator[Case]:
    """All benchmark cases, built one at a time."""
    x = torch.rand(ROWS, FEATURES, generator=named_generator(0, "x"))
    y = torch.randint(CLASSES, (ROWS,), generator=named_generator(0, "y"))
    yield from _training_cases(x, y)
    yield from _prediction_cases(torch.rand(1000, FEATURES, generator=named_generator(1, "x")))
    yield from _layer_cases()
    yield Case("fit laplace on the last layer / epoch", *laplace_fit(), 2.0, divisor=8)


def _cdn(name: str, hyper: int, members: int = 1, **options: int) -> Method:
    """The CDN `name` with `hyper` hidden units in its hypernetworks."""
    return Method(name, hyper=(hyper,), members=members, **options)


def _training_cases(x: Tensor, y: Tensor) -> Iterator[Case]:
    plain = plain_step(x, y)
    ml_cdn = train_step(_cdn("ml-cdn", 50), x, y)
    vb_cdn = train_step(_cdn("vb-cdn", 100), x, y)
    yield Case("train ml-cdn S=1 / plain", ml_cdn, plain, 4.2)
    yield Case("train ml-cdn S=10 / plain", train_step(_cdn("ml-cdn", 50, samples=10), x, y), plain, 7.5)
    yield Case("train vb-cdn S=1 / plain", vb_cdn, plain, 7.5)
    yield Case("train five members / one", train_step(_cdn("ml-cdn", 50, members=5), x, y), ml_cdn, 4.0)
    reference = explicit_weights_step(x, y, 50, bayesian=False)
    yield Case("train ml-cdn / building W per row", ml_cdn, reference, 1 / 70, divisor=8)
    reference = explicit_weights_step(x, y, 100, bayesian=True)
    yield Case("train vb-cdn / building W per row", vb_cdn, reference, 1 / 150, divisor=8)
    for name, limit in TRAINING.items():
        calls = 50 if name == "noisy-kfac" else 1  # its factors are decomposed every 50 steps
        yield Case(f"train {name} / plain", train_step(Method(name), x, y), plain, limit, calls, calls)


def _prediction_cases(x: Tensor) -> Iterator[Case]:
    passes = hundred_passes(x)
    plain = [(Method(name), 0.8) for name in PREDICTION]
    methods = [(_cdn("ml-cdn", 50), 0.35), (_cdn("vb-cdn", 100), 3.5), *plain]
    for method, limit in methods:
        call = prediction(build(method, FEATURES, TASK), x)
        yield Case(f"predict {method.name} 100 draws / 100 plain passes", call, passes, limit, divisor=8)
    without, with_far_noise = (build(_cdn("ml-cdn", 50), FEATURES, TASK) for _ in range(2))
    fit_far_noise(cast(ExtrapolationGuard, with_far_noise.far).noise)
    calls = prediction(with_far_noise, x), prediction(without, x)
    yield Case("predict with far noise / without", *calls, 1.15, divisor=2)


def _layer_cases() -> Iterator[Case]:
    for channels in (16, 64):
        x = torch.rand(64, channels, 14, 14, generator=named_generator(4, "x"))
        ours = layer_pass(CompoundConv2d(channels, channels, 3, padding=1), x)
        reference = layer_pass(nn.Conv2d(channels, channels, 3, padding=1), x)
        yield Case(f"CompoundConv2d / Conv2d, {channels} channels", ours, reference, 3.0)
    x = torch.rand(128, 64, generator=named_generator(5, "x"))
    ours, reference = layer_pass(CompoundGRUCell(64, 64), x), layer_pass(nn.GRUCell(64, 64), x)
    yield Case("CompoundGRUCell / GRUCell", ours, reference, 4.0)


def layer_pass(layer: nn.Module, x: Tensor) -> Call:
    """Forward and backward pass of a layer, plain or compound, with a gradient of its input x."""
    generator = named_generator(0, "noise")
    x = x.clone().requires_grad_()

    def call() -> None:
        layer.zero_grad()
        x.grad = None
        if not isinstance(layer, CompoundLayer):
            layer(x).square().mean().backward()
            return
        with sampling(generator) as draws:
            out = layer(x)
        (out.square().mean() + draws.kl / 1000).backward()

    return call


def plain_network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 100), nn.ReLU(), nn.Linear(100, CLASSES))


def plain_step(x: Tensor, y: Tensor) -> Call:
    """A training step of the plain network on rows x (rows, 784) with labels y (rows,)."""
    model = plain_network()
    optimizer = torch.optim.Adam(model.parameters(), LR, fused=True)

    def call() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return call


def train_step(method: Method, x: Tensor, y: Tensor) -> Call:
    """A training step of a method on rows x (rows, 784) with labels y (rows,)."""
    model = build(method, FEATURES, TASK)
    optimizer = model.optimizer(TrainConfig(lr=LR))
    batch = make_dataset(x, y, TASK, x_ood=x.flip(1))
    model.on_fit_start(batch, named_generator(0, "start"))
    generators = tuple(named_generator(k, "noise") for k in range(model.members))

    def call() -> None:
        optimizer.zero_grad()
        model.loss(batch, generators).total.backward()
        optimizer.step()

    return call


def explicit_weights_step(x: Tensor, y: Tensor, hidden: int, bayesian: bool) -> Call:
    """A training step of a CDN as in the published code, which samples a weight matrix for every row.

    `hidden` is the number of hidden units of the hypernetworks; `bayesian` is vb-cdn, otherwise ml-cdn.
    """
    shapes = []
    for inputs, outputs in ((FEATURES, 100), (100, CLASSES)):
        shapes.append(((inputs + 1, hidden), (hidden + 1, 2 * (inputs + 1) + outputs), (inputs + 1, outputs)))
    starts = [[torch.randn(*shape, generator=named_generator(0)) for shape in layer] for layer in shapes]
    maps = [[nn.Parameter(0.01 * start) for start in layer] for layer in starts]
    logs = [[nn.Parameter(torch.full((sum(shape),), -3.0)) for shape in layer[:2]] for layer in shapes]
    generator = named_generator(1)
    optimizer = torch.optim.Adam([p for layer in (*maps, *logs) for p in layer], LR, fused=True)

    def append_ones(h: Tensor) -> Tensor:
        return torch.cat([h, h.new_ones(len(h), 1)], -1)

    def linear(h: Tensor, weight: Tensor, log_variance: Tensor) -> Tensor:
        x_aug = append_ones(h)
        if not bayesian:
            return x_aug @ weight
        row, col = (0.5 * log_variance).exp().split(list(weight.shape))
        noise = torch.randn((len(h), *weight.shape), generator=generator)
        w = weight + row.unsqueeze(-1) * noise * col  # (rows, in + 1, out)
        return torch.bmm(x_aug.unsqueeze(1), w).squeeze(1)

    def compound_layer(h: Tensor, layer: list[nn.Parameter], log_variances: list[nn.Parameter]) -> Tensor:
        hyper, heads, basis = layer
        r, c = basis.shape
        hidden_units = linear(h, hyper, log_variances[0]).tanh()
        s, log_row, log_col = linear(hidden_units, heads, log_variances[1]).split([r, r, c], -1)
        noise = torch.randn((len(h), r, c), generator=generator)
        std = (0.5 * log_row).exp().unsqueeze(-1) * noise * (0.5 * log_col).exp().unsqueeze(-2)
        w = s.unsqueeze(-1) * basis + std  # (rows, r, c)
        return torch.bmm(append_ones(h).unsqueeze(1), w).squeeze(1)

    def call() -> None:
        optimizer.zero_grad()
        h = compound_layer(x, maps[0], logs[0]).relu()
        functional.cross_entropy(compound_layer(h, maps[1], logs[1]), y).backward()
        optimizer.step()

    return call


def hundred_passes(x: Tensor) -> Call:
    """100 forward passes of the plain network on x (rows, 784)."""
    model = plain_network()

    @torch.no_grad()
    def call() -> None:
        for _ in range(100):
            torch.softmax(model(x), -1)

    return call


def laplace_fit() -> tuple[Call, Call]:
    """Laplace posterior of the last layer from 10,000 rows; as reference, an epoch of the plain network."""
    x = torch.rand(10_000, FEATURES, generator=named_generator(3, "x"))
    y = torch.randint(CLASSES, (10_000,), generator=named_generator(3, "y"))
    model = build(Method("laplace", subset="last"), FEATURES, TASK)
    batch = make_dataset(x, y, TASK)
    model.on_fit_start(batch, named_generator(0, "start"))
    steps = [plain_step(*batch) for batch in zip(x.split(ROWS), y.split(ROWS), strict=True)]

    def epoch() -> None:
        for step in steps:
            step()

    return lambda: model.on_fit_end(batch, named_generator(0, "finish")), epoch


def prediction(model: Model, x: Tensor) -> Call:
    """The predictive distribution of x (rows, 784) from 100 draws."""

    def call() -> None:
        model.predict(x, named_generator(0, "draws"), 100, 1)

    return call


def fit_far_noise(far: DistanceAwareNoise) -> None:
    """Fit far noise to random inputs with a spectrum like that of images, which decays as a power."""
    g = named_generator(2)
    mixing = torch.randn(FEATURES, FEATURES, generator=g) * torch.arange(1, FEATURES + 1) ** -0.9
    far.fit(0.5 + 0.1 * torch.randn(5000, FEATURES, generator=g) @ mixing.T, g)
    far.set_ramp(-6.0, 6.0, 14.0)
