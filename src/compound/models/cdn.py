"""Compound density networks: uncountable mixtures of networks whose mixing distribution depends on the input.

    p(y | x; ψ) = E_{p(θ; g(x; ψ))}[ p(y; f(x; θ)) ],     p(θ; g(x; ψ)) = prod_l MN(W_l; g_l(h_{l-1}; ψ_l))

Kristiadi, Däubener and Fischer (2019). ML-CDN maximises  mean log 1/S sum_s p(y; f(x; θ_s)) - λ mean KL[p(θ;
g(x)) || p(θ)]; VB-CDN the evidence bound  mean E_q(ψ) log E_θ p(y; f(x; θ)) - KL[q(ψ) || p(ψ)] / N.

ML-CDN for the targets of a table: a row's likelihood counts Var[y | x]^β (Seitzer et al. 2022), and training
stops by the NLL after calibration, which may widen (Berta et al. 2025, "Refine, then calibrate").

A draw: n_samples draws of a member and, in VB-CDN, of its ψ (what more data would determine), and for each
n_inner draws of θ. Far noise is epistemic.
"""

import math
from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, cast

import torch
from torch import Generator, Tensor, nn

from compound.distributions import log_mean_exp
from compound.models.base import Loss, Model, train_mask, weighted_row_mean
from compound.models.cdn_config import MLConfig, VBConfig, resolve
from compound.models.extrapolation import ExtrapolationGuard, calibration_rows
from compound.models.observation.last_layer import LastLayerGaussian
from compound.models.observation.last_layers import last_layer_model, last_layer_outputs
from compound.nn import BatchedCompoundLinear, CompoundConfig, Gaussian, PiecewiseLinearEncoding
from compound.ood.distance import Distance
from compound.ops.clamp import clamp_inputs, clipped_relu
from compound.ops.gaussian_noise import row_normal, standard_normal, stratified_normal
from compound.ops.hidden_samples import sample_hidden
from compound.ops.jit import can_use_kernel
from compound.ops.padding import with_copies, without_copies
from compound.predictive import Predictive
from compound.random import Generators, member_seed, named_generator
from compound.types import Batch, Task

TABLE_MAX_TAU = 3.0  # where training stops by the calibrated NLL, the predictive may be too narrow
MIN_COMMON, MAX_COMMON = 200, 2000  # rows that all members held out, to calibrate their mixture on
GROUPS = 2  # independent groups of stratified draws: their difference shows the error of a group's mean


