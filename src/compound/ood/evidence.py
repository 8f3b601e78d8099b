"""One out-of-distribution score from several witnesses, each judged by what ordinary rows show.

    s(x) = max(0, -log10 p_1(x), max_j g(log10(w_j / p_j(x)))),    g(t) = t for t >= SIGNIFICANT, else 0
    p_j(x) = P(an ordinary row's witness j is at least x's)

The witnesses are the distance from the nearest training rows (`neighbours`, 1), the whitened distance from
their clusters (`distance`) and the epistemic part of the prediction. p_j is a conformal p-value: of n
ordinary rows the i-th smallest has p = (n + 1 - i) / (n + 1). It is interpolated between them, and beyond the
largest it falls as the square of the witness, the heaviest tail of finite variance: farther is always more.
The smallest of weighted p-values is Bonferroni's test: it asks for one witness that is sure, not for all.
Rows are ranked by their neighbours, which show groups of any shape: among ordinary rows the other witnesses
would only add noise to that ranking. They count where they are significant by themselves, one ordinary row
in hundreds. The threshold is a quantile of s over ordinary rows, so that all witnesses
together have one rate of false alarms.

A fourth witness needs no calibration. The surprise, which no training row has, is evidence by itself: new
values in a column, gaps where there were none, numbers beyond the range.
"""

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Generator, Tensor, nn

from compound.ood.detector import ENOUGH
from compound.ood.distance import Distance
from compound.ood.neighbours import leave_one_out, neighbour_distance, sample_rows
from compound.ops.jit import is_tracing
from compound.ops.nearest_rows import RowIndex

WEIGHTS = (1.0, 0.25, 0.03)  # w_j of neighbours, clusters and epistemic part, see results/ood-tables.md
SIGNIFICANT = 2.0  # least score that clusters and epistemic part may give
KNOTS = 256  # of the table of p-values of a witness
TAIL = 2.0  # p falls with this power of the witness beyond the largest of ordinary rows
INDEXED = 64  # rows of a sample whose search is worth an index
MAX_ROWS = 5000  # ordinary rows that p-values and threshold are learnt from
SURPRISE = 20.0  # score of a surprise of 1: beyond any threshold
SIZED_BY_DATA = ("sample", "values", "logs")


