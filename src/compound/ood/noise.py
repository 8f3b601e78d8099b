"""Far noise: predictive uncertainty that grows with the distance of a row from the training rows.

    t(x) = clamp( level + kappa (d(x) - d50) / (d99 - d50), -20, cap )

and beyond every training row exp(t) grows at least with the sixth power of the distance, up to MAX_RISE (or
the cap) at 2.9 d99: whatever ramp (level, kappa, cap) was chosen, a row three times farther away than d99
gets the full noise. Of few inputs neighbours are so near that this is a step at the edge of the data. For
targets the standard deviation exp(t / 2) then grows linearly from there to its largest value, at a distance
as large as the spread of the training rows, the reach; before the edge it is at most in proportion to d.

What t is depends on the task. Classes: the log-odds that the predictive is uniform. Targets: the log of an
added variance, in units of its largest value.
"""

from typing import cast

import torch
from torch import Generator, Tensor, nn

from compound.ood.distance import Distance
from compound.ood.normalized import NormalizedDistance

MAX_RISE = 8.0  # t that every row beyond 2.9 d99 gets, where the cap allows it


class DistanceAwareNoise(nn.Module):
    """The far noise t(x) (rows,) of rows x (rows, features); -inf, no noise, until fitted.

    Parameters
    ----------
    features : int
        Columns of x.
    distance : Distance or NormalizedDistance, optional
        By default a new `Distance`.

    Examples
    --------
    >>> import torch
    >>> from compound import named_generator
    >>> from compound.ood import DistanceAwareNoise
    >>> x = torch.randn(200, 2, generator=named_generator(0, "x"))
    >>> noise = DistanceAwareNoise(2)
    >>> distances = noise.fit(x, named_generator(0, "fit"))
    >>> noise.set_ramp(level=-6.0, kappa=6.0, cap=14.0)
    >>> noise(100 * torch.ones(1, 2))
    tensor([14.])
    """

    ramp: Tensor  # (3,) level, kappa, cap

    def __init__(self, features: int, distance: Distance | NormalizedDistance | None = None):
        super().__init__()
        self.distance = cast(Distance, Distance(features) if distance is None else distance)
        self.register_buffer("ramp", torch.tensor([-20.0, 0.0, -20.0], dtype=torch.float32))

    @property
    def fitted(self) -> bool:
        return self.distance.fitted

    def fit(self, x: Tensor, generator: Generator) -> Tensor:  # (rows,)
        """Fit the distance to training rows (rows, features); returns their cross-fitted distances.

        The ramp is reset to t = -20 everywhere, nearly no noise: `set_ramp` chooses another.
        """
        distances = self.distance.fit(x, generator)
        self.ramp = torch.tensor([-20.0, 0.0, -20.0], dtype=x.dtype)
        return distances

    def forward(self, x: Tensor) -> Tensor:  # (rows,)
        """The far noise t of rows x (rows, features)."""
        return self.from_distance(self.distance(x)) if self.fitted else x.new_full((len(x),), -torch.inf)

    def from_distance(self, distance: Tensor) -> Tensor:
        """The far noise t of rows at these distances, of the same shape."""
        d50, d99, edge = self.distance.quantiles.unbind()
        level, kappa, cap = self.ramp.unbind()
        rise = level + kappa * (distance - d50) / (d99 - d50)
        least = cap.clamp_max(MAX_RISE) + 6 * ((distance - edge) / (2.9 * d99 - edge)).clamp(1e-6, 1.0).log()
        steep = torch.maximum(rise, least)
        reach = self.distance.reach
        inside = torch.minimum(rise, level + kappa * (edge - d50) / (d99 - d50))  # t up to the edge
        share = (torch.maximum(distance, d50) / reach).clamp_max(edge / reach)
        std = torch.minimum((0.5 * inside).exp(), share)
        beyond = ((distance - edge) / (torch.maximum(2.9 * d99, reach) - edge)).clamp(0.0, 1.0)
        linear = 2 * torch.lerp(std, torch.ones_like(std), beyond).log()
        return torch.where((reach > 0) & (cap == 0), linear, steep).clamp_min(-20).minimum(cap)

    def set_ramp(self, level: float, kappa: float, cap: float) -> None:
        """Make t `level` at the median distance and `level + kappa` at the 99% quantile, at most `cap`."""
        self.ramp = self.ramp.new_tensor([level, kappa, cap])
