"""The rows of a predictive: their number, a choice of them, their device; chunks of them joined."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor

from compound.predictive.sets import ConformalQuantile, OODScores

Rows = int | slice | Sequence[int] | Tensor


@dataclass(frozen=True)
class RowContainer:
    """A frozen dataclass of tensors over rows; `by_draw` names those with an axis of draws before the rows.

    Parameters
    ----------
    ood : OODScores, optional
        Out-of-distribution scores of the rows and their threshold, where whoever predicted knows them.
    conformal : callable, optional
        Maps a coverage to the conformal quantile that `sets` uses.
    """

    by_draw: ClassVar[frozenset[str]] = frozenset()
    ood: OODScores | None = field(default=None, kw_only=True, repr=False)
    conformal: ConformalQuantile | None = field(default=None, kw_only=True, repr=False, compare=False)

    def _tensors(self) -> dict[str, Tensor]:
        return {f.name: v for f in fields(self) if isinstance(v := getattr(self, f.name), Tensor)}

    def _map(self, change: Callable[[Tensor, int], Tensor]) -> Self:
        """The same with `change(tensor, axis of the rows)` in place of every tensor."""
        values: dict[str, Any] = {
            name: change(v, int(name in self.by_draw)) for name, v in self._tensors().items()
        }
        if self.ood is not None:
            values["ood"] = replace(self.ood, scores=change(self.ood.scores, 0))
        return replace(self, **values)

    def __len__(self) -> int:
        """The number of rows."""
        return len(next(v for name, v in self._tensors().items() if name not in self.by_draw))

    def __getitem__(self, rows: Rows) -> Self:
        """The predictive of one row (which stays an axis of length 1), or of some: slice, numbers or mask."""
        if isinstance(rows, int):
            if not -len(self) <= rows < len(self):
                raise IndexError(f"row {rows} of a predictive of {len(self)} rows")
            rows = slice(rows, rows + 1 or None)
        index = rows if isinstance(rows, slice) else torch.as_tensor(rows)
        return self._map(lambda v, axis: v[:, index] if axis else v[index])

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """The predictive on another device or in another dtype; arguments are those of `Tensor.to`."""
        return self._map(lambda v, axis: v.to(*args, **kwargs))

    @property
    def is_ood(self) -> Tensor:  # (rows,) bool
        """Which rows are out of distribution; ValueError if nothing judges that."""
        if self.ood is None:
            raise ValueError(
                "this predictive has no out-of-distribution scores: "
                "predict with compound.posthoc, a fitted Head or a model with a distance"
            )
        return self.ood.is_ood


def join_scores(parts: Sequence[RowContainer], joined: RowContainer) -> RowContainer:
    """`joined`, the predictive of all rows of the parts, with their scores and conformal quantile."""
    scores = None
    if all(part.ood is not None for part in parts):
        ood = cast(list[OODScores], [part.ood for part in parts])
        scores = replace(ood[0], scores=torch.cat([part.scores for part in ood]))
    return replace(joined, ood=scores, conformal=parts[0].conformal)
