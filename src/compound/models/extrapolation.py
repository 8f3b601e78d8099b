"""A model's predictive away from its training rows: bounded (`limits`), then with far noise (`compound.ood`).

Classes: the predictive is mixed with fixed probabilities, uniform or the class frequencies of the training
rows, whose weight has the log-odds t(x). Targets: the variance far_std² exp(t(x)), t <= 0, is added to every
Gaussian; far_std is `strength` standard deviations of the target. Targets of another family are mixed, as
classes are, with a wide member of their family. The uncertainty that is added counts as epistemic.

Both are fitted after training and leave the network as it is. t is a function of the distance from the
training rows, a ramp: the steepest whose cost in log-density on calibration rows is negligible.
"""

from collections.abc import Callable
from typing import Any, Literal, cast, get_args

import torch
from torch import Generator, Tensor, nn

from compound.families import FAMILIES
from compound.models.base import train_mask
from compound.models.family_limits import FamilyLimits
from compound.models.limits import Limits
from compound.models.observation.family import far_params
from compound.ood.noise import DistanceAwareNoise
from compound.ood.normalized import NormalizedDistance
from compound.ood.ramp import BUDGET, GRIDS, choose_ramp
from compound.ops.clamp import clamp_inputs
from compound.predictive import Predictive
from compound.types import Batch, Task

FarClasses = Literal["uniform", "frequencies"]
FAR_CLASSES: tuple[FarClasses, ...] = get_args(FarClasses)
FarDistance = Literal["inputs", "directions"]
FAR_DISTANCES: tuple[FarDistance, ...] = get_args(FarDistance)
FREQUENCIES_BUDGET = 0.0003  # nats that far noise may cost where it leads to class frequencies
MAX_CALIBRATION_ROWS = 2000  # rows that the ramp is chosen on
MAX_QUANTILES = 10  # further distances at which each of these rows is evaluated


class ExtrapolationGuard(nn.Module):
    """Bounds and far noise of one model; with `strength` 0 there are only bounds.

    Distances are between inputs, or between their directions where inputs are features of a network.
    """

    far_params: Tensor  # far away: std (targets,), probabilities (classes,), or parameters of the family

    def __init__(
        self,
        inputs: int,
        task: Task,
        strength: float,
        far_classes: FarClasses = "uniform",
        far_distance: FarDistance = "inputs",
    ):
        super().__init__()
        if far_classes not in FAR_CLASSES:
            raise ValueError(f"far_classes is {far_classes!r}: use one of {', '.join(FAR_CLASSES)}")
        if far_distance not in FAR_DISTANCES:
            raise ValueError(f"far_distance is {far_distance!r}: use one of {', '.join(FAR_DISTANCES)}")
        if not strength >= 0:
            raise ValueError(f"far is {strength}: it may not be negative; 0 turns far noise off")
        self.inputs = inputs
        self.task = task
        self.strength = strength
        self.far_distance = far_distance
        self.noise = self.unfitted_noise()
        self.is_family = task.kind == "regression" and task.family is not None
        self.limits: nn.Module | None = None
        if task.kind == "regression":
            self.limits = FamilyLimits(task.family, task.size) if task.family else Limits(task.size)
        self.far_classes = far_classes
        self.budget = BUDGET if far_classes == "uniform" else FREQUENCIES_BUDGET
        initial = 1.0 if task.kind == "regression" else 1.0 / task.size
        entries = task.size
        if self.is_family:
            entries *= len(FAMILIES[cast(str, task.family)].parameters)
        self.register_buffer("far_params", torch.full((entries,), initial, dtype=torch.float32))

    @property
    def fitted(self) -> bool:
        """Whether far noise is fitted."""
        return self.noise.fitted

    def unfitted_noise(self) -> DistanceAwareNoise:
        """Far noise that is none yet."""
        distance = NormalizedDistance(self.inputs) if self.far_distance == "directions" else None
        return DistanceAwareNoise(self.inputs, distance)

    def on_fit_start(self, y: Tensor) -> None:
        """Set `far_params` from the training targets (rows, targets) or labels (rows,)."""
        if self.is_family:
            family, y = cast(str, self.task.family), y[:, : self.task.size]
            self.far_params.copy_(far_params(family, y, self.strength or 1.0).flatten())
        elif self.task.kind == "regression":
            std = y.double().std(0, correction=0)
            self.far_params.copy_(self.strength * torch.where(std > 0, std, 1.0))
        elif self.far_classes == "frequencies":
            counts = torch.bincount(y, minlength=self.task.size).double() + 1  # no class is impossible
            self.far_params.copy_(counts / counts.sum())

    def forward(self, predictive: Predictive, x: Tensor) -> Predictive:
        """The predictive of rows x (rows, inputs) with bounds and far noise."""
        predictive = self.bounded(predictive)
        if not self.fitted:
            return predictive
        return predictive.with_far_noise(self.noise(clamp_inputs(x)), self.far_params)

    def bounded(self, predictive: Predictive) -> Predictive:
        """The predictive with bounds (targets only), without far noise."""
        return predictive if self.limits is None else cast(Predictive, self.limits(predictive))

    def fit_limits(self, data: Batch, predictive: Predictive) -> None:
        """Fit the bounds from training targets and the model's unbounded predictive of calibration rows."""
        if self.limits is not None:
            cast(Limits | FamilyLimits, self.limits).fit(data.y[train_mask(data)], cast(Any, predictive))

    def fit(
        self,
        data: Batch,
        calibration: Tensor,
        log_densities: Callable[[Tensor | None], Tensor],
        generator: Generator,
    ) -> None:
        """Fit far noise: the distance from the training rows, then the ramp; nothing if `strength` is 0.

        `calibration` holds row numbers of `data`. `log_densities` maps t of these rows (None: no far noise)
        to log-densities (scores, rows), see `choose_ramp`.
        """
        if self.strength:
            distances = calibration_distances(self.noise, data, calibration, generator)
            grid = GRIDS["classification" if self.is_family else self.task.kind]  # log-odds, or log-variances
            choose_ramp(self.noise, grid, distances, log_densities, self.budget)


