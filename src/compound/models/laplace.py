"""Laplace approximation: a Gaussian posterior around the trained network, from the curvature of the loss.

    p(θ | D) ≈ N(θ*, P⁻¹),    P = H + δ I, one block per layer

H is the generalised Gauss-Newton matrix of the summed -log p(y | f(x; θ)) at θ*, the mode found by `map`.
Each layer's H is a Kronecker product A ⊗ G (Martens and Grosse 2015; Ritter, Botev and Barber 2018), or, for
the last layer alone, dense. The precision δ of each layer's prior, and a common factor τ on the noise
variances of targets, maximise the evidence at fixed θ* (MacKay 1992):

    log p(D) ≈ log p(D | θ*) - ½ sum_l ( log|P_l| - n_l log δ_l + δ_l |θ*_l|² )

The predictive of the linearised network (Immer, Korzepa and Bauer 2021) is f(x) ~ N(f*(x), Σ(x)), Σ = sum_l
J_l P_l⁻¹ J_l^T.

A draw: n_samples * n_inner draws of f from N(f*, Σ), or of networks from the posterior; all of it is
epistemic. Without draws ("closed") targets have Σ as epistemic variance; the probit predictive of classes
cannot be decomposed, and counts as component.
"""

import math
from typing import cast

import torch
from torch import Generator, Tensor, nn

from compound.models.base import COPIES, Loss, Model, train_mask, with_defaults
from compound.models.laplace_config import LaplaceConfig, check
from compound.models.map import MAP, MAPConfig
from compound.models.observation import HomoscedasticGaussian
from compound.nn.kronecker import Dense, Kronecker, jacobians, layer_inputs
from compound.nn.networks import Linear
from compound.ops.clamp import clamp_inputs, clipped_relu
from compound.ops.gaussian_noise import standard_normal
from compound.predictive import GaussianPredictive, Predictive
from compound.random import Generators
from compound.types import Batch, Task

DELTAS = (1e-4, 1e6)  # bounds of a tuned δ: with no curvature, or all weights 0, the evidence has no maximum
FACTORS = (1e-4, 1e4)  # bounds of τ
NUMBERS = 2**20  # size of an array while the curvature is summed over chunks of rows


