"""Distance between directions: of rows divided by their length, for features of a network.

    d(h) = distance of √F h / |h|    (h has F features)

What a network does not know often gives features of small length, which lie near the origin and so near
everything: a distance between lengths calls such rows ordinary. Directions do not have this flaw
(Mahalanobis++, Mueller and Hein 2025; deep nearest neighbours, Sun et al. 2022). √F keeps the units of the
features about 1.
"""

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from compound.ood.distance import Distance


class NormalizedDistance(nn.Module):
    """Distance of a row's direction from those of the training rows.

    Parameters
    ----------
    features : int
        Columns of x.

    Examples
    --------
    >>> import torch
    >>> from compound import named_generator
    >>> from compound.ood import NormalizedDistance
    >>> x = 1 + 0.1 * torch.randn(200, 3, generator=named_generator(0, "x"))
    >>> distance = NormalizedDistance(3)
    >>> largest = distance.fit(x, named_generator(0, "fit")).max()
    >>> distance(torch.tensor([[9.0, 9.0, 9.0], [0.1, -0.1, 0.1]])) > largest
    tensor([False,  True])
    """

    def __init__(self, features: int):
        super().__init__()
        self.distance = Distance(features)

    @property
    def fitted(self) -> bool:
        return self.distance.fitted

    @property
    def quantiles(self) -> Tensor:  # (3,)
        """Of the training rows' cross-fitted distances, see `Distance`."""
        return self.distance.quantiles

    @property
    def reach(self) -> Tensor:  # ()
        return self.distance.reach

    def forward(self, x: Tensor) -> Tensor:  # (rows,)
        """Distance of rows x (rows, features) from the training rows; ValueError before `fit`."""
        return self.distance(directions(x))  # type: ignore[no-any-return]

    def fit(self, x: Tensor, generator: Generator) -> Tensor:  # (rows,)
        """Learn the distance from training rows (rows, features); returns their cross-fitted distances."""
        return self.distance.fit(directions(x), generator)

    def fit_without_quantiles(self, x: Tensor, generator: Generator) -> None:
        """Learn the distance from training rows; `fit_quantiles` goes on with rows that took no part."""
        self.distance.fit_without_quantiles(directions(x), generator)

    def fit_quantiles(self, distances: Tensor) -> None:
        """Take the quantiles of distances (rows,), such as those of rows that no network was trained on."""
        self.distance.fit_quantiles(distances)


def directions(x: Tensor) -> Tensor:
    """Rows (rows, features) scaled to the length sqrt(features); rows of zeros stay."""
    return x.shape[1] ** 0.5 * functional.normalize(x, dim=1, eps=torch.finfo(x.dtype).tiny)
