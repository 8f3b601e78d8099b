"""Operations that ONNX does not have, by those that it has: for `torch.export` programs that become ONNX."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from compound import compat

# Wichura (1988), algorithm AS 241: numerators and denominators for the middle, and for two parts of the tail
MIDDLE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457)
    + (13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608),
    (5226.495278852545925, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867)
    + (5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1.0),
)
TAIL = (
    (7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258)
    + (3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459)
    + (0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0),
)
FAR_TAIL = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386)
    + (0.026532189526576123093, 0.29656057182850489123, 1.7848265399172913358)
    + (5.4637849111641143699, 6.6579046435011037772),
    (2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5)
    + (7.868691311456132591e-4, 0.0148753612908506148525, 0.13692988092273580531)
    + (0.59983220655588793769, 1.0),
)


def ndtri(p: Tensor) -> Tensor:
    """The quantile of the standard normal at p in (0, 1); relative errors are about 1e-16 in float64."""
    q = p - 0.5
    middle = q * _ratio(MIDDLE, 0.180625 - q * q)
    r = (-torch.log(torch.minimum(p, 1 - p).clamp_min(torch.finfo(p.dtype).tiny))).sqrt()
    tail = torch.where(r <= 5, _ratio(TAIL, r - 1.6), _ratio(FAR_TAIL, r - 5.0))
    return torch.where(q.abs() <= 0.425, middle, torch.where(q < 0, -tail, tail))


def _ratio(coefficients: Sequence[Sequence[float]], x: Tensor) -> Tensor:
    """A ratio of two polynomials, whose coefficients begin with the highest power."""
    values = []
    for polynomial in coefficients:
        value = torch.zeros_like(x)
        for coefficient in polynomial:
            value = value * x + coefficient
        values.append(value)
    return values[0] / values[1]


def searchsorted(ordered: Tensor, values: Tensor, **options: Any) -> Tensor:
    """How many of `ordered` (..., n) are below each of `values` (..., m); with right=True, or equal to it."""
    left, right = ordered.unsqueeze(-2), values.unsqueeze(-1)
    is_right = options.get("right", False) or options.get("side") == "right"
    return ((left <= right) if is_right else (left < right)).sum(-1)


def repeat_interleave(repeats: Tensor, *, output_size: int) -> Tensor:
    """Each index k, `repeats[k]` times; `output_size` of them."""
    positions = torch.arange(output_size, device=repeats.device)
    return searchsorted(repeats.cumsum(0), positions, right=True)


DECOMPOSITIONS: dict[Any, Callable[..., Tensor]] = {
    compat.ndtri: ndtri,
    compat.searchsorted: searchsorted,
    compat.repeat_interleave: repeat_interleave,
}