class Laplace(Model):
    """A network at its mode, and a Gaussian posterior around it fitted after training.

    Before `on_fit_end` the curvature is 0, and the posterior has the covariance of the prior.
    """

    method = "laplace"
    Config = LaplaceConfig
    reference = "MacKay (1992), Ritter, Botev and Barber (2018)"
    components = ("component", "posterior")
    delta: Tensor  # (layers,) δ of the layers that have a posterior
    size: Tensor  # () N
    log_likelihood: Tensor  # () log p(D | θ*)
    misfit: Tensor  # () targets: sum of (y - f*)² / σ²

    def __init__(self, inputs: int, task: Task, config: LaplaceConfig, seed: int = 0):
        super().__init__()
        check(config)
        self.inputs, self.task = inputs, task
        network = MAPConfig(config.widths, config.noise, config.noise_rate, precision=config.precision)
        self.base_model = MAP(inputs, task, network, seed)
        self.config = with_defaults(config, {"widths": self.base_model.config.widths})
        self.curvature = nn.ModuleList(
            Dense(layer.inputs, layer.outputs)
            if config.structure == "full"
            else Kronecker(layer.inputs, layer.outputs, config.damping == "factored")
            for layer in self.layers
        )
        delta = torch.full((len(self.layers),), float(config.precision), dtype=torch.float32)
        self.register_buffer("delta", delta)
        for name in ("size", "log_likelihood", "misfit"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float32))

    @property
    def layers(self) -> list[Linear]:
        """The layers that have a posterior: all, or the last."""
        layers = self.base_model.network.layers
        return layers if self.config.subset == "all" else layers[-1:]

    @property
    def blocks(self) -> list[Kronecker | Dense]:
        """The curvature H of each layer of `layers`."""
        return cast(list[Kronecker | Dense], list(self.curvature))

    def on_fit_start(self, data: Batch, generator: Generator) -> None:
        self.base_model.on_fit_start(data, generator)

    def lr_multipliers(self) -> dict[str, float]:
        return self.base_model.lr_multipliers()

    def loss(self, batch: Batch, generator: Generators) -> Loss:
        return self.base_model.loss(batch, generator)

    def nll(self, batch: Batch, n_samples: int, generator: Generator) -> Tensor:  # (1,)
        """Mean NLL of the network without a posterior, which is fitted only after training."""
        return self.base_model.nll(batch, n_samples, generator)

    @torch.no_grad()
    def on_fit_end(self, data: Batch, generator: Generator) -> None:
        """Fit the posterior to the training rows, and tune δ and the noise unless `tune` is 'none'."""
        self.fit_curvature(data)
        if self.config.tune == "marglik":
            self._tune()

    @torch.no_grad()
    def fit_curvature(self, data: Batch, chunk: int | None = None) -> None:
        """Compute H of every layer at θ* from the training rows, `chunk` rows at a time.

        A row of weight w counts as w rows.
        """
        network, likelihood = self.base_model.network, self.base_model.likelihood
        chunk = chunk or max(1, NUMBERS // (self.task.size * max(layer.outputs for layer in network.layers)))
        sums = [block.zeros() for block in self.blocks]
        totals = torch.zeros(3, dtype=torch.float64)
        for rows in train_mask(data).nonzero().squeeze(-1).split(chunk):
            x, y = data.x[rows], data.y[rows]
            weight = x.new_ones(len(x))
            if data.weight is not None:
                weight = data.weight.reshape(-1, len(data))[0, rows].to(x.dtype)
            inputs, f = layer_inputs(network, x)
            root = weight.sqrt()[:, None, None] * self._hessian_root(f)
            inputs = inputs[-len(self.blocks) :]
            gradients = jacobians(network, inputs, root)
            for block, block_sums, h, g in zip(self.blocks, sums, inputs, gradients, strict=True):
                block.add(block_sums, h, g, weight)
            scores = weight * likelihood.log_prob(f.unsqueeze(0), y)[0]
            misfit = (
                (root.diagonal(dim1=1, dim2=2) * (y - f)).square()
                if isinstance(likelihood, HomoscedasticGaussian)
                else scores.new_zeros(())
            )
            totals += torch.stack([values.double().sum() for values in (weight, scores, misfit)])
        for block, block_sums in zip(self.blocks, sums, strict=True):
            block.fit(block_sums, totals[0])
        for buffer, total in zip((self.size, self.log_likelihood, self.misfit), totals, strict=True):
            buffer.copy_(total)

    def _hessian_root(self, f: Tensor) -> Tensor:  # (rows, outputs, outputs)
        """R with R^T R = Λ, the Hessian of -log p(y | f) with respect to f (rows, outputs).

        Λ is diag(p) - p p^T for classes, diag(1 / σ²) for targets.
        """
        likelihood = self.base_model.likelihood
        if isinstance(likelihood, HomoscedasticGaussian):
            return torch.diag(likelihood.variance()[0].rsqrt()).unsqueeze(0).expand(len(f), -1, -1)
        p = torch.softmax(f, -1)
        return torch.diag_embed(p.sqrt()) - p.sqrt().unsqueeze(2) * p.unsqueeze(1)

    def log_evidence(self) -> Tensor:  # ()
        """log p(D) of the fitted posterior."""
        return self._evidence(self.delta.double().log(), self.delta.new_zeros((), dtype=torch.float64))

    def _evidence(self, log_delta: Tensor, log_factor: Tensor) -> Tensor:  # () float64
        """log p(D) for log δ (layers,), with the noise variances of targets multiplied by exp(log_factor)."""
        inverse_factor = (-log_factor).exp()
        numbers = self.size.double() * self.task.size
        total = self.log_likelihood.double() - 0.5 * (
            numbers * log_factor + self.misfit.double() * (inverse_factor - 1)
        )
        terms = zip(log_delta, log_delta.exp(), self.blocks, self.layers, strict=True)
        for log, delta, block, layer in terms:
            precisions = block.precisions(delta, inverse_factor)
            square = sum(parameter.detach().double().square().sum() for parameter in layer.parameters())
            total = total - 0.5 * (precisions.log().sum() - precisions.numel() * log + delta * square)
        return total

    @torch.no_grad()
    def _tune(self) -> None:
        """Set δ of every layer, and the noise variances if they are learnt, to maximise the evidence."""
        from scipy.optimize import minimize

        count, likelihood = len(self.blocks), self.base_model.likelihood
        start, bounds = self.delta.log().tolist(), [DELTAS] * count
        learnt = (
            likelihood if isinstance(likelihood, HomoscedasticGaussian) and not likelihood.fixed else None
        )
        if learnt is not None:
            start.append(0.0)
            least = float((learnt.floor / learnt.variance()).max())  # no noise below its floor
            bounds.append((max(FACTORS[0], least), FACTORS[1]))

        def objective(point: list[float]) -> tuple[float, list[float]]:
            """-log p(D) / N and its gradient at (log δ of every layer, log τ)."""
            logs = torch.tensor(point, dtype=torch.float64, requires_grad=True)
            with torch.enable_grad():
                value = -self._evidence(logs[:count], logs[count:].sum()) / self.size.double()
            (slope,) = torch.autograd.grad(value, logs)
            return value.item(), slope.tolist()

        limits = [(math.log(low), math.log(high)) for low, high in bounds]
        tolerances = {"ftol": 1e-15, "gtol": 1e-10}
        result = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=limits, options=tolerances)
        logs = torch.from_numpy(result.x)
        self.delta.copy_(logs[:count].exp())
        if learnt is not None:
            self._rescale_noise(learnt, logs[count])

    def _rescale_noise(self, likelihood: HomoscedasticGaussian, log_factor: Tensor) -> None:
        """Multiply the noise variances by exp(log_factor), and adapt all that depends on them."""
        factor = log_factor.exp()
        misfit = self.misfit * (1 / factor - 1)
        self.log_likelihood -= 0.5 * (self.size * self.task.size * log_factor + misfit)
        self.misfit /= factor
        for block in self.blocks:
            block.rescale(1 / factor)
        noise_variance = factor * likelihood.variance() - likelihood.floor
        tiny = torch.finfo(noise_variance.dtype).tiny
        likelihood.log_noise.copy_(0.5 * noise_variance.clamp_min(tiny).log())

    def gaussian(self, x: Tensor, centred: bool = False) -> tuple[Tensor, Tensor]:
        """f* (rows, outputs) and Σ (rows, outputs, outputs; float64) of the linearised network for x.

        With `centred`, Σ is the covariance of f minus its mean over outputs. A softmax does not depend on
        that mean, whose variance can be much larger than all others.
        """
        network, count = self.base_model.network, len(self.blocks)
        inputs, f = layer_inputs(network, x)
        inputs = inputs[-count:]
        eye = torch.eye(f.shape[-1], dtype=f.dtype, device=f.device)
        directions = (eye - eye.mean(0) if centred else eye).expand(len(f), -1, -1)
        by_layer = jacobians(network, inputs, directions)
        parts = zip(self.blocks, inputs, by_layer, self.delta.double(), strict=True)
        return f, torch.stack([block.covariance(h, g, delta) for block, h, g, delta in parts]).sum(0)

    def predict_chunk(self, x: Tensor, n_samples: int, n_inner: int, generator: Generator) -> Predictive:
        draws = n_samples * n_inner
        if self.config.predictive == "sample" and self.config.subset == "all":
            outputs = self._sampled_networks(x, draws, generator)
            return self.base_model.likelihood.predictive(outputs[None, :, None])
        if self.config.predictive == "closed":
            f, covariance = self.gaussian(x)
            return self._closed_form(f, covariance.diagonal(dim1=1, dim2=2).to(f.dtype))
        f, covariance = self.gaussian(x, centred=self.task.kind == "classification")
        ridge = 1e-12 * covariance.diagonal(dim1=1, dim2=2).sum(-1) + torch.finfo(torch.float64).tiny
        eye = torch.eye(f.shape[-1], dtype=covariance.dtype, device=f.device)
        root = torch.linalg.cholesky(covariance + ridge[:, None, None] * eye).to(f.dtype)
        noise = standard_normal(generator, (draws, f.shape[-1]), f)
        shift = (root @ noise.T).permute(2, 0, 1)  # (draws, rows, outputs)
        return self.base_model.likelihood.predictive((f + shift)[None, :, None])

    def _closed_form(self, f: Tensor, variance: Tensor) -> Predictive:
        """The predictive without draws for outputs N(f, variance), (rows, outputs) each."""
        likelihood = self.base_model.likelihood
        if isinstance(likelihood, HomoscedasticGaussian):
            noise = likelihood.variance()[None, None]  # (1, 1, 1, targets)
            return GaussianPredictive.from_draws(f[None, None], noise, torch.zeros_like(noise), variance)
        return likelihood.predictive(probit(f, variance)[None, None, None])

    def _sampled_networks(
        self, x: Tensor, draws: int, generator: Generator
    ) -> Tensor:  # (draws, rows, outputs)
        """Outputs for x (rows, inputs) of networks drawn from the posterior.

        Pre-activations are drawn instead of weights. All rows share one noise vector per layer and draw.
        """
        blocks, deltas = cast(list[Kronecker], self.blocks), self.delta.double()
        noises = [standard_normal(generator, (draws, 1, layer.outputs), x) for layer in self.layers]

        def pre_activations(k: int, h: Tensor) -> tuple[Tensor, Tensor]:
            """Means, and standard deviations along the eigenvectors, of layer k for inputs h (rows, in)."""
            layer = self.layers[k]
            return torch.addmm(layer.bias[0], h, layer.weight[0]), blocks[k].variances(h, deltas[k]).sqrt()

        mean, std = pre_activations(0, clamp_inputs(x))
        outputs = []
        for part in torch.arange(draws).split(max(1, 2048 // len(x))):
            s = mean + (std * noises[0][part]) @ blocks[0].output_vectors.T  # (draws, rows, out)
            for k in range(1, len(blocks)):
                moments = pre_activations(k, clipped_relu(s).flatten(0, 1))
                layer_mean, layer_std = (value.unflatten(0, s.shape[:2]) for value in moments)
                s = layer_mean + (layer_std * noises[k][part]) @ blocks[k].output_vectors.T
            outputs.append(s)
        return torch.cat(outputs)

    def floats_per_row(self, n_samples: int, n_inner: int) -> int:
        jacobian = (self.hidden_units + self.outputs) * self.outputs
        return super().floats_per_row(n_samples, n_inner) + COPIES * jacobian


def probit(f: Tensor, variance: Tensor) -> Tensor:
    """Logits whose softmax approximates the mean of softmax(g) for g ~ N(f, variance) (MacKay 1992).

    f and variance are (rows, classes). Logits are taken as independent.
    """
    return f * (1 + math.pi / 8 * variance).rsqrt()
