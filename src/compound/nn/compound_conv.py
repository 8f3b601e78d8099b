"""Compound convolutions: every image has a kernel of its own, drawn in each pass.

    W | x ~ MN( diag(s) V, diag(exp lr) / r, diag(exp lc) ),      (s, lr, lc) = g(mean of x over positions; ψ)

W has r = in / groups * positions + 1 rows, the bias last, and a column per output channel; s and lr have an
entry per input channel. Positions share the kernel, so noise is correlated between them, and pooling does not
average it away. One noise kernel E serves the batch: signs of each image's own, one per input and output
channel, turn it into an uncorrelated one, so that a draw costs two convolutions (Wen et al. 2018, flipout).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self, cast

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from compound.nn.compound_layer import LOG_COL, CompoundLayer, Heads, initial_normal
from compound.nn.draws import current_draws
from compound.ops.affine import append_ones
from compound.ops.compound_moments import weights_kl
from compound.ops.scaled_channels import add_scaled, per_channel, two_scales
from compound.precision import full_precision

Size = int | Sequence[int]


class _CompoundConv(CompoundLayer):
    """Base class of the convolutions, over `axes` axes."""

    axes: ClassVar[int]
    _convolution: ClassVar[Callable[..., Tensor]]
    count: Tensor  # (in / groups + 1,): positions of each input channel in the kernel, and 1

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size,
        padding: Size | str,
        dilation: Size,
        groups: int,
        bias: bool,
        hidden: Sequence[int],
        bayes: bool,
        log_col: float,
        generator: Generator | None,
    ):
        if in_channels % groups or out_channels % groups:
            raise ValueError(
                f"groups={groups} must divide {in_channels} input and {out_channels} output channels"
            )
        super().__init__(in_channels, in_channels, out_channels, hidden, bayes, log_col, generator)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = (kernel_size,) * self.axes if isinstance(kernel_size, int) else tuple(kernel_size)
        self.groups = groups
        self.options = (stride, padding, dilation, groups)
        positions, channels = math.prod(self.kernel_size), in_channels // groups
        self.fan_in = channels * positions + 1
        shape = (out_channels, channels, *self.kernel_size)
        self.weight = nn.Parameter((2 / self.fan_in) ** 0.5 * initial_normal(generator, shape))
        self.bias = nn.Parameter(torch.zeros(out_channels, dtype=torch.float32)) if bias else None
        count = torch.tensor([positions] * channels + [1], dtype=torch.float32)
        self.register_buffer("count", count, persistent=False)

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
        """A compound layer that starts at the kernel of a convolution, whose parameters it takes over."""
        assert isinstance(layer, (nn.Conv1d, nn.Conv2d))
        if layer.padding_mode != "zeros":
            raise ValueError(f"padding_mode is {layer.padding_mode!r}: compound convolutions pad with zeros")
        make: Any = cls  # a finished class, whose arguments are those of torch's layer
        made = make(
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,
            layer.stride,
            layer.padding,
            layer.dilation,
            layer.groups,
            layer.bias is not None,
            hidden=hidden,
            bayes=bayes,
            log_col=log_col,
            generator=generator,
        )
        return cast(Self, made._take_over(layer, {"weight": "weight", "bias": "bias"}))

    @full_precision
    def forward(self, x: Tensor) -> Tensor:
        """Channels (rows, out, ...) of x (rows, in, ...), or (out, ...) of a single x (in, ...)."""
        if x.ndim == self.axes + 1:
            return self.forward(x.unsqueeze(0)).squeeze(0)
        if x.ndim != self.axes + 2 or x.shape[1] != self.in_channels:
            raise ValueError(
                f"x is {tuple(x.shape)}: give rows, {self.in_channels} channels, {self.axes} axes"
            )
        draws = current_draws(self)
        rows = x.shape[0]
        context = append_ones(x.flatten(2).mean(2))  # (rows, in + 1)
        heads = self.split_heads(self.heads(context, self.psi(draws, rows)))
        offset = None if self.bias is None else heads.scale[:, -1:] * self.bias  # (rows, out)
        if draws is None:
            out = self._convolve(x * per_channel(heads.scale[:, :-1], x), self.weight)
            return out if offset is None else out + per_channel(offset, out)
        if self.adds_kl(draws):
            draws.add_kl(self.kl(heads).mean())
        row = (0.5 * heads.log_row).exp()  # standard deviations
        col = (0.5 * heads.log_col).exp() / math.sqrt(self.fan_in)
        if not draws.shared:
            signs = draws.row_signs(rows, (self.in_channels + 1 + self.out_channels,), x)
            a, b = signs.split([self.in_channels + 1, self.out_channels], -1)
            row, col = row * a, col * b
        noise = draws.noise((self.out_channels, self.fan_in), x)
        bias_noise = row[:, -1:] * noise[:, -1] * col
        offset = bias_noise if offset is None else offset + bias_noise
        for_mean, for_noise = two_scales(x, heads.scale[:, :-1], row[:, :-1])
        mean = self._convolve(for_mean, self.weight)
        return add_scaled(
            mean, self._convolve(for_noise, noise[:, :-1].reshape(self.weight.shape)), col, offset
        )

    def _convolve(self, x: Tensor, kernel: Tensor) -> Tensor:
        return type(self)._convolution(x, kernel, None, *self.options)

    def kl(self, heads: Heads) -> Tensor:  # (rows,)
        """The KL of each row's kernel and bias to their prior, MN(0, I / r, I) in each group."""
        scale, log_row = (self._by_group(v[:, :-1], v[:, -1:]) for v in heads[:2])
        bias = self.weight.new_zeros(self.out_channels) if self.bias is None else self.bias
        squares = self.weight.square().flatten(2).sum(2), bias.square().unsqueeze(1)
        norms = torch.cat(squares, 1).unflatten(0, (self.groups, -1)).sum(1)  # (groups, in / groups + 1)
        log_col = heads.log_col.unflatten(1, (self.groups, -1)).transpose(0, 1)
        variances = log_row.exp(), log_col.exp()
        return weights_kl(scale, log_row, log_col, *variances, norms, self.fan_in, self.count).sum(0)

    def _by_group(self, channels: Tensor, bias: Tensor) -> Tensor:  # (groups, rows, in / groups + 1)
        """Values of the input channels of each group, (rows, in), with that of the bias, (rows, 1)."""
        grouped = channels.unflatten(1, (self.groups, -1)).transpose(0, 1)
        return torch.cat([grouped, bias.expand(self.groups, -1, -1)], -1)

    def extra_repr(self) -> str:
        stride, padding, dilation, groups = self.options
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={stride},"
            f" padding={padding!r}, dilation={dilation}, groups={groups}, bayes={self.bayes}"
        )