class _CDN(Model):
    """Base class of ML-CDN and VB-CDN: compound layers, prediction and far noise."""

    bayes: ClassVar[bool]  # whether ψ has a posterior
    has_far_noise = True
    takes_families = True
    likelihood: Any  # an ObservationModel that is a LastLayerModel too
    far: ExtrapolationGuard
    input_scales: Tensor | None  # (members, 1, network inputs), for classes with an encoding

    def __init__(
        self,
        inputs: int,
        task: Task,
        config: MLConfig | VBConfig,
        seed: int = 0,
        encoding: PiecewiseLinearEncoding | None = None,
    ):
        super().__init__()
        self.config = cast(Any, resolve(config, task, table=encoding is not None))  # no None is left in it
        self.inputs = inputs
        self.encoding = encoding  # of the network's inputs; distances are computed without it
        self.task = task
        self.members = self.config.members
        members_differ = encoding is not None and task.kind == "classification"
        scales = encoding.member_scales(self.members) if encoding is not None and members_differ else None
        self.register_buffer("input_scales", scales)
        self.eval_mixture = members_differ  # type: ignore[misc]
        self.stack = self._build_layers(seed)
        self.likelihood = last_layer_model(
            task, self.members, self.config.last_layer, self.config.last_draws, self.config.noise
        )
        if self.is_table_of_targets:
            cast(LastLayerGaussian, self.likelihood).max_tau = TABLE_MAX_TAU
        far = self.config.far, self.config.far_classes, self.config.far_distance
        self.far = ExtrapolationGuard(inputs, task, *far)

    def _build_layers(self, seed: int) -> nn.ModuleList:
        config = self.config
        outputs = last_layer_outputs(self.task)
        widths = (self.network_inputs, *config.widths, outputs)
        generators = [named_generator(member_seed(seed, k), "weights") for k in range(self.members)]
        compound = CompoundConfig(
            config.hyper,
            config.activation,
            self.bayes,
            config.parametrization,
            config.basis,
            small=self.task.kind == "classification",
            gradients=config.gradients,
        )
        starts = config.log_col
        configs = [replace(compound, log_col=starts[min(i, len(starts) - 1)]) for i in range(len(widths) - 1)]
        configs[-1] = replace(configs[-1], hyper=config.last_hyper)
        counts = [self._input_groups(), *[None] * (len(configs) - 1)]
        return nn.ModuleList(
            BatchedCompoundLinear(a, b, each, generators, (self.members,), groups)
            for a, b, each, groups in zip(widths, widths[1:], configs, counts, strict=False)
        )

    def _input_groups(self) -> Tensor | None:
        """Inputs of each group that shares an entry of s and of lr in the first layer: ML-CDN on a table."""
        if self.encoding is None or self.bayes or len(self.encoding.counts) == self.encoding.outputs:
            return None
        return self.encoding.counts

    @property
    def is_table_of_targets(self) -> bool:
        """Whether this is ML-CDN for Gaussian targets, behind the encoding of a table's columns."""
        is_gaussian = self.task.kind == "regression" and self.task.family is None
        return self.encoding is not None and is_gaussian and not self.bayes

    @property
    def layers(self) -> list[BatchedCompoundLinear]:
        return cast(list[BatchedCompoundLinear], list(self.stack))

    @property
    def network_inputs(self) -> int:
        return self.inputs if self.encoding is None else self.encoding.outputs

    def _encode(self, x: Tensor) -> Tensor:  # (members, rows, network inputs)
        """Rows x (rows, inputs) as the first layer takes them."""
        x = clamp_inputs(x)
        x = x if self.encoding is None else self.encoding(x)
        return x.expand(self.members, -1, -1) if self.input_scales is None else x * self.input_scales

    @abstractmethod
    def _shared(self) -> tuple[int, int]:
        """The argument `shared` of `BatchedCompoundLinear.forward` in training.

        It says how many of a row's S draws use the same ψ in the hidden layers of the hypernetworks, and how
        many in their last layers: 1 or S each.
        """

    def on_fit_start(self, data: Batch, generator: Generator) -> None:
        """Set the constants of likelihood and far noise from the training targets."""
        y = data.y[train_mask(data)]
        self.likelihood.on_fit_start(y)
        self.far.on_fit_start(y)

    def lr_multipliers(self) -> dict[str, float]:
        return {"log_noise": self.config.noise_rate, "log_df": self.config.noise_rate}

    def _last_layer(self, x: Tensor, generator: Generators, kl: bool) -> tuple[Gaussian, Tensor]:
        """The last layer's Gaussian for S draws of the hidden units, and each row's KL[p(θ; g(x)) || p(θ)].

        x is (rows, inputs). The Gaussian is (members, S, rows, outputs), the KL (members, rows); the KL is
        computed only if `kl` is True.
        """
        samples, rows = self.config.samples, len(x)
        x = self._encode(x)
        shared = self._shared()
        # where all draws of a row have the same ψ, the first layer is computed once
        once = shared[0] == samples and self.config.gradients == "local"
        first, *rest = self.layers
        out = first(x if once else x.repeat(1, samples, 1), generator, (1, 1) if once else shared, kl)
        total = self._mean_draw(out.kl, rows) if kl else out.kl
        for layer in rest:
            mean, std = (
                v.view(self.members, -1, rows, v.shape[-1]) for v in (out.mean, out.std)
            )  # (members, 1 or S, rows, width)
            noise = row_normal(generator, (self.members, samples, rows, mean.shape[-1]), mean)
            out = layer.forward_augmented(sample_hidden(mean, std, noise), generator, shared, kl)
            total = total + self._mean_draw(out.kl, rows) if kl else total
        mean, std = (v.view(self.members, -1, rows, v.shape[-1]) for v in (out.mean, out.std))
        return Gaussian(mean, std, out.kl), total

    def _mean_draw(self, values: Tensor, rows: int) -> Tensor:  # (members, rows)
        """The mean over draws of values (members, draws rows)."""
        return values if values.shape[1] == rows else values.view(self.members, -1, rows).mean(1)

    def _log_prob(self, last: Gaussian, y: Tensor, generator: Generators) -> Tensor:  # (members, rows)
        """log 1/S sum_s p(y; f(x; θ_s)) of each row, for `last` from `_last_layer`."""
        return log_mean_exp(self.likelihood.last_log_prob(last, y, generator), 1)

    @property
    def stratified(self) -> bool:  # type: ignore[override]
        """Whether `predict` stratifies the noise of hidden units: ML-CDN on the encoded columns of a table.

        Outputs are nearly linear in this noise, and nearly sums over hidden units: few draws suffice.
        Without an encoding draws are independent, as published.
        """
        return self.encoding is not None and not self.bayes

    def _draws(
        self, x: Tensor, n_samples: int, n_inner: int, generator: Generator, groups: int = 0
    ) -> tuple[Tensor, Tensor]:
        """What `LastLayerModel.sample` keeps for x (rows, inputs): two arrays for all draws.

        Each is (members, n_samples, n_inner, rows, outputs): n_samples draws of ψ per member, and n_inner of
        θ for each ψ. All rows share the noise. It is stratified in the hidden layers if `groups` is not 0:
        each ψ's draws of θ are so many independent samples of an even number of draws.
        """
        first, *rest = self.layers
        compiled = self._is_compiled(x) and len(rest) == 1  # of the last layer
        of_table = compiled and self.encoding is not None  # and of the first one: its inputs are sparse
        encoded = x if of_table else self._encode(x)
        rows = len(x)
        x = x[: without_copies(x)] if of_table else x
        step = max(1, 2048 // len(x))  # draws computed together: few rows would leave the processor idle
        outer = []
        for _ in range(n_samples):
            psi = [layer.draw(generator) for layer in self.layers]
            noises, last = self.draw_noise(n_inner, generator, x, groups)
            start = self._compiled_start(x, psi[0]) if of_table else first.forward_given(encoded, psi[0])
            if compiled:
                mean, std = rest[0].draws_given(start, noises[0].squeeze(2), psi[1])
                out = Gaussian(with_copies(mean, rows, 2), with_copies(std, rows, 2), start.kl)
                outer.append(list(self.likelihood.sample(out, last)))
                continue
            mean, std = start.mean.unsqueeze(1), start.std.unsqueeze(1)  # (members, 1, rows, width)
            inner = []
            for begin in range(0, n_inner, step):
                part = slice(begin, min(begin + step, n_inner))
                draws = part.stop - part.start
                out = Gaussian(mean.expand(-1, draws, -1, -1), std.expand(-1, draws, -1, -1), start.kl)
                for layer, weights, noise in zip(rest, psi[1:], noises, strict=True):
                    h = clipped_relu(torch.addcmul(out.mean, out.std, noise[:, part])).flatten(
                        1, 2
                    )  # (members, draws rows, width)
                    after = layer.forward_given(h, weights)
                    out = Gaussian(
                        after.mean.unflatten(1, (draws, -1)), after.std.unflatten(1, (draws, -1)), after.kl
                    )
                inner.append(self.likelihood.sample(out, last[:, part]))
            outer.append([torch.cat(kind, 1) for kind in zip(*inner, strict=True)])
        means, variances = (torch.stack(kind, 1) for kind in zip(*outer, strict=True))
        return means, variances

    def _is_compiled(self, x: Tensor) -> bool:
        """Whether draws are computed by compiled loops, which hold no array of all draws' hidden units."""
        whole = all(layer.has_compiled_draws for layer in self.layers)
        return whole and not self.bayes and can_use_kernel(x) and not torch.is_grad_enabled()

    def _compiled_start(self, x: Tensor, psi: tuple[list[Tensor], Tensor]) -> Gaussian:
        """The first layer's Gaussian for rows x (rows, inputs), without gradients."""
        start = None
        if self.encoding is not None:
            bins, scales = self.encoding.constants, self.input_scales
            start = self.layers[0].encoded_given(clamp_inputs(x), bins, scales, psi)
        return self.layers[0].rows_given(self._encode(x), psi) if start is None else start

    def draw_noise(
        self, n_inner: int, generator: Generator, like: Tensor, groups: int = 0
    ) -> tuple[list[Tensor], Tensor]:
        """Standard normal noise of n_inner draws of θ, which all rows share.

        It is (members, n_inner, 1, width) for the hidden units of each layer, stratified if `groups` is not
        0, and that of the observation model's `sample_noise`.
        """
        noises = []
        for layer in self.layers[1:]:
            if groups:
                shape = (self.members, groups, n_inner // groups, layer.inputs)
                noises.append(stratified_normal(generator, shape, like).flatten(1, 2).unsqueeze(2))
            else:
                noises.append(standard_normal(generator, (self.members, n_inner, 1, layer.inputs), like))
        return noises, self.likelihood.sample_noise(self.members, n_inner, generator, like)

    def _draws_per_member(self, n_samples: int, n_inner: int) -> tuple[int, int]:
        """Numbers of draws for each member: of ψ, and of θ for each ψ.

        ψ of ML-CDN has no posterior: one ψ, and all draws are of θ.
        """
        each = math.ceil(n_samples / self.members)
        return (each, n_inner) if self.bayes else (1, each * n_inner)

    def draw_counts(self, n_samples: int, n_inner: int) -> tuple[int, int, int]:
        """What `predict` draws: ψ of each member, θ for each ψ, and groups of stratified θ (0: none)."""
        n_samples, n_inner = self._draws_per_member(n_samples, n_inner)
        if not self.stratified:
            return n_samples, n_inner, 0
        return n_samples, 2 * GROUPS * math.ceil(n_inner / (2 * GROUPS)), GROUPS

    def predict_chunk(self, x: Tensor, n_samples: int, n_inner: int, generator: Generator) -> Predictive:
        n_samples, n_inner, groups = self.draw_counts(n_samples, n_inner)
        draws = self._draws(x, n_samples, n_inner, generator, groups)
        predictive = self.likelihood.draws_predictive(draws, n_inner // groups if groups else 1)
        return self.far(predictive, x)  # type: ignore[no-any-return]

    @property
    def hidden_units(self) -> int:
        hyper = sum(layer.hyper.width for layer in self.layers)
        return self.members * (2 * sum(self.config.widths) + hyper)

    @property
    def outputs(self) -> int:
        return super().outputs * self.config.last_draws

    @torch.no_grad()
    def nll(self, batch: Batch, n_samples: int, generator: Generator) -> Tensor:  # (members,)
        """Mean NLL under each member's own predictive, without far noise.

        ML-CDN for the targets of a table: at the factor τ that is best for these rows.
        """
        draws = self._draws(batch.x, *self._draws_per_member(n_samples * self.members, 1), generator)
        log_prob = self.likelihood.stopping_log_prob(draws, batch.y, batch.weight)
        return -weighted_row_mean(log_prob, batch.weight)

    @torch.no_grad()
    def on_fit_end(self, data: Batch, generator: Generator) -> None:
        """Fit τ, bounds and far noise on rows that members held out.

        Where no member held out rows, bounds and far noise are fitted on training rows, and τ stays 1.
        ML-CDN for the targets of a table: τ is that of the mixture, if all members held out enough rows.
        """
        shape = (self.members, len(data))
        held_out = (
            torch.zeros(shape, dtype=torch.bool) if data.weight is None else (data.weight == 0).expand(shape)
        )
        rows = calibration_rows(data, held_out, generator)
        draws = self._draws(data.x[rows], *self._draws_per_member(100 * self.members, 1), generator)
        y = data.y[rows]
        mask = torch.ones(self.members, len(rows), dtype=torch.bool)
        if bool(held_out.any()):
            mask = held_out[:, rows]
            common = held_out.all(0).nonzero().squeeze(1)[:MAX_COMMON]
            if self.is_table_of_targets and len(common) >= MIN_COMMON:
                n_draws = self._draws_per_member(100 * self.members, 1)
                of_common = self._draws(data.x[common], *n_draws, generator)
                self.likelihood.calibrate(of_common, data.y[common], None)
            else:
                self.likelihood.calibrate(draws, y, mask)
        self.far.fit_limits(data, self.likelihood.draws_predictive(draws))
        predictive = self.far.bounded(self.likelihood.draws_predictive(draws))
        member_log_prob = self.likelihood.far_log_prob(draws, y, self.far.far_params)

        def log_densities(t: Tensor | None) -> Tensor:  # (2, rows)
            """log p(y) with far noise t (rows,): mean over members that held the row out; mixture of all."""
            noisy = predictive if t is None else predictive.with_far_noise(t, self.far.far_params)
            members = (mask * member_log_prob(t)).sum(0) / mask.sum(0)
            return torch.stack([members, noisy.log_prob(y)])

        self.far.fit(data, rows, log_densities, generator)

    @property
    def distance(self) -> Distance | None:
        return self.far.noise.distance if self.far.fitted else None


class MLCDN(_CDN):
    """Compound density network fitted by maximum likelihood."""

    method = "ml-cdn"
    reference = "Kristiadi, Däubener and Fischer (2019)"
    components = ("component", "mixing", "posterior")  # the posterior share: between members, and far noise
    bayes = False
    Config = MLConfig

    def _shared(self) -> tuple[int, int]:
        return self.config.samples, self.config.samples

    def loss(self, batch: Batch, generator: Generators) -> Loss:
        path = self.config.lam
        first, last = path if isinstance(path, tuple) else (path, path)
        lam = first * (last / first) ** batch.progress if first else 0.0
        out, kl = self._last_layer(batch.x, generator, lam > 0)
        log_prob = self._log_prob(out, batch.y, generator)
        nll = -weighted_row_mean(log_prob, batch.row_weights)
        divergence = weighted_row_mean(kl, batch.row_weights) if lam > 0 else torch.zeros_like(nll)
        total = lam * divergence + (self._weighted_nll(out, log_prob, batch) if self.config.beta else nll)
        if self.config.basis == "map":
            total = total + torch.stack([layer.kl() for layer in self.layers]).sum(0) / batch.size
        return Loss(total.sum(), nll.detach(), divergence.detach())

    def _weighted_nll(self, last: Gaussian, log_prob: Tensor, batch: Batch) -> Tensor:  # (members,)
        """Mean NLL, rows weighted by Var[y | x]^β (a constant for the gradient): Seitzer et al. (2022).

        The likelihood alone has its mean learnt from rows of little noise first. Weights have the mean 1.
        """
        variance = cast(LastLayerGaussian, self.likelihood).last_variance(last).detach()  # (members, rows)
        weight = variance**self.config.beta
        weight = weight / batch.average(weighted_row_mean(weight, batch.row_weights)).unsqueeze(-1)
        return -weighted_row_mean(weight * log_prob, batch.row_weights)


class VBCDN(_CDN):
    """Compound density network with a variational posterior over its hypernetworks."""

    method = "vb-cdn"
    reference = "Kristiadi, Däubener and Fischer (2019)"
    components = ("component", "mixing", "posterior")
    bayes = True
    Config = VBConfig

    def _shared(self) -> tuple[int, int]:
        samples = self.config.samples
        return {"elbo": (samples, samples), "official": (1, samples), "joint": (1, 1)}[self.config.objective]

    def kl(self) -> Tensor:  # (members,)
        """KL of the posterior over all hypernetworks to its prior."""
        return torch.stack([layer.kl() for layer in self.layers]).sum(0)

    def loss(self, batch: Batch, generator: Generators) -> Loss:
        out, _ = self._last_layer(batch.x, generator, False)
        nll = -weighted_row_mean(self._log_prob(out, batch.y, generator), batch.row_weights)
        kl = self.kl() / batch.size
        return Loss((nll + kl).sum(), nll.detach(), kl.detach())
