"""Compound linear layers as the models use them: one per ensemble member, computed together.

    W | h ~ MN( diag(s(h)) V, diag(exp lr(h)), diag(exp lc(h)) ),      (s, lr, lc) = heads of g(h; ψ)

The distribution of the weights depends on the layer's own input h. g is a small network: maximum likelihood
learns its weights ψ; variational Bayes learns a matrix-Gaussian posterior for each of its maps. Kristiadi,
Däubener and Fischer (2019), section 3; "scaled" is the fan-in scaled form, "paper" the published one.
"""

import math

import torch
from torch import Generator, Tensor, nn

from compound.distributions import MatrixNormal
from compound.nn.hypernetwork import CompoundConfig, HyperNetwork, init_basis
from compound.ops import matrix_normal
from compound.ops.affine import append_ones
from compound.ops.compound_draws import compound_draws
from compound.ops.compound_moments import Gaussian, MomentOptions, compound_moments
from compound.ops.compound_rows import compound_rows
from compound.ops.encoded_rows import Bins, Tables, can_encode, encoded_rows, prepare
from compound.ops.gaussian_noise import row_normal, standard_normal
from compound.ops.grouped_moments import grouped_moments, repeat_heads
from compound.ops.noisy_affine import scaled_noise
from compound.ops.prepared import Prepared
from compound.ops.weight_gradients import drawn_weights
from compound.precision import full_precision
from compound.random import Generators