class CompoundConv1d(_CompoundConv):
    """`nn.Conv1d` with a kernel drawn anew for every row, from a distribution that its input determines.

    Call it inside `with sampling(generator)`. Outside of it, in eval mode, it uses the mean of its kernel.

    Parameters
    ----------
    in_channels, out_channels : int
        Channels of input and output.
    kernel_size : int or tuple of int
        Size of the kernel.
    stride : int or tuple of int, default=1
        Step of the kernel.
    padding : int, tuple of int or str, default=0
        Zeros added on both sides, or "same" or "valid".
    dilation : int or tuple of int, default=1
        Distance between the positions of the kernel.
    groups : int, default=1
        Groups of channels that are convolved separately.
    bias : bool, default=True
        Whether there is a bias. Without one its mean is 0, while its noise stays.
    hidden : sequence of int, default=(50,)
        Hidden widths of the hypernetwork, which sees each channel's mean over positions.
    bayes : bool, default=False
        Maximum likelihood (False), or a variational posterior over the hypernetwork's weights (True).
    log_col : float, default=-6.0
        Log-variance of the weights at the start, relative to 1 / fan-in, and its prior mean.
    generator : torch.Generator, optional
        Source of the initial weights; by default torch's own, as for `nn.Conv1d`.

    Examples
    --------
    >>> import torch
    >>> from compound.nn import CompoundConv1d, sampling
    >>> layer = CompoundConv1d(2, 4, 3, padding=1)
    >>> with sampling(torch.Generator().manual_seed(0)) as draws:
    ...     y = layer(torch.ones(5, 2, 10))
    >>> y.shape
    torch.Size([5, 4, 10])
    """

    plain = (nn.Conv1d,)
    axes = 1
    _convolution = staticmethod(functional.conv1d)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        hidden: Sequence[int] = (50,),
        bayes: bool = False,
        log_col: float = LOG_COL,
        generator: Generator | None = None,
    ):
        window = kernel_size, stride, padding, dilation, groups, bias
        super().__init__(in_channels, out_channels, *window, hidden, bayes, log_col, generator)


class CompoundConv2d(_CompoundConv):
    """`nn.Conv2d` with a kernel drawn anew for every image, from a distribution that the image determines.

    Call it inside `with sampling(generator)`. Outside of it, in eval mode, it uses the mean of its kernel.

    Parameters
    ----------
    in_channels, out_channels : int
        Channels of input and output.
    kernel_size : int or tuple of int
        Size of the kernel.
    stride : int or tuple of int, default=1
        Step of the kernel.
    padding : int, tuple of int or str, default=0
        Zeros added on all sides, or "same" or "valid".
    dilation : int or tuple of int, default=1
        Distance between the positions of the kernel.
    groups : int, default=1
        Groups of channels that are convolved separately.
    bias : bool, default=True
        Whether there is a bias. Without one its mean is 0, while its noise stays.
    hidden : sequence of int, default=(50,)
        Hidden widths of the hypernetwork, which sees each channel's mean over positions.
    bayes : bool, default=False
        Maximum likelihood (False), or a variational posterior over the hypernetwork's weights (True).
    log_col : float, default=-6.0
        Log-variance of the weights at the start, relative to 1 / fan-in, and its prior mean.
    generator : torch.Generator, optional
        Source of the initial weights; by default torch's own, as for `nn.Conv2d`.

    Examples
    --------
    >>> import torch
    >>> from compound.nn import CompoundConv2d, sampling
    >>> layer = CompoundConv2d(3, 8, 3, padding=1)
    >>> with sampling(torch.Generator().manual_seed(0)) as draws:
    ...     y = layer(torch.ones(5, 3, 9, 9))
    >>> y.shape
    torch.Size([5, 8, 9, 9])
    """

    plain = (nn.Conv2d,)
    axes = 2
    _convolution = staticmethod(functional.conv2d)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        hidden: Sequence[int] = (50,),
        bayes: bool = False,
        log_col: float = LOG_COL,
        generator: Generator | None = None,
    ):
        window = kernel_size, stride, padding, dilation, groups, bias
        super().__init__(in_channels, out_channels, *window, hidden, bayes, log_col, generator)
