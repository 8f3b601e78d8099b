"""Questions to a fitted model, in blocks of one fixed size.

Products, sums over draws and powers of other shapes round differently. With every block padded to the same number of rows, and
cut only when its numbers are computed, a row's answer is the same to the last bit whichever rows are asked with it (on one machine,
with one number of threads); memory does not grow with the table.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar, cast

import torch
from torch import Tensor

from compound.models import Model
from compound.models.sound import flaw
from compound.predictive import CategoricalPredictive, GaussianPredictive, Predictive
from compound.random import named_generator

BLOCK = 128  # rows answered together
N_SAMPLES = {"regression": 40, "classification": 20}
N_INNER = 5

P = TypeVar("P", bound=Predictive)


def padded(x: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Blocks of BLOCK rows, and how many of each are rows of x: the last one is filled up with its last row."""
    for part in x.split(BLOCK) if len(x) else ():
        yield torch.cat([part, part[-1:].expand(BLOCK - len(part), -1)]), len(part)


def blocks(model: Model, x: Tensor, seed: int) -> Iterator[tuple[Predictive, int]]:
    """The predictive of every block, padding included, in standard units; the same numbers at every call."""
    for block, rows in padded(x):
        generator = named_generator(seed, "ask")
        yield model.predict(block, generator, N_SAMPLES[model.task.kind], N_INNER), rows


def answers(model: Model, x: Tensor, seed: int) -> Iterator[Predictive]:
    """The same without the padding: what is computed from them may differ in the last bit between other numbers of rows."""
    return (first(answer, rows) for answer, rows in blocks(model, x, seed))


def sound(answer: P) -> P:
    """The answer, if it is one."""
    if wrong := flaw(answer):
        raise ValueError(
            f"the model has no answer ({wrong}): training went astray or its file was made up, fit again with a smaller lr"
        )
    return answer


def first(answer: P, rows: int) -> P:
    """The first rows of an answer."""
    shares = {name: getattr(answer, name)[:rows] for name in ("component", "mixing", "posterior")}
    if isinstance(answer, CategoricalPredictive):
        return cast(P, replace(answer, **shares, probs=answer.probs[:rows]))
    assert isinstance(answer, GaussianPredictive)
    log_weights = None if answer.log_weights is None else answer.log_weights[:, :rows]
    cut = replace(
        answer,
        **shares,
        means=answer.means[:, :rows],
        variances=answer.variances[:, :rows],
        log_weights=log_weights,
    )
    return cast(P, cut)


def to_float64(answer: P) -> P:
    """The same answer in float64: a mean of a million plus a thousandth keeps its thousandth."""
    numbers = {name: value.double() for name, value in vars(answer).items() if isinstance(value, Tensor)}
    return replace(answer, **numbers)