class CombinedDetector(nn.Module):
    """A score that joins witnesses, and its threshold.

    Parameters
    ----------
    distance : Distance
        The whitened distance, fitted to the training rows.
    threshold : float, default=inf
        Rows with a larger score are out of distribution.
    promised : bool, default=True
        Whether there were enough rows for the requested rate of false alarms.

    Examples
    --------
    >>> import torch
    >>> from compound import named_generator
    >>> from compound.ood import CombinedDetector, Distance
    >>> x = torch.randn(1000, 2, generator=named_generator(0, "x"))
    >>> distance = Distance(2)
    >>> distances = distance.fit(x, named_generator(0, "distance"))
    >>> none = lambda rows: torch.zeros(len(rows))
    >>> detector = CombinedDetector(distance)
    >>> detector = detector.fit(x, distances, none, 0.01, named_generator(0, "fit"))
    >>> far = torch.full((1, 2), 9.0)
    >>> bool(detector.scores(far, none(far), none(far)) > detector.threshold)
    True
    """

    sample: Tensor  # (sampled, features) training rows
    values: Tensor  # (witnesses, knots) ascending
    logs: Tensor  # (witnesses, knots) -log10 of the p-values there

    def __init__(self, distance: Distance, threshold: float = math.inf, promised: bool = True):
        super().__init__()
        self.__dict__["distance"] = distance  # not a submodule: the model may own it, and is saved with it
        self.threshold = threshold
        self.promised = promised
        self.register_buffer("sample", torch.zeros(0, distance.shift.shape[0], dtype=torch.float32))
        for name in SIZED_BY_DATA[1:]:
            self.register_buffer(name, torch.zeros(len(WEIGHTS), 0, dtype=torch.float64))

    def fit(
        self,
        x: Tensor,
        distances: Tensor,
        epistemic: Callable[[Tensor], Tensor],
        false_positive_rate: float,
        generator: Generator,
    ) -> Self:
        """Learn p-values and threshold from training rows.

        Parameters
        ----------
        x : Tensor of shape (rows, features)
            Training rows.
        distances : Tensor of shape (rows,)
            Their whitened distances as new rows would have them: cross-fitted.
        epistemic : callable
            Maps some rows (rows', features) to the epistemic part of their prediction (rows',).
        false_positive_rate : float
            Fraction of rows like these that are to be beyond the threshold.
        generator : Generator
            Chooses the rows.

        Returns
        -------
        Self
            The fitted detector.
        """
        chosen = sample_rows(x, generator)
        self.sample = x[chosen].clone()
        self.__dict__.pop("index", None)
        rows = chosen[:MAX_ROWS]
        near = leave_one_out(self.sample, len(rows), self.index)
        witnesses = _stack(near, distances[rows], epistemic(x[rows]))
        tables = [p_value_table(column) for column in witnesses.T]
        self.values, self.logs = (torch.stack(part).contiguous() for part in zip(*tables, strict=True))
        scores = self.combine(witnesses)
        # a new score is equally likely in each of the n + 1 gaps between n scores: method "weibull"
        quantile = float(np.quantile(scores.numpy(), 1 - false_positive_rate, method="weibull"))
        beyond = (len(scores) + 1) * false_positive_rate  # expected number of rows there
        self.threshold = quantile - math.log10(min(beyond, 1.0))
        self.promised = beyond >= ENOUGH
        return self

    @torch.no_grad()
    def scores(self, x: Tensor, epistemic: Tensor, surprise: Tensor) -> Tensor:  # (rows,) float64
        """Scores of rows x (rows, features).

        `epistemic` (rows,) is the epistemic part of their predictions. `surprise` (rows,) is 0 for ordinary
        rows, and 1 where a value was never seen.
        """
        combined = self.combine(_stack(self._near(x), self.distance(x), epistemic))
        return torch.maximum(combined, SURPRISE * surprise.double())

    def combine(self, witnesses: Tensor) -> Tensor:  # (rows,)
        """The score of witnesses (rows, witnesses), without surprise."""
        near, *others = (
            log_p_value(column.contiguous(), values, logs) + math.log10(weight)
            for column, values, logs, weight in zip(witnesses.T, self.values, self.logs, WEIGHTS, strict=True)
        )
        strongest = torch.stack(others).amax(0)
        return torch.maximum(near, torch.where(strongest >= SIGNIFICANT, strongest, 0.0)).clamp_min(0.0)

    @cached_property
    def index(self) -> RowIndex | None:
        """The index of the sample; it is not saved, and a trace cannot hold it."""
        return RowIndex.build(self.sample) if len(self.sample) >= INDEXED else None

    def _near(self, x: Tensor) -> Tensor:  # (rows,)
        return neighbour_distance(x, self.sample, None if is_tracing() else self.index)

    @property
    def distance(self) -> Distance:
        return self.__dict__["distance"]  # type: ignore[no-any-return]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Before loading, give the buffers of SIZED_BY_DATA the shapes of the saved ones."""
        for name in SIZED_BY_DATA:
            if prefix + name in state_dict:
                setattr(self, name, getattr(self, name).new_empty(state_dict[prefix + name].shape))
        self.__dict__.pop("index", None)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def p_value_table(ordinary: Tensor) -> tuple[Tensor, Tensor]:  # (knots,) each
    """Values at which -log10 p of a witness is tabulated, and these, from those of ordinary rows (rows,).

    Knots are equally spaced in log p; the largest values are all there. Of equal values, p is the largest.
    """
    ordered = ordinary.double().sort().values
    n = len(ordered)
    tails = torch.logspace(0, math.log10(n + 1), min(KNOTS, n), dtype=torch.float64)  # ranks from the top
    index = (n - tails.round().clamp(1, n).flip(0).long()).unique()
    index = torch.cat([index, index[-1:].expand(len(tails) - len(index))])
    values = ordered[index]
    first = torch.searchsorted(ordered, values)
    return values, -torch.log10((n - first).double() / (n + 1))


def log_p_value(witness: Tensor, values: Tensor, logs: Tensor) -> Tensor:  # (rows,)
    """-log10 p of a witness (rows,) by the table of `p_value_table`."""
    right = torch.searchsorted(values, witness, right=True).clamp(1, max(1, len(values) - 1))
    right = right.clamp_max(len(values) - 1)
    left = (right - 1).clamp_min(0)
    width = (values[right] - values[left]).clamp_min(torch.finfo(torch.float64).tiny)
    position = ((witness - values[left]) / width).clamp(0, 1)
    inside = torch.lerp(logs[left], logs[right], position)
    tiny = torch.finfo(torch.float64).tiny
    beyond = torch.log10(witness.clamp_min(tiny)) - torch.log10(values[-1].clamp_min(tiny))
    return inside + TAIL * beyond.clamp_min(0.0)


def _stack(*witnesses: Tensor) -> Tensor:  # (rows, witnesses) float64
    return torch.stack([witness.double() for witness in witnesses], -1)
