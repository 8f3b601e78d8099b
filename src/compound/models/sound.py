"""Whether an answer is one: numbers that are numbers, variances and shares that are not negative, probabilities that sum to 1."""

import torch
from torch import Tensor

from compound.models.base import Model
from compound.ops.clamp import LIMIT
from compound.predictive import CategoricalPredictive, GaussianPredictive, Predictive
from compound.random import named_generator

SLACK = 1e-3  # of a sum of probabilities: that of a thousand classes in float32 is off by 1e-4


def flaw(answer: Predictive) -> str | None:
    """What is wrong with an answer; None for a sound one."""
    for name, value in vars(answer).items():
        if isinstance(value, Tensor) and not bool(
            (value < torch.inf).all() if name == "log_weights" else torch.isfinite(value).all()
        ):
            return f"{name} holds NaN or infinity"  # a weight of 0 has the log -inf
    if isinstance(answer, GaussianPredictive) and bool((answer.variances < 0).any()):
        return "a variance is negative"
    if not isinstance(answer, CategoricalPredictive):
        return None
    odd = (answer.probs < 0).any() | ((answer.probs.sum(-1) - 1).abs() > SLACK).any()
    return "probabilities are negative or do not sum to 1" if bool(odd) else None


def probe(inputs: int, like: Tensor) -> Tensor:  # (7, inputs)
    """Rows to try a model on: at the centre, ordinary ones, and as far away as inputs go."""
    turns = torch.where(torch.arange(inputs) % 2 == 0, 1.0, -1.0)
    ones = torch.ones_like(turns)
    return torch.stack([0 * ones, ones, -ones, turns, -turns, LIMIT * ones, -LIMIT * turns]).to(like)


def trial(model: Model) -> str | None:
    """What is wrong with the model's answers to `probe`; None too where the model itself says that it has none yet."""
    try:
        return flaw(
            model.predict(
                probe(model.inputs, next(model.parameters()).detach()), 10, named_generator(0, "try")
            )
        )
    except ValueError:
        return None
    except (
        RuntimeError,
        LookupError,
        ArithmeticError,
    ) as error:  # sizes that do not go together, a matrix without a factor
        return str(error)
