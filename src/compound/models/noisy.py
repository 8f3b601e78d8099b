"""Natural gradients whose curvature is a posterior: what noisy K-FAC and noisy Adam share. Zhang, Sun, Duvenaud, Grosse (2018).

The tempered bound E_q log p(D | W) - λ KL(q || N(0, η I)), q = N(M, Σ) per layer, the bias being the last row of W. Each step

    W ~ q,    D = ∇_W mean log p(y | x, W) - γ M,    γ = λ / (N η)
    F <- running mean of E[∇ log p(ŷ | x, W) ∇ log p(ŷ | x, W)^T]  at the drawn W, ŷ drawn from the model: the true Fisher
    M <- M + rate (F + γ + extra)^-1 D,    Σ = λ / N (F + γ)^-1

The two methods differ in what they keep of F. The extra damping is for the step alone. The prior's gradient is taken at M,
which is the mean of γ W, so the gradient is that of the loss: mean -log p + λ KL / N.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Generator, Tensor, nn

from compound.models.base import WIDTHS, Draws, Loss, Model, OptimizerSettings, resolved, trained, weighted
from compound.models.heads import Head, OneNoise, head
from compound.nn.matrix_gaussian import widen
from compound.nn.networks import LIMIT, Network, hidden, saturated
from compound.predictive import Predictive
from compound.types import Batch, Streams, Task, fork, normal, single

WARM = (0, 10, 20, 50, 100)  # steps with a posterior of their own: early statistics change fast


@dataclass(frozen=True)
class NoisyConfig:
    widths: tuple[int, ...] | None = None  # hidden layers
    lam: float = 1.0  # λ, weight of the KL
    prior_variance: float | None = None  # η; 0.1 for classes, 1 for targets
    step_damping: float = 1e-3  # added to γ in the step, not in the posterior
    kl_clip: float = 1e-3  # trust region of a step; 0: none
    velocity: Literal["sum", "mean"] = "sum"  # momentum: heavy ball, or mean of gradients
    momentum: float = 0.9  # β, what is kept of the velocity
    decay: float = 0.99  # of the running statistics
    stats_every: int = 10  # steps between statistics
    refresh_every: int = 50  # steps between posteriors; more often at first
    samples: int | None = None  # draws of W per step; 1 for classes, 10 for targets
    noise: float = 0.0  # standard deviation of targets given the network; 0: learnt
    noise_rate: float = 5.0  # factor on the learning rate of the learnt noise


class Prior(NamedTuple):
    """The scales of the posterior."""

    temperature: float  # λ / N
    variance: float  # η

    @property
    def damping(self) -> float:  # γ
        return self.temperature / self.variance


class Layer(nn.Module, ABC):
    """An affine map whose weights are Gaussian: means, and standard deviations in a basis of its own."""

    spread: Tensor  # (in + 1, out)
    divergence: Tensor  # () the part of the KL that the means have no hand in

    def __init__(self, mean: Tensor):
        super().__init__()
        self.mean = nn.Parameter(mean)  # (in + 1, out), bias last
        self.register_buffer("spread", torch.zeros_like(mean))
        self.register_buffer("divergence", torch.zeros(()))

    @abstractmethod
    def fisher(self) -> Tensor:  # (in + 1, out)
        """The diagonal of F in the layer's basis."""

    @abstractmethod
    def collect(self, a: Tensor, g: Tensor, share: Tensor, decay: float) -> None:
        """Statistics of inputs a (n, in + 1) and scores g (n, out), gradients of log p(ŷ) before the mean; shares (n, 1) add to one."""

    @abstractmethod
    def into(self, weight: Tensor) -> Tensor:
        """Weights (..., in + 1, out) in the layer's basis."""

    @abstractmethod
    def back(self, weight: Tensor) -> Tensor:
        """And from it."""

    @abstractmethod
    def turned(self, a: Tensor) -> Tensor:
        """Inputs (..., in + 1) in the layer's basis."""

    @abstractmethod
    def mixed(self, noise: Tensor) -> Tensor:
        """Outputs (..., out) from the layer's basis."""

    def damped(self, damping: float) -> Tensor:  # (in + 1, out)
        return self.fisher() + damping

    def refresh(self, prior: Prior) -> None:
        """The posterior of the statistics so far: Σ = λ / N (F + γ)^-1."""
        self.settle(prior.temperature / self.damped(prior.damping), prior)

    def settle(self, variance: Tensor, prior: Prior) -> None:
        self.spread.copy_(variance.sqrt())
        terms = variance / prior.variance - 1 - (variance / prior.variance).log()
        self.divergence.copy_(0.5 * terms.double().sum())

    def draw(self, noise: Tensor) -> Tensor:
        """Weights (draws, in + 1, out) from standard normal numbers."""
        return self.mean + self.back(noise * self.spread)

    def moments(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """Means of a W (..., out), and its standard deviations before `mixed`."""
        return a @ self.mean, (self.turned(a).square() @ self.spread.square()).sqrt()

    def precondition(self, gradient: Tensor, damping: float) -> Tensor:
        return self.back(self.into(gradient) / self.damped(damping))

    def kl(self, prior: Prior) -> Tensor:  # ()
        """KL(q || N(0, η I)) = 1/2 sum (σ²/η - 1 - log σ²/η) + |M|² / 2η."""
        return self.divergence + torch.dot(self.mean.view(-1), self.mean.view(-1)) / (2 * prior.variance)


class Noisy(Model):
    """Layers with their own posteriors, and the optimizer that updates them."""

    source = "Zhang, Sun, Duvenaud and Grosse (2018)"
    shares = ("component", "posterior")
    count: Tensor  # () steps taken
    size: Tensor  # () N

    def __init__(self, inputs: int, task: Task, config: NoisyConfig, seed: int = 0):
        super().__init__()
        few = task.kind == "classes"
        defaults = {"widths": WIDTHS[task.kind], "prior_variance": 0.1 if few else 1.0, "samples": 1 if few else 10}
        config = resolved(config, defaults)
        _check(config)
        self.inputs, self.task, self.config = inputs, task, config
        self.head: Head = head(task, 1, config.noise)
        network = Network((inputs, *self.config.widths, self.head.outputs), [fork(seed, "weights")])
        means = [torch.cat([layer.weight[0], layer.bias[0]]).detach() for layer in network.layers]
        self.stack = nn.ModuleList(self.layer(k, mean) for k, mean in enumerate(means))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("size", torch.ones((), dtype=torch.float64))
        for layer in self.layers:
            layer.settle(torch.full_like(layer.spread, 1e-12), self.prior)  # next to nothing until there are statistics

    @abstractmethod
    def layer(self, k: int, mean: Tensor) -> Layer:
        """The layer number k, with means that start here."""

    @property
    def layers(self) -> list[Layer]:
        return cast(list[Layer], list(self.stack))

    @property
    def prior(self) -> Prior:
        return Prior(self.config.lam / float(self.size), self.config.prior_variance)

    def start(self, data: Batch, generator: Generator) -> None:
        self.head.start(data.y[trained(data)])
        self.count.zero_()
        self.size.fill_(float(data.size))

    def widened(self, x: Tensor) -> Tensor:  # (rows, in + 1)
        """The first layer's inputs."""
        return widen(saturated(x))

    def batch_inputs(self, batch: Batch) -> Tensor:
        return self.widened(batch.x)

    def loss(self, batch: Batch, generator: Streams) -> Loss:
        stream = single(generator)
        weights = [layer.draw(normal(stream, (self.config.samples, *layer.mean.shape), layer.mean)) for layer in self.layers]
        inputs = [self.batch_inputs(batch)]
        f = _times(inputs[0], weights[0])  # (samples, rows, out)
        for weight in weights[1:]:
            inputs.append(widen(hidden(f)))
            f = _times(inputs[-1], weight)
        nll = -weighted(self.head.log_prob(f, batch.y), batch.weight).mean()
        if int(self.count) % self.config.stats_every == 0:
            self._collect(inputs, weights, f, batch, stream)
        kl = self.config.lam * torch.stack([layer.kl(self.prior) for layer in self.layers]).sum() / batch.size
        return Loss((nll + kl).sum(), nll.detach(), kl.detach())

    @torch.no_grad()
    def _collect(self, inputs: list[Tensor], weights: list[Tensor], f: Tensor, batch: Batch, generator: Generator) -> None:
        """The scores of drawn labels, layer by layer from the last to the first."""
        share = f.new_ones(f.shape[:-1]) if batch.weight is None else batch.weight.to(f.dtype).expand(f.shape[:-1])
        share = (share / share.sum()).reshape(-1, 1)
        past = int(self.count) // self.config.stats_every
        decay = min(self.config.decay, past / (past + 1))  # a plain mean at first: nothing stays of where F began
        g = scores(self.head, f, generator)
        for k in reversed(range(len(weights))):
            a = inputs[k].expand(len(f), -1, -1)
            self.layers[k].collect(a.flatten(0, 1), g.flatten(0, 1), share, decay)
            if k:
                h = inputs[k][..., :-1]
                g = (g @ weights[k][:, :-1].mT) * ((h > 0) & (h < LIMIT))

    def due(self, step: int) -> bool:
        """Whether the posterior follows its statistics at this step."""
        return step in WARM or step % self.config.refresh_every == 0

    @torch.no_grad()
    def refresh(self) -> None:
        for layer in self.layers:
            layer.refresh(self.prior)

    def optimizer(self, settings: OptimizerSettings) -> "NaturalGradient":
        return NaturalGradient(self, settings.rate)

    def finish(self, data: Batch, generator: Generator) -> None:
        self.refresh()

    def answer(self, x: Tensor, n: Draws, generator: Generator) -> Predictive:
        """a W of a row is Gaussian, so a draw costs one noise number per output; the first layer's moments serve all draws."""
        first, *rest = self.layers
        draws, block = n.outer * n.inner, max(1, 2048 // len(x))  # few rows would leave the processor idle
        noises = [[normal(generator, (layer.mean.shape[1],), x) for layer in self.layers] for _ in range(draws)]
        mean, std = first.moments(self.widened(x))
        outputs = []
        for begin in range(0, draws, block):
            eps = [torch.stack(kind).unsqueeze(1) for kind in zip(*noises[begin : begin + block], strict=True)]  # (block, 1, out) each
            f = mean + first.mixed(std * eps[0])
            for layer, noise in zip(rest, eps[1:], strict=True):
                centre, width = layer.moments(widen(hidden(f)))
                f = centre + layer.mixed(width * noise)
            outputs.append(f)
        return self.head.predictive(torch.cat(outputs)[None, :, None])

    def row_numbers(self, n: Draws) -> int:
        widest = max(sum(layer.mean.shape) for layer in self.layers)
        return 8 * n.outer * n.inner * self.head.outputs + 4 * self.inputs + 8 * widest


def _check(config: NoisyConfig) -> None:
    for name in ("lam", "prior_variance"):
        if not 0 < getattr(config, name) < math.inf:
            raise ValueError(f"{name} is {getattr(config, name)}: give a number above 0")
    for name in ("step_damping", "kl_clip"):
        if not getattr(config, name) >= 0:
            raise ValueError(f"{name} is {getattr(config, name)}: give a number >= 0")
    for name in ("momentum", "decay"):
        if not 0 <= getattr(config, name) < 1:
            raise ValueError(f"{name} is {getattr(config, name)}: give a number of at least 0 and below 1")
    for name in ("samples", "stats_every", "refresh_every"):
        if getattr(config, name) < 1:
            raise ValueError(f"{name} is {getattr(config, name)}: give a whole number of at least 1")
    if config.velocity not in ("sum", "mean"):
        raise ValueError(f"velocity is {config.velocity!r}: use 'sum' or 'mean'")


def scores(head: Head, f: Tensor, generator: Generator) -> Tensor:
    """∂ log p(ŷ | f) / ∂f (samples, rows, out), one ŷ ~ p(. | f) per row."""
    if isinstance(head, OneNoise):
        return normal(generator, f.shape, f) / head.variance().sqrt()
    p = torch.softmax(f, -1)
    u = torch.rand((*f.shape[:-1], 1), generator=generator, dtype=f.dtype)
    labels = (p.cumsum(-1) < u).sum(-1).clamp_max(f.shape[-1] - 1)
    return nn.functional.one_hot(labels, f.shape[-1]) - p


def fold(running: Tensor, fresh: Tensor, decay: float) -> None:
    """The running mean takes in one more value, unless that is broken: nothing would mend it."""
    if bool(torch.isfinite(fresh).all()):
        running.lerp_(fresh, 1 - decay)


def _times(a: Tensor, weight: Tensor) -> Tensor:  # (samples, rows, out)
    """a (samples or none, rows, in) times each draw's weights."""
    if len(weight) == 1:  # the batched product has a cost of its own
        return torch.mm(a.view(a.shape[-2:]), weight[0]).unsqueeze(0)
    return torch.bmm(a.expand(len(weight), -1, -1), weight)


class NaturalGradient(torch.optim.Optimizer):
    """Steps along the preconditioned gradient, with momentum and a trust region; a learnt noise is left to Adam.

    velocity "sum":  v <- β v + P^-1 D,  M <- M + rate v  (heavy ball).
    velocity "mean": D is replaced by its bias-corrected running mean, M <- M + rate P^-1 D.

    The trust region bounds rate² <D, P^-1 D>, about twice the KL between the models before and after the step. It makes clipping
    of raw gradients needless; that holds training up where the noise of targets is small and gradients large by nature.
    """

    def __init__(self, model: Noisy, rate: float):
        self.model = model
        factor = model.config.noise_rate
        groups: list[dict[str, Any]] = [{"params": [layer.mean for layer in model.layers], "lr": rate}]
        noise = [parameter for parameter in model.head.parameters() if parameter.requires_grad]
        if noise:
            groups.append({"params": noise, "lr": rate * factor, "factor": factor})
        super().__init__(groups, {"lr": rate})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        model, config = self.model, self.model.config
        step = int(model.count)
        if model.due(step):
            model.refresh()
        means, *others = self.param_groups
        layers = [layer for layer in model.layers if layer.mean.grad is not None]
        gradients = [cast(Tensor, layer.mean.grad) for layer in layers]
        if config.velocity == "mean":
            gradients = [self._mean(layer.mean, "velocity", g, config.momentum, step) for layer, g in zip(layers, gradients, strict=True)]
        damping = model.prior.damping + config.step_damping
        steps = [layer.precondition(g, damping) for layer, g in zip(layers, gradients, strict=True)]
        shrink = trust(gradients, steps, means["lr"], config.kl_clip)
        for layer, change in zip(layers, steps, strict=True):
            if config.velocity == "sum":
                change = self._kept(layer.mean, "velocity").mul_(config.momentum).add_(change, alpha=shrink)
            layer.mean.add_(change, alpha=-means["lr"] * (shrink if config.velocity == "mean" else 1.0))
        for group in others:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    first = self._mean(parameter, "first", parameter.grad, 0.9, step)
                    second = self._mean(parameter, "second", parameter.grad.square(), 0.999, step)
                    parameter.addcdiv_(first, second.sqrt().add_(1e-8), value=-group["lr"])
        model.count += 1

    def _kept(self, parameter: Tensor, name: str) -> Tensor:
        return self.state[parameter].setdefault(name, torch.zeros_like(parameter))

    def _mean(self, parameter: Tensor, name: str, value: Tensor, decay: float, step: int) -> Tensor:
        """The running mean of a value, corrected for its start at 0."""
        return self._kept(parameter, name).lerp_(value, 1 - decay) / (1 - decay ** (step + 1))


def trust(gradients: Sequence[Tensor], steps: Sequence[Tensor], rate: float, bound: float) -> float:
    """The factor ν <= 1 with rate² ν² <D, P^-1 D> <= bound; no bound where that is 0."""
    square = rate**2 * sum(float((g * s).sum()) for g, s in zip(gradients, steps, strict=True))
    return min(1.0, math.sqrt(bound / square)) if bound and square > 0 else 1.0
