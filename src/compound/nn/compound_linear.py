"""The compound linear layer for a network of your own: every row has weights of its own, drawn in each pass.

    W | h ~ MN( diag(s(h)) V, diag(exp lr(h)) / r, diag(exp lc(h)) ),      (s, lr, lc) = g(h; ψ),  r = in + 1

Kristiadi, Däubener and Fischer (2019), in the fan-in scaled form. Only the pre-activations are drawn, from
the exact Gaussian that W implies.
"""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Generator, Tensor, nn

from compound.nn.compound_layer import LOG_COL, CompoundLayer, initial_normal
from compound.nn.draws import current_draws
from compound.ops.affine import append_ones
from compound.ops.compound_moments import MomentOptions
from compound.ops.traceable_moments import traceable_moments
from compound.precision import full_precision


class CompoundLinear(CompoundLayer):
    """`nn.Linear` with weights drawn anew for every row, from a distribution that its input determines.

    Call it inside `with sampling(generator)`. Outside of it, in eval mode, it uses the mean of its weights.

    Parameters
    ----------
    in_features, out_features : int
        Sizes of input and output.
    bias : bool, default=True
        Whether there is a bias. Without one its mean is 0, while its noise stays.
    hidden : sequence of int, default=(50,)
        Hidden widths of the hypernetwork.
    bayes : bool, default=False
        Maximum likelihood (False), or a variational posterior over the hypernetwork's weights (True).
    log_col : float, default=-6.0
        Log-variance of the weights at the start, relative to 1 / (in_features + 1), and its prior mean.
    generator : torch.Generator, optional
        Source of the initial weights; by default torch's own, as for `nn.Linear`.

    Examples
    --------
    >>> import torch
    >>> from compound.nn import CompoundLinear, sampling
    >>> layer = CompoundLinear(3, 2)
    >>> with sampling(torch.Generator().manual_seed(0)) as draws:
    ...     y = layer(torch.ones(7, 5, 3))
    >>> y.shape
    torch.Size([7, 5, 2])
    """

    plain = (nn.Linear,)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        hidden: Sequence[int] = (50,),
        bayes: bool = False,
        log_col: float = LOG_COL,
        generator: Generator | None = None,
    ):
        super().__init__(in_features, in_features, out_features, hidden, bayes, log_col, generator)
        self.in_features = in_features
        self.out_features = out_features
        std = (2 / (in_features + 1)) ** 0.5  # keeps the mean square through a ReLU
        self.weight = nn.Parameter(std * initial_normal(generator, (out_features, in_features)))
        self.bias = nn.Parameter(torch.zeros(out_features, dtype=torch.float32)) if bias else None

    @classmethod
    def from_layer(
        cls,
        layer: nn.Module,
        *,
        hidden: Sequence[int] = (50,),
        bayes: bool = False,
        log_col: float = LOG_COL,
        generator: Generator | None = None,
    ) -> Self:
        """A compound layer that starts at the weights of an `nn.Linear`, whose parameters it takes over."""
        assert isinstance(layer, nn.Linear)
        sizes = layer.in_features, layer.out_features, layer.bias is not None
        made = cls(*sizes, hidden=hidden, bayes=bayes, log_col=log_col, generator=generator)
        return made._take_over(layer, {"weight": "weight", "bias": "bias"})

    @full_precision
    def forward(self, x: Tensor) -> Tensor:
        """Pre-activations (..., out_features) of x (..., in_features).

        The first axis counts the rows; positions on further axes have weights of their own too, and share ψ.
        """
        if x.shape[-1] != self.in_features:
            raise ValueError(f"x has {x.shape[-1]} features, the layer takes {self.in_features}")
        if x.ndim == 1:
            return self.forward(x.unsqueeze(0)).squeeze(0)
        draws = current_draws(self)
        rows, *between, _ = x.shape
        x_aug = append_ones(x)
        heads = self.heads(x_aug, self.psi(draws, rows))
        if draws is None:
            return (heads[..., : self.in_features + 1] * x_aug) @ self.basis()
        noise = draws.row_noise(rows, (*between, self.out_features), self.weight)
        options = MomentOptions(self.bound, True, self.adds_kl(draws))
        flat = x_aug.flatten(0, -2), heads.flatten(0, -2)  # (rows, ...)
        out = traceable_moments(*flat, self.basis(), options)
        if options.kl:
            draws.add_kl(out.kl.view(rows, -1).sum(1).mean())
        mean, std = (v.view(rows, *between, self.out_features) for v in (out.mean, out.std))
        return torch.addcmul(mean, std, noise)

    def basis(self) -> Tensor:
        """V (in_features + 1, out_features): the mean of the weights where scales are 1, the bias last."""
        bias = self.weight.new_zeros(self.out_features) if self.bias is None else self.bias
        return torch.cat([self.weight.mT, bias.unsqueeze(0)])

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}, bayes={self.bayes}"
