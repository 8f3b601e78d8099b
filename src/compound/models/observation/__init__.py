"""Observation models p(y | f): what the outputs f of a network mean, for classes and for targets.

An observation model gives log-densities of y and turns draws of f into a `Predictive`. Those in `last_layer`
are given a Gaussian distribution of f instead of f itself.
"""

from compound.models.observation.base import ObservationModel as ObservationModel
from compound.models.observation.categorical import Categorical as Categorical
from compound.models.observation.family import FamilyModel as FamilyModel
from compound.models.observation.gaussian import HeteroscedasticGaussian as HeteroscedasticGaussian
from compound.models.observation.gaussian import HomoscedasticGaussian as HomoscedasticGaussian
from compound.models.observation.noise_floor import noise_floor as noise_floor
from compound.models.observation.ordinal import Ordinal as Ordinal
from compound.types import Task


def observation_model(
    task: Task, members: int = 1, noise: float = 0.0, variance: str = "one"
) -> ObservationModel:
    """The observation model of a task: softmax for classes, a Gaussian for targets, or the task's family.

    With `variance="one"` the Gaussian has one variance for all rows: `noise` squared, or learnt for each of
    `members` networks if `noise` is 0. With `variance="rows"` the network outputs a variance for each row.
    """
    if noise < 0 or 0 < noise < 1e-6:  # a smaller variance is lost in the rounding of float32
        raise ValueError(f"noise is {noise}: give a standard deviation of at least 1e-6, or 0 to learn it")
    if variance not in ("one", "rows"):
        raise ValueError(f"variance is {variance!r}: use 'one' or 'rows'")
    if task.family is not None and noise:
        raise ValueError(f"noise is {noise}: it is an option of Gaussian targets, not of {task.family}")
    if task.family == "ordinal":
        return Ordinal(task.size, members)
    if task.family is not None:
        return FamilyModel(task.family, task.size, members)
    if task.kind == "classification":
        return Categorical(task.size)
    if variance == "rows":
        return HeteroscedasticGaussian(task.size)
    return HomoscedasticGaussian(task.size, members, noise)
