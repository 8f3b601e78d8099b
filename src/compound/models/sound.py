"""Whether a predictive is valid: finite numbers, variances >= 0, probabilities that sum to 1."""

import torch
from torch import Tensor

from compound.models.base import Model
from compound.nn.networks import LIMIT
from compound.predictive import CategoricalPredictive, GaussianPredictive, Predictive
from compound.random import named_generator

SLACK = 1e-3  # of a sum of probabilities: that of a thousand classes in float32 is off by 1e-4


def flaw(predictive: Predictive) -> str | None:
    """What is wrong with a predictive; None for a valid one."""
    for name, value in vars(predictive).items():
        if isinstance(value, Tensor) and not bool(
            (value < torch.inf).all() if name == "log_weights" else torch.isfinite(value).all()
        ):
            return f"{name} holds NaN or infinity"  # a weight of 0 has the log -inf
    if isinstance(predictive, GaussianPredictive) and bool((predictive.variances < 0).any()):
        return "a variance is negative"
    if not isinstance(predictive, CategoricalPredictive):
        return None
    invalid = (predictive.probs < 0).any() | ((predictive.probs.sum(-1) - 1).abs() > SLACK).any()
    return "probabilities are negative or do not sum to 1" if bool(invalid) else None


def probe(inputs: int, like: Tensor) -> Tensor:  # (7, inputs)
    """Rows to test a model on: at the centre, in the range of the data, and at the bounds of inputs."""
    signs = torch.where(torch.arange(inputs) % 2 == 0, 1.0, -1.0)
    ones = torch.ones_like(signs)
    return torch.stack([0 * ones, ones, -ones, signs, -signs, LIMIT * ones, -LIMIT * signs]).to(like)


def trial(model: Model) -> str | None:
    """What is wrong with the model's predictive of `probe`; None also for a model that refuses to predict yet."""
    x = probe(model.inputs, next(model.parameters()).detach())
    try:
        return flaw(model.predict(x, named_generator(0, "try"), 2))
    except ValueError:
        return None
    except (RuntimeError, LookupError, ArithmeticError) as error:  # sizes that do not fit, a singular matrix
        return str(error)
