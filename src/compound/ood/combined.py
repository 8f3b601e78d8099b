"""Far noise and scores from several views of a row, such as a network's features and its inputs.

    t(x) = max_k t_k(x_k),    s(x) = sum_k g( (d_k(x_k) - d50_k) / (d99_k - d50_k) ),    g(u) = max(u, u / 10)

Each view has a distance of its own; d50 and d99 are quantiles of the distances of held-out rows, rows that
the network was not trained on: features of trained rows lie nearer to each other than those of new rows do.
Scores add up as in Fisher's test of several p-values, whose logarithms they are for exponential tails. A view
in which a row is more ordinary than the median one hardly counts: it must not hide what another view shows.
Each view has a ramp of its own, chosen in turn: a later view adds to the noise of those before it and takes
nothing away, so that a view in which outliers look ordinary does no harm.
"""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import leaky_relu

from compound.ood.distance import Distance
from compound.ood.noise import DistanceAwareNoise
from compound.ood.normalized import NormalizedDistance
from compound.ood.ramp import RampGrid, choose_ramp

ORDINARY = 0.1  # what counts of a score below that of the median row
LogDensities = Callable[[Tensor | None], Tensor]  # far noise t (rows,), or None -> log p(y) (scores, rows)


class CombinedNoise(nn.Module):
    """The far noise t(x) (rows,) of several views of the same rows.

    Parameters
    ----------
    features : sequence of int
        Columns of each view.
    normalized : sequence of bool
        Which views have a `NormalizedDistance`: features of a network. Others have a `Distance`.

    Examples
    --------
    >>> import torch
    >>> from compound import named_generator
    >>> from compound.ood import CombinedNoise
    >>> x = torch.randn(300, 2, generator=named_generator(0, "x"))
    >>> noise = CombinedNoise([1, 1], normalized=[False, False])
    >>> views = noise.fit([x[:200, :1], x[:200, 1:]], [x[200:, :1], x[200:, 1:]], named_generator(0, "fit"))
    >>> noise.scores(noise.distances([torch.zeros(1, 1), torch.full((1, 1), 9.0)])) > 1
    tensor([True])
    """

    def __init__(self, features: Sequence[int], normalized: Sequence[bool]):
        super().__init__()
        self.views = nn.ModuleList(
            DistanceAwareNoise(size, NormalizedDistance(size) if directions else Distance(size))
            for size, directions in zip(features, normalized, strict=True)
        )

    def _noises(self) -> list[DistanceAwareNoise]:
        return cast(list[DistanceAwareNoise], list(self.views))

    @property
    def fitted(self) -> bool:
        return all(noise.fitted for noise in self._noises())

    def fit(
        self, train: Sequence[Tensor], held_out: Sequence[Tensor], generator: Generator
    ) -> Tensor:  # (views, held-out rows)
        """Fit the distance of each view; returns the distances of the held-out rows.

        `train` and `held_out` hold the views of rows that the network was and was not trained on, each (rows,
        features of the view).
        """
        out = []
        for noise, seen, new in zip(self._noises(), train, held_out, strict=True):
            noise.distance.fit_without_quantiles(seen, generator)
            out.append(noise.distance(new))
            noise.distance.fit_quantiles(out[-1])
        return torch.stack(out)

    def choose_ramps(
        self, grid: RampGrid, distances: Tensor, log_densities: LogDensities, budgets: Sequence[float]
    ) -> None:
        """Set the ramp of each view in turn, given those before.

        Each is the steepest whose further cost on held-out rows, at distances (views, rows), is within the
        budget of the view.
        """
        before: Tensor | None = None
        for noise, distance, budget in zip(self._noises(), distances, budgets, strict=True):

            def with_view(t: Tensor | None, before: Tensor | None = before) -> Tensor:
                return log_densities(_larger(t, before))

            choose_ramp(noise, grid, distance.unsqueeze(0), with_view, budget)
            before = _larger(noise.from_distance(distance), before)

    def distances(self, views: Sequence[Tensor]) -> Tensor:  # (views, rows)
        return torch.stack([noise.distance(view) for noise, view in zip(self._noises(), views, strict=True)])

    def from_distance(self, distances: Tensor) -> Tensor:  # (rows,)
        """The far noise t of rows at distances (views, rows)."""
        parts = [noise.from_distance(d) for noise, d in zip(self._noises(), distances, strict=True)]
        return torch.stack(parts).amax(0)

    def scores(self, distances: Tensor) -> Tensor:  # (rows,)
        """Scores of rows at distances (views, rows); in each view 0 for the median row, 1 for one of 100."""
        d50, d99, _ = torch.stack([noise.distance.quantiles for noise in self._noises()], -1)  # (views,) each
        return leaky_relu((distances - d50.unsqueeze(1)) / (d99 - d50).unsqueeze(1), ORDINARY).sum(0)


def _larger(t: Tensor | None, other: Tensor | None) -> Tensor | None:
    """The larger of two noises (rows,), None where there is none."""
    if t is None or other is None:
        return other if t is None else t
    return torch.maximum(t, other)
