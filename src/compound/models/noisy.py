"""Natural gradients whose curvature is a posterior: the common part of noisy K-FAC and noisy Adam.

The tempered bound E_q log p(D | W) - λ KL(q || N(0, η I)), q = N(M, Σ) per layer, the bias being the last row
of W. Each step

    W ~ q,    D = ∇_W mean log p(y | x, W) - γ M,    γ = λ / (N η)
    F <- running mean of E[∇ log p(ŷ | x, W) ∇ log p(ŷ | x, W)^T], ŷ drawn from the model: the true Fisher
    M <- M + lr (F + γ + extra)^-1 D,    Σ = λ / N (F + γ)^-1

The two methods differ in what they keep of F. The extra damping is for the step alone. The prior's gradient
is taken at M, which is the mean of γ W, so the gradient is that of the loss: mean -log p + λ KL / N. Zhang,
Sun, Duvenaud, Grosse (2018).
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Generator, Tensor, nn

from compound.models.base import Loss, OptimizerSettings, weighted_row_mean, with_defaults
from compound.models.natural_gradient import NaturalGradient
from compound.models.network_model import NetworkConfig, NetworkModel
from compound.models.noisy_layer import Layer, Prior
from compound.models.observation import HomoscedasticGaussian, ObservationModel
from compound.nn.networks import Network
from compound.ops.affine import append_ones
from compound.ops.clamp import LIMIT, clamp_inputs, clipped_relu
from compound.ops.gaussian_noise import standard_normal
from compound.predictive import Predictive
from compound.random import Generators, named_generator, only_generator
from compound.types import Batch, Task

WARM = (0, 10, 20, 50, 100)  # steps at which posteriors are also updated: early statistics change fast


@dataclass(frozen=True)
class NoisyConfig(NetworkConfig):
    """Options of both noisy methods.

    Parameters
    ----------
    lam : float, default=1.0
        λ, weight of the KL.
    prior_variance : float, optional
        η, prior variance of every weight; None: 0.1 for classes, 1 for targets.
    step_damping : float, default=0.001
        Added to γ in the step, not in the posterior.
    kl_clip : float, default=0.001
        Trust region of a step; 0: none.
    velocity : {'sum', 'mean'}, default='sum'
        Momentum: heavy ball, or mean of gradients.
    momentum : float, default=0.9
        β, decay of the velocity.
    decay : float, default=0.99
        Decay of the running statistics.
    stats_every : int, default=10
        Steps between statistics.
    refresh_every : int, default=50
        Steps between posteriors; more often at first.
    samples : int, optional
        Draws of W per step; 1 for classes, 10 for targets.
    """

    lam: float = 1.0
    prior_variance: float | None = None
    step_damping: float = 0.001
    kl_clip: float = 0.001
    velocity: Literal["sum", "mean"] = "sum"
    momentum: float = 0.9
    decay: float = 0.99
    stats_every: int = 10
    refresh_every: int = 50
    samples: int | None = None


class Noisy(NetworkModel):
    """Layers with their own posteriors, and the optimizer that updates them."""

    reference = "Zhang, Sun, Duvenaud and Grosse (2018)"
    components = ("component", "posterior")
    whole_batches = "it keeps statistics of gradients of single rows, which processes would have to exchange"
    count: Tensor  # () steps taken
    size: Tensor  # () N

    def __init__(self, inputs: int, task: Task, config: NoisyConfig, seed: int = 0):
        classes = task.kind == "classification"
        prior_variance, samples = (0.1, 1) if classes else (1.0, 10)
        config = with_defaults(config, {"prior_variance": prior_variance, "samples": samples})
        _check(config)
        super().__init__(inputs, task, config)
        network = Network(self.widths, [named_generator(seed, "weights")])
        means = [torch.cat([layer.weight[0], layer.bias[0]]).detach() for layer in network.layers]
        self.stack = nn.ModuleList(self.layer(k, mean) for k, mean in enumerate(means))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("size", torch.ones((), dtype=torch.float64))
        for layer in self.layers:
            start = torch.full_like(layer.std, 1e-12)  # almost no variance until there are statistics
            # as with N = 1; on the meta device `size` has no value
            layer.set_posterior(start, Prior(self.config.lam, self.config.prior_variance))

    @abstractmethod
    def layer(self, k: int, mean: Tensor) -> Layer:
        """Build layer k, whose means start at `mean` (in + 1, out)."""

    @property
    def layers(self) -> list[Layer]:
        return cast(list[Layer], list(self.stack))

    @property
    def prior(self) -> Prior:
        """λ / N and η."""
        return Prior(self.config.lam / float(self.size), self.config.prior_variance)

    def on_fit_start(self, data: Batch, generator: Generator) -> None:
        """Set the constants of the likelihood and N from the training rows; restart the count of steps."""
        super().on_fit_start(data, generator)
        self.count.zero_()
        self.size.fill_(float(data.size))

    def augmented_inputs(self, x: Tensor) -> Tensor:  # (rows, in + 1)
        """x (rows, in) clamped, with a column of ones: the first layer's inputs."""
        return append_ones(clamp_inputs(x))

    def batch_inputs(self, batch: Batch) -> Tensor:  # (rows, in + 1)
        """`augmented_inputs` of a training batch; a subclass may cache them."""
        return self.augmented_inputs(batch.x)

    def loss(self, batch: Batch, generator: Generators) -> Loss:
        stream = only_generator(generator)
        weights = [
            layer.draw(standard_normal(stream, (self.config.samples, *layer.mean.shape), layer.mean))
            for layer in self.layers
        ]
        inputs = [self.batch_inputs(batch)]
        f = _matmul_draws(inputs[0], weights[0])  # (samples, rows, out)
        for weight in weights[1:]:
            inputs.append(append_ones(clipped_relu(f)))
            f = _matmul_draws(inputs[-1], weight)
        nll = -weighted_row_mean(self.likelihood.log_prob(f, batch.y), batch.weight).mean()
        if int(self.count) % self.config.stats_every == 0:
            self._collect(inputs, weights, f, batch, stream)
        kl = self.config.lam * torch.stack([layer.kl(self.prior) for layer in self.layers]).sum() / batch.size
        return Loss((nll + kl).sum(), nll.detach(), kl.detach())

    @torch.no_grad()
    def _collect(
        self, inputs: list[Tensor], weights: list[Tensor], f: Tensor, batch: Batch, generator: Generator
    ) -> None:
        """Update each layer's statistics of F with gradients of log p(ŷ | x, W), ŷ drawn from the model.

        `inputs` and `weights` are those of each layer in the forward pass that gave f (samples, rows, out).
        """
        shape, weight = f.shape[:-1], batch.weight
        row_weight = f.new_ones(shape) if weight is None else weight.to(f.dtype).expand(shape)
        row_weight = (row_weight / row_weight.sum()).reshape(-1, 1)
        past = int(self.count) // self.config.stats_every
        # a plain mean at first, so that the initial F has no weight
        decay = min(self.config.decay, past / (past + 1))
        g = scores(self.likelihood, f, generator)
        for k in reversed(range(len(weights))):
            a = inputs[k].expand(len(f), -1, -1)
            self.layers[k].collect(a.flatten(0, 1), g.flatten(0, 1), row_weight, decay)
            if k:
                h = inputs[k][..., :-1]
                g = (g @ weights[k][:, :-1].mT) * ((h > 0) & (h < LIMIT))

    def due(self, step: int) -> bool:
        """Whether to update the posteriors from the statistics at this step."""
        return step in WARM or step % self.config.refresh_every == 0

    @torch.no_grad()
    def refresh(self) -> None:
        """Update the posteriors of all layers from their statistics."""
        for layer in self.layers:
            layer.refresh(self.prior)

    def optimizer(self, settings: OptimizerSettings) -> NaturalGradient:
        return NaturalGradient(self, settings.lr)

    def on_fit_end(self, data: Batch, generator: Generator) -> None:
        self.refresh()

    def predict_chunk(self, x: Tensor, n_samples: int, n_inner: int, generator: Generator) -> Predictive:
        """The predictive of one chunk of rows.

        Pre-activations, which are Gaussian, are drawn instead of weights: one noise number per unit and draw.
        """
        first, *rest = self.layers
        draws, block = n_samples * n_inner, max(1, 2048 // len(x))  # few rows would leave the processor idle
        shapes = [(layer.mean.shape[1],) for layer in self.layers]
        noises = [[standard_normal(generator, shape, x) for shape in shapes] for _ in range(draws)]
        mean, std = first.moments(self.augmented_inputs(x))
        outputs = []
        for begin in range(0, draws, block):
            eps = [
                torch.stack(kind).unsqueeze(1) for kind in zip(*noises[begin : begin + block], strict=True)
            ]  # (block, 1, out) each
            f = mean + first.outputs_from_basis(std * eps[0])
            for layer, noise in zip(rest, eps[1:], strict=True):
                centre, width = layer.moments(append_ones(clipped_relu(f)))
                f = centre + layer.outputs_from_basis(width * noise)
            outputs.append(f)
        return self.likelihood.predictive(torch.cat(outputs)[None, :, None])


def _check(config: NoisyConfig) -> None:
    """Raise ValueError for options out of range."""
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


def scores(likelihood: ObservationModel, f: Tensor, generator: Generator) -> Tensor:
    """∂ log p(ŷ | f) / ∂f, of the shape of f (samples, rows, out), with one ŷ drawn from p(y | f) per row."""
    if isinstance(likelihood, HomoscedasticGaussian):
        return standard_normal(generator, f.shape, f) / likelihood.variance().sqrt()
    p = torch.softmax(f, -1)
    u = torch.rand((*f.shape[:-1], 1), generator=generator, dtype=f.dtype)
    labels = (p.cumsum(-1) < u).sum(-1).clamp_max(f.shape[-1] - 1)
    return nn.functional.one_hot(labels, f.shape[-1]) - p


def _matmul_draws(a: Tensor, weight: Tensor) -> Tensor:  # (samples, rows, out)
    """a (rows, in) or (samples, rows, in) times weight (samples, in, out)."""
    if len(weight) == 1:  # faster than a batched product
        return torch.mm(a.view(a.shape[-2:]), weight[0]).unsqueeze(0)
    return torch.bmm(a.expand(len(weight), -1, -1), weight)