class BatchedCompoundLinear(nn.Module):
    """Compound linear layers of several members, which return Gaussians: the models are built from them.

    `layer(x, generator)` returns the exact Gaussian over pre-activations; draw from it with `.draw(noise)`.
    `CompoundLinear` is the layer for a network of your own: it draws.
    Inside `torch.utils.checkpoint`, which computes the layer twice, create the generator in the checkpointed
    function.

    Parameters
    ----------
    inputs, outputs : int
        Number of inputs and outputs.
    config : CompoundConfig
        Parametrisation and initial values.
    generator : torch.Generator or sequence of torch.Generator
        Source of the initial weights: one, or one per member.
    members : tuple of int, default ()
        Shape of independent layers computed together, such as (5,).
    counts : Tensor of shape (groups,), optional
        Inputs come in groups of so many, one after the other, that share an entry of s and one of lr; the
        constant is a group of its own. By default every input has its own.

    Examples
    --------
    >>> import torch
    >>> from compound.nn import CompoundConfig, BatchedCompoundLinear
    >>> layer = BatchedCompoundLinear(3, 2, CompoundConfig(), torch.Generator().manual_seed(0))
    >>> x = torch.ones(5, 3)
    >>> out = layer(x, torch.Generator())
    >>> out.mean.shape, out.std.shape, out.kl.shape
    (torch.Size([5, 2]), torch.Size([5, 2]), torch.Size([5]))
    >>> layer.weight_distribution(x, torch.Generator()).batch_shape  # one per row
    torch.Size([5])
    """

    counts: Tensor | None  # (groups + 1,) inputs of each group, then 1 for the constant

    def __init__(
        self,
        inputs: int,
        outputs: int,
        config: CompoundConfig,
        generator: Generators,
        members: tuple[int, ...] = (),
        counts: Tensor | None = None,
    ):
        super().__init__()
        self.config = config
        self.inputs = inputs
        self.outputs = outputs
        groups = None if counts is None else len(counts)
        self.hyper = HyperNetwork(inputs, outputs, config, generator, members, groups=groups)
        self.register_buffer("counts", None if counts is None else torch.cat([counts, counts.new_ones(1)]))
        self.tables: Prepared[Tables] = Prepared()
        basis = init_basis(inputs, outputs, config, generator, members)
        self.basis = nn.Parameter(basis)  # V, or the mean of its posterior; (*members, in + 1, out)
        self.basis_variance = 2.0 / (inputs + 1) if config.scaled else 1.0  # of V's prior
        if config.basis == "vmg":
            log_variance = 0.5 * (math.log(self.basis_variance) - 6)
            self.log_row = nn.Parameter(basis.new_full((*members, inputs + 1), log_variance))
            self.log_col = nn.Parameter(basis.new_full((*members, outputs), log_variance))

    @full_precision
    def forward(
        self, x: Tensor, generator: Generators, shared: tuple[int, int] = (1, 1), kl: bool = True
    ) -> Gaussian:
        """The Gaussian of the pre-activations of x, with hypernetwork weights ψ drawn for every row.

        Parameters
        ----------
        x : Tensor of shape (*members, rows, in)
            Inputs.
        generator : torch.Generator or sequence of torch.Generator
            Source of the draws of ψ: one, or one per member; not used where ψ has no posterior.
        shared : tuple of two int, default (1, 1)
            The rows come in this many equal parts, and row b of every part uses the same ψ: in the hidden
            layers of the hypernetwork, and in its last layer.
        kl : bool, default True
            Whether to compute the KL of each row's weights to their prior.

        Returns
        -------
        Gaussian
            Mean and standard deviation (*members, rows, out), and KL (*members, rows).
        """
        return self.forward_augmented(append_ones(x), generator, shared, kl)

    @full_precision
    def forward_augmented(
        self, x_aug: Tensor, generator: Generators, shared: tuple[int, int] = (1, 1), kl: bool = True
    ) -> Gaussian:
        """`forward` for x_aug = [x; 1], (*members, rows, in + 1): inputs with the constant 1 appended."""
        heads = self.hyper(x_aug, generator, shared)
        options = MomentOptions(self.config.bound, self.config.scaled, kl)
        if self.counts is not None:
            if self.config.basis != "vmg":
                return grouped_moments(x_aug, heads, self.basis, self.counts, options)
            heads = repeat_heads(heads, self.counts, self.inputs + 1)
        if self.config.gradients == "weights" and torch.is_grad_enabled():
            return self._as_drawn(
                compound_moments(x_aug, heads, self.basis, options), x_aug, heads, generator
            )
        if self.config.basis != "vmg":
            return compound_moments(x_aug, heads, self.basis, options, overwrite_heads=True)
        # V's own posterior adds noise to s * h~, which rows that share ψ share as well
        out = compound_moments(x_aug, heads, self.basis, options)
        scaled = heads[..., : self.inputs + 1] * x_aug
        noise = row_normal(generator, out.mean.shape, out.mean)
        noise = scaled_noise(scaled, self.log_row.exp(), noise, shared[1])
        mean = torch.addcmul(out.mean, noise, (0.5 * self.log_col).exp().unsqueeze(-2))
        return out._replace(mean=mean)

    def _as_drawn(self, out: Gaussian, x_aug: Tensor, heads: Tensor, generator: Generators) -> Gaussian:
        """`out`, whose mean passes back the gradients of weights that are drawn for every row."""
        r, bound = self.inputs + 1, self.config.bound
        _, log_row, log_col = heads.split([r, r, self.outputs], -1)
        q = x_aug * (0.5 * log_row.clamp(-bound, bound)).exp() * self._prior_std()
        col = (0.5 * log_col.clamp(-bound, bound)).exp()
        return out._replace(mean=drawn_weights(out.mean, q, col, row_normal(generator, q.shape, q)))

    def draw(self, generator: Generator) -> tuple[list[Tensor], Tensor]:
        """One draw of the hypernetwork's weights (see `HyperNetwork.draw`) and of V (*members, in + 1, out).

        Weights without a posterior are returned as they are.
        """
        weights = self.hyper.draw(generator)
        if self.config.basis != "vmg":
            return weights, self.basis
        std = (0.5 * (self.log_row.unsqueeze(-1) + self.log_col.unsqueeze(-2))).exp()
        noise = standard_normal(generator, self.basis.shape, self.basis)
        return weights, torch.addcmul(self.basis, std, noise)

    @full_precision
    def forward_given(self, x: Tensor, psi: tuple[list[Tensor], Tensor]) -> Gaussian:
        """The Gaussian of the pre-activations of x (*members, rows, in), without KL.

        `psi` is the result of `draw`: the same weights for all rows.
        """
        weights, basis = psi
        x_aug = append_ones(x)
        heads = self.hyper.forward_given(x_aug, weights)
        options = MomentOptions(self.config.bound, self.config.scaled, kl=False)
        if self.counts is not None:
            return grouped_moments(x_aug, heads, basis, self.counts, options)
        return compound_moments(x_aug, heads, basis, options, overwrite_heads=True)

    @full_precision
    def rows_given(self, x: Tensor, psi: tuple[list[Tensor], Tensor]) -> Gaussian:
        """`forward_given` without gradients, for layers with `has_compiled_draws`: zeros cost nothing."""
        (hyper, heads), basis = psi
        heads = heads if self.counts is None else repeat_heads(heads, self.counts, self.inputs + 1)
        options = MomentOptions(self.config.bound, self.config.scaled, kl=False)
        return Gaussian(*compound_rows(x, hyper, heads, basis, options), x.new_empty(0))

    @full_precision
    def encoded_given(
        self, x: Tensor, bins: Bins, scales: Tensor | None, psi: tuple[list[Tensor], Tensor]
    ) -> Gaussian | None:
        """`rows_given` of rows x (rows, inputs) before their encoding, which `bins` describe.

        The encoded rows are multiplied by scales (members, 1, encoded). None where it cannot be compiled, or
        the layer's inputs have no groups; those are used, and not the groups of `bins`.
        """
        (hyper, heads), basis = psi
        if self.counts is None or not can_encode(x, hyper, heads, basis):
            return None
        bins = bins._replace(counts=self.counts[:-1])
        given = (hyper, heads, basis, *bins[:-1], *(() if scales is None else (scales,)))
        tables = self.tables.get(given, lambda: prepare(bins, scales, hyper, heads, basis))
        options = MomentOptions(self.config.bound, self.config.scaled, kl=False)
        return Gaussian(*encoded_rows(x, tables, self.inputs + 1, options), x.new_empty(0))

    @property
    def has_compiled_draws(self) -> bool:
        """Whether `draws_given` computes the layer: its hypernetwork has one hidden layer of ReLUs."""
        return self.config.activation == "relu" and len(self.hyper.maps) == 2

    @full_precision
    def draws_given(
        self, hidden: Gaussian, noise: Tensor, psi: tuple[list[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:  # (members, draws, rows, out) each
        """Means and standard deviations of the pre-activations for draws of the inputs, without gradients.

        The inputs are rectified draws from `hidden`, (members, rows, in), with standard normal noise
        (members, draws, in) that rows share; `psi` is the result of `draw`.
        """
        (hyper, heads), basis = psi
        heads = heads if self.counts is None else repeat_heads(heads, self.counts, self.inputs + 1)
        options = MomentOptions(self.config.bound, self.config.scaled, kl=False)
        return compound_draws(hidden.mean, hidden.std, noise, hyper, heads, basis, options)

    @full_precision
    def weight_distribution(self, x: Tensor, generator: Generators) -> MatrixNormal:
        """The distribution of the weights given each row, with ψ drawn per row and V at its mean.

        Parameters
        ----------
        x : Tensor of shape (*members, rows, in)
            Inputs.
        generator : torch.Generator or sequence of torch.Generator
            Source of the noise of ψ; not used without a posterior.

        Returns
        -------
        MatrixNormal
            Batch shape (*members, rows), event shape (in + 1, out).
        """
        r = self.inputs + 1
        heads = self.hyper(append_ones(x), generator)
        heads = heads if self.counts is None else repeat_heads(heads, self.counts, self.inputs + 1)
        scale, log_row, log_col = heads.split([r, r, self.outputs], -1)
        bound = self.config.bound
        row = (0.5 * log_row.clamp(-bound, bound)).exp() * self._prior_std()
        col = (0.5 * log_col.clamp(-bound, bound)).exp()
        mean = scale.unsqueeze(-1) * self.basis.unsqueeze(-3)
        return MatrixNormal(mean, row, col, validate_args=False)

    def weight_prior(self) -> MatrixNormal:
        """The prior of the weights, the same for every row: `Gaussian.kl` is the KL to it."""
        r, c = self.inputs + 1, self.outputs
        new = self.basis.new_full
        return MatrixNormal(new((r, c), 0.0), new((r,), self._prior_std()), new((c,), 1.0))

    def _prior_std(self) -> float:
        return (self.inputs + 1) ** -0.5 if self.config.scaled else 1.0

    def kl(self) -> Tensor:
        """The KL of the posterior over ψ to its prior, plus a term for V, (*members,).

        The term is 0 for the basis "point", the negative log-prior up to a constant for "map", and the KL of
        V's posterior to its prior for "vmg".
        """
        total = self.hyper.kl()
        if self.config.basis == "map":
            total = total + 0.5 * (self.basis.square().sum((-2, -1)) / self.basis_variance)
        elif self.config.basis == "vmg":
            factors = self.basis, self.log_row, self.log_col
            total = total + matrix_normal.reference(*factors, self.basis_variance)
        return total
