"""The observation model of a compound density network for each task."""

from compound.models.observation.last_layer import (
    LastLayerCategorical,
    LastLayerGaussian,
    LastLayerModel,
)
from compound.models.observation.last_layer_family import INTEGRATED, LastLayerFamily, LastLayerOrdinal
from compound.types import Task


def last_layer_model(
    task: Task, members: int, last_layer: str, last_draws: int, noise: float
) -> LastLayerModel:
    """The observation model of a compound density network for a task.

    `last_layer` is "integrate" or "sample". `last_draws` (classes) is the number of draws of the logits per
    draw of the hidden units, `noise` (Gaussian targets) the standard deviation of y given f, 0 to learn it.
    """
    if last_layer not in ("integrate", "sample"):
        raise ValueError(f"last_layer is {last_layer!r}: use 'integrate' or 'sample'")
    if task.family is None:
        if task.kind == "regression":
            return LastLayerGaussian(task.size, members, noise, last_layer)  # type: ignore[arg-type]
        return LastLayerCategorical(task.size, last_layer, last_draws)  # type: ignore[arg-type]
    if noise:
        raise ValueError(f"noise is {noise}: it is an option of Gaussian targets, not of {task.family}")
    if last_layer == "integrate" and task.family not in INTEGRATED:
        raise ValueError(f"last_layer is 'integrate': {task.family} has no closed form, use 'sample'")
    if task.family == "ordinal":
        return LastLayerOrdinal(task.size, members, last_layer)
    return LastLayerFamily(task.family, task.size, members, last_layer)


def last_layer_outputs(task: Task) -> int:
    """Numbers that the last layer outputs per row."""
    if task.family is None or task.family == "poisson":
        return task.size
    return 1 if task.family == "ordinal" else 2 * task.size
