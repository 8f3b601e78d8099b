"""Checks that a predictive is valid: finite, variances not negative, probabilities that sum to 1."""

import torch
from torch import Tensor

from compound.models.base import Model
from compound.ops.clamp import LIMIT
from compound.predictive import CategoricalPredictive, FamilyPredictive, GaussianPredictive, Predictive
from compound.random import named_generator

TOLERANCE = 1e-3  # of a sum of probabilities: in float32 that of a thousand classes is off by 1e-4


def predictive_defect(predictive: Predictive) -> str | None:
    """What is wrong with a predictive; None for a valid one."""
    for name, value in vars(predictive).items():
        if not isinstance(value, Tensor):
            continue
        allowed = value < torch.inf if name == "log_weights" else torch.isfinite(value)  # log 0 = -inf
        if not bool(allowed.all()):
            return f"{name} holds NaN or infinity"
    if isinstance(predictive, GaussianPredictive) and bool((predictive.variances < 0).any()):
        return "a variance is negative"
    if isinstance(predictive, FamilyPredictive) and bool((predictive.params[..., 1:] < 0).any()):
        return "a scale, shape or dispersion is negative"
    if not isinstance(predictive, CategoricalPredictive):
        return None
    probs = predictive.probs  # (rows, classes)
    invalid = (probs < 0).any() | ((probs.sum(-1) - 1).abs() > TOLERANCE).any()
    return "probabilities are negative or do not sum to 1" if bool(invalid) else None


def probe_inputs(inputs: int, like: Tensor) -> Tensor:  # (7, inputs)
    """Rows to try a model on: zeros, entries of ±1, and entries at the bounds ±LIMIT of all inputs."""
    signs = torch.where(torch.arange(inputs) % 2 == 0, 1.0, -1.0)
    ones = torch.ones_like(signs)
    return torch.stack([0 * ones, ones, -ones, signs, -signs, LIMIT * ones, -LIMIT * signs]).to(like)


def model_defect(model: Model) -> str | None:
    """What is wrong with the model's predictive of `probe_inputs`; None if it is valid.

    Also None if the model raises ValueError, as a model does that is not fitted yet.
    """
    x = probe_inputs(model.inputs, next(model.parameters()).detach())
    try:
        return predictive_defect(model.predict(x, named_generator(0, "try"), 2))
    except ValueError:
        return None
    except (RuntimeError, LookupError, ArithmeticError) as error:  # inconsistent sizes, a singular matrix
        return str(error)
