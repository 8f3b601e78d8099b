"""Predictions of a fitted estimator, in blocks of one fixed size.

Products, sums over draws and powers of other shapes round differently. Every block is padded to the same
number of rows, and its results are cut only after they are computed, so the prediction of a row does not
depend on the other rows, to the last bit (on one machine, with one number of threads). Memory does not grow
with the table.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor

from compound.models import Model
from compound.models.sanity import predictive_defect
from compound.ood.detector import OODDetector
from compound.predictive import CategoricalPredictive, GaussianPredictive, Predictive
from compound.random import named_generator

BLOCK = 128  # rows predicted together
N_SAMPLES = {"regression": 40, "classification": 20}
N_INNER = 5

P = TypeVar("P", bound=Predictive)


class FittedEstimator(Protocol):
    """What prediction reads from an estimator."""

    model_: Model
    seed_: int


def padded_blocks(x: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Blocks of BLOCK rows, and how many of them are rows of x: the last one is padded."""
    for block in x.split(BLOCK) if len(x) else ():
        yield torch.cat([block, block[-1:].expand(BLOCK - len(block), -1)]), len(block)


def model_blocks(model: Model, x: Tensor, seed: int) -> Iterator[tuple[Predictive, int]]:
    """The model's predictive of every padded block, in standardised units; the same at every call."""
    for block, rows in padded_blocks(x):
        generator = named_generator(seed, "ask")
        yield model.predict(block, generator, N_SAMPLES[model.task.kind], N_INNER), rows


def predictives(model: Model, x: Tensor, seed: int) -> Iterator[Predictive]:
    """The same without padding: results may depend on the number of rows in the last bit."""
    return (take_first(predictive, rows) for predictive, rows in model_blocks(model, x, seed))


def postprocess(estimator: FittedEstimator, predictive: Predictive) -> Predictive:
    """The predictive in float64, in the units of y or at the calibrated temperature."""
    fitted: Any = estimator
    exact = to_float64(predictive)
    if isinstance(exact, GaussianPredictive):
        return exact.rescale(torch.from_numpy(fitted.shift_), torch.from_numpy(fitted.scale_))
    return fitted.temperature_(exact)


def check_valid(predictive: P) -> P:
    """The predictive itself; ValueError for an invalid one."""
    if defect := predictive_defect(predictive):
        raise ValueError(
            f"the model cannot predict ({defect}): its training diverged or its file is invalid, "
            "fit again with a smaller lr"
        )
    return predictive


def estimator_blocks(estimator: FittedEstimator, x: Tensor) -> Iterator[tuple[Predictive, int]]:
    """The estimator's predictive of every padded block of encoded rows, and the number of rows of x in it.

    Cut results, not the predictive they are computed from.
    """
    for predictive, rows in model_blocks(estimator.model_, x, estimator.seed_):
        yield check_valid(postprocess(estimator, predictive)), rows


def map_rows(
    estimator: FittedEstimator, x: Tensor, function: Callable[[Any], Tensor]
) -> Tensor:  # (rows, ...)
    """A function of each row's predictive, computed by blocks of encoded rows."""
    return torch.cat([function(predictive)[:rows] for predictive, rows in estimator_blocks(estimator, x)])


def ood_scores(detector: OODDetector, x: Tensor) -> Tensor:  # (rows,) float64
    """Out-of-distribution scores of encoded rows, computed by blocks."""
    return torch.cat([detector.scores(block)[:rows] for block, rows in padded_blocks(x)]).double()


def take_first(predictive: P, rows: int) -> P:
    """The predictive of the first rows."""
    components = {name: getattr(predictive, name)[:rows] for name in ("component", "mixing", "posterior")}
    if isinstance(predictive, CategoricalPredictive):
        return cast(P, replace(predictive, **components, probs=predictive.probs[:rows]))
    assert isinstance(predictive, GaussianPredictive)
    log_weights = predictive.log_weights
    cut = replace(
        predictive,
        **components,
        means=predictive.means[:, :rows],
        variances=predictive.variances[:, :rows],
        log_weights=None if log_weights is None else log_weights[:, :rows],
    )
    return cast(P, cut)


def to_float64(predictive: P) -> P:
    """The predictive in float64: a mean of a million plus a thousandth keeps its thousandth."""
    tensors = {name: value.double() for name, value in vars(predictive).items() if isinstance(value, Tensor)}
    return replace(predictive, **tensors)
