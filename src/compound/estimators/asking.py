"""Questions to a fitted model, in blocks of one fixed size.

Products of other shapes round differently. With every block padded to the same number of rows, a row's answer depends on the
rows asked with it by no more than rounding (float64, in sums over draws), and memory does not grow with the table.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar, cast

import torch
from torch import Tensor

from compound.models import Model
from compound.predictive import CategoricalPredictive, GaussianPredictive, Predictive
from compound.types import fork

BLOCK = 128  # rows answered together
DRAWS = {"targets": 200, "classes": 100}

P = TypeVar("P", bound=Predictive)


def answers(model: Model, x: Tensor, seed: int) -> Iterator[Predictive]:
    """The predictive of every block of rows, in standard units; the same numbers at every call."""
    for part in x.split(BLOCK) if len(x) else ():
        padded = torch.cat([part, part[-1:].expand(BLOCK - len(part), -1)])
        answer = model.predict(padded, DRAWS[model.task.kind], fork(seed, "ask"))
        yield first(answer, len(part))


def first(answer: P, rows: int) -> P:
    """The first rows of an answer."""
    shares = {name: getattr(answer, name)[:rows] for name in ("component", "mixing", "posterior")}
    if isinstance(answer, CategoricalPredictive):
        return cast(P, replace(answer, **shares, probs=answer.probs[:rows]))
    assert isinstance(answer, GaussianPredictive)
    log_weights = None if answer.log_weights is None else answer.log_weights[:, :rows]
    cut = replace(answer, **shares, means=answer.means[:, :rows], variances=answer.variances[:, :rows], log_weights=log_weights)
    return cast(P, cut)


def precise(answer: P) -> P:
    """The same answer in float64: a mean of a million plus a thousandth keeps its thousandth."""
    numbers = {name: value.double() for name, value in vars(answer).items() if isinstance(value, Tensor)}
    return replace(answer, **numbers)