def calibration_rows(data: Batch, held_out: Tensor, generator: Generator) -> Tensor:  # (rows',)
    """Numbers of up to MAX_CALIBRATION_ROWS random rows that some member held out; of any rows if none did.

    `held_out` (members, rows) is True for the rows that a member held out.
    """
    by_any = held_out.any(0)
    order = torch.randperm(len(data), generator=generator)
    return (order[by_any[order]] if bool(by_any.any()) else order)[:MAX_CALIBRATION_ROWS]


def calibration_distances(
    noise: DistanceAwareNoise, data: Batch, calibration: Tensor, generator: Generator
) -> Tensor:  # (1 + quantiles, rows')
    """Fit the distance of `noise`; return the distances at which to evaluate each calibration row.

    First come the rows' own distances. A few calibration rows may all be near by chance, and then noise on
    farther rows would seem to cost nothing. So each calibration row also stands for the rows of its rank: the
    farthest of 45 for the farthest 1/45 of all rows, by up to MAX_QUANTILES quantiles of their distances.
    """
    trained_on = train_mask(data).nonzero().squeeze(-1)
    distances = torch.full((len(data),), torch.nan, dtype=data.x.dtype)
    distances[trained_on] = noise.fit(clamp_inputs(data.x[trained_on]), generator)
    new = calibration[distances[calibration].isnan()]  # rows that no member trained on
    distances[new] = noise.distance(clamp_inputs(data.x[new]))
    actual = distances[calibration]
    measured = distances[~distances.isnan()]
    count = len(calibration)
    quantiles = min(MAX_QUANTILES, MAX_CALIBRATION_ROWS // count, len(measured) // count)
    if quantiles < 2:
        return actual.unsqueeze(0)
    levels = torch.arange(0.5, quantiles * count) / (quantiles * count)
    represented = torch.quantile(measured.double(), levels.double()).to(measured.dtype)
    by_rank = represented.reshape(-1, quantiles)  # (rows', quantiles)
    return torch.cat([actual.unsqueeze(0), by_rank[actual.argsort(stable=True).argsort()].T])
