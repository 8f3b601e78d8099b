"""Predictions of a fitted estimator, in blocks of one fixed size.

The rounding of products, sums and powers depends on the shapes of tensors. So every block is padded to the
same number of rows, and padding is removed only from final results. The prediction of a row then does not
depend on the other rows, to the last bit (on one machine). Memory does not grow with the table.

Blocks are computed side by side, each on one thread (`parallel`): so the number of threads changes no bit.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from compound.estimators.encoder_columns import SURE
from compound.estimators.parallel import parallel_map
from compound.models import Model
from compound.models.sanity import predictive_defect
from compound.ood import CombinedDetector
from compound.predictive import Predictive, TargetPredictive
from compound.random import named_generator

BLOCK = 512  # rows predicted together
TABLE_BLOCK = 2048  # by models with stratified draws, whose compiled loops leave padding out
N_SAMPLES = {"regression": (40, 5), "classification": (20, 5)}  # `n_samples`, `n_inner` of `Model.predict`
# Errors of mean, std and 90% interval are about 2% of a row's std or less, see results/speed-tables.md
N_STRATIFIED = {"regression": (20, 4), "classification": (20, 2)}

P = TypeVar("P", bound=Predictive)
T = TypeVar("T")


class FittedEstimator(Protocol):
    """What prediction reads from an estimator."""

    model_: Model
    seed_: int


def block_rows(model: Model) -> int:
    """Rows that are predicted together."""
    return TABLE_BLOCK if model.stratified else BLOCK


def padded_blocks(x: Tensor, size: int = BLOCK) -> Iterator[tuple[Tensor, int]]:
    """Blocks (size, width) of the rows of x (rows, width), each with its number of rows of x.

    Only the last block is padded, by copies of its last row.
    """
    for block in x.split(size) if len(x) else ():
        yield torch.cat([block, block[-1:].expand(size - len(block), -1)]), len(block)


def n_draws(model: Model) -> tuple[int, int]:
    """`n_samples` and `n_inner` of `Model.predict`, as the estimators call it."""
    return (N_STRATIFIED if model.stratified else N_SAMPLES)[model.task.kind]


def model_blocks(model: Model, x: Tensor, seed: int) -> Iterator[tuple[Predictive, int]]:
    """The model's predictive of each padded block, in standardised units, with its number of rows of x.

    Every block, at every call, uses the same random numbers.
    """
    blocks = padded_blocks(x, block_rows(model))
    return parallel_map(lambda block: (_predict_block(model, block[0], seed), block[1]), blocks)


def _predict_block(model: Model, block: Tensor, seed: int) -> Predictive:
    return model.predict(block, named_generator(seed, "ask"), *n_draws(model))


def predictives(model: Model, x: Tensor, seed: int) -> Iterator[Predictive]:
    """The predictives of `model_blocks` without padding.

    What is computed from the last one may differ in the last bit from what a whole block gives.
    """
    return (predictive[:rows] for predictive, rows in model_blocks(model, x, seed))


def postprocess(estimator: FittedEstimator, predictive: Predictive) -> Predictive:
    """A predictive of the model as the estimator gives it: in float64, in units of y or at `temperature_`."""
    fitted: Any = estimator
    exact = to_float64(predictive)
    if isinstance(exact, TargetPredictive):
        return exact.rescale(torch.from_numpy(fitted.shift_), torch.from_numpy(fitted.scale_))
    return fitted.temperature_(exact)


def check_valid(predictive: P) -> P:
    """Return the predictive itself; ValueError if it is invalid, e.g. not finite."""
    if defect := predictive_defect(predictive):
        raise ValueError(
            f"the model cannot predict ({defect}): its training diverged or its file is invalid, "
            "fit again with a smaller lr"
        )
    return predictive


def estimator_blocks(estimator: FittedEstimator, x: Tensor) -> Iterator[tuple[Predictive, int]]:
    """The estimator's predictive of each padded block of encoded rows x, with its number of rows of x.

    To be equal to the last bit, compute results for all rows of a block, and then drop those of the padding.
    """
    return map_blocks(estimator, x, lambda predictive, _, rows, __: (predictive, rows))


def map_blocks(
    estimator: FittedEstimator, x: Tensor, function: Callable[[Any, Tensor, int, int], T]
) -> Iterator[T]:
    """`function` of the estimator's predictive of each padded block of encoded rows x, in order.

    It is given the predictive, the block (size, width), its number of rows of x, and how many came before.
    """

    def compute(numbered: tuple[int, tuple[Tensor, int]]) -> T:
        number, (block, rows) = numbered
        predictive = _predict_block(estimator.model_, block, estimator.seed_)
        exact = check_valid(postprocess(estimator, predictive))
        return function(exact, block, rows, size * number)

    size = block_rows(estimator.model_)
    return parallel_map(compute, enumerate(padded_blocks(x, size)))


def map_rows(
    estimator: FittedEstimator, x: Tensor, function: Callable[[Any], Tensor]
) -> Tensor:  # (rows, ...)
    """`function` of the predictives of encoded rows x (rows, width), computed by blocks.

    `function` maps the predictive of a block to a tensor (rows of the block, ...).
    """
    return torch.cat(
        list(map_blocks(estimator, x, lambda predictive, _, rows, __: function(predictive)[:rows]))
    )


def epistemic(estimator: FittedEstimator, x: Tensor) -> Tensor:  # (rows,)
    """The epistemic uncertainty of encoded rows x (rows, width), of the first target."""
    return map_rows(estimator, x, lambda p: p.epistemic.reshape(len(p.component), -1)[:, 0])


def ood_scores(
    detector: CombinedDetector, x: Tensor, epistemic: Tensor, size: int = BLOCK
) -> Tensor:  # (rows,) float64
    """Out-of-distribution scores of encoded rows x (rows, width), by blocks of `size` rows.

    `epistemic` (rows,) is the epistemic part of their predictions.
    """
    parts = zip(padded_blocks(x, size), padded_blocks(epistemic.unsqueeze(-1), size), strict=True)

    def score(part: tuple[tuple[Tensor, int], tuple[Tensor, int]]) -> Tensor:
        (block, rows), (known, _) = part
        return score_block(detector, block, known[:, 0])[:rows]

    return torch.cat(list(parallel_map(score, parts)))


def score_block(detector: CombinedDetector, x: Tensor, epistemic: Tensor) -> Tensor:  # (rows,) float64
    """Out-of-distribution scores of one block; the last encoded number is the surprise."""
    return detector.scores(x, epistemic, x[:, -1] / SURE)


def to_float64(predictive: P) -> P:
    """The predictive in float64, since float32 would round a mean of 1,000,000.001 to 1,000,000."""
    return predictive.to(torch.float64)
