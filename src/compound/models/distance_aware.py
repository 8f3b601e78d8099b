"""Far noise for any method: `Method("map", far=3.0)` builds the method inside `DistanceAware`.

Far noise is fitted after training, which is unchanged.
"""

import torch
from torch import Generator, Tensor

from compound.models.base import Loss, Model, OptimizerSettings, train_mask
from compound.models.extrapolation import ExtrapolationGuard, FarClasses, FarDistance, calibration_rows
from compound.ood.distance import Distance
from compound.predictive import Predictive
from compound.random import Generators
from compound.types import Batch


class DistanceAware(Model):
    """Wraps the model of another method: bounds and far noise are applied to its predictive."""

    def __init__(
        self,
        inner: Model,
        far: float,
        far_classes: FarClasses = "uniform",
        far_distance: FarDistance = "inputs",
    ):
        super().__init__()
        self.inner = inner
        self.inputs = inner.inputs
        self.task = inner.task
        self.members = inner.members
        self.method = inner.method  # type: ignore[misc]
        self.needs_ood_rows = inner.needs_ood_rows  # type: ignore[misc]
        self.whole_batches = inner.whole_batches  # type: ignore[misc]
        self.rows_in_memory = inner.rows_in_memory  # type: ignore[misc]
        self.config = inner.config
        self.far = ExtrapolationGuard(inner.inputs, inner.task, far, far_classes, far_distance)

    def on_fit_start(self, data: Batch, generator: Generator) -> None:
        """Set the constants of the inner model and of far noise from the training rows."""
        self.inner.on_fit_start(data, generator)
        self.far.on_fit_start(data.y[train_mask(data)])

    def loss(self, batch: Batch, generator: Generators) -> Loss:
        return self.inner.loss(batch, generator)

    def nll(self, batch: Batch, n_samples: int, generator: Generator) -> Tensor:
        return self.inner.nll(batch, n_samples, generator)

    def optimizer(self, settings: OptimizerSettings) -> torch.optim.Optimizer:
        return self.inner.optimizer(settings)

    @torch.no_grad()
    def on_fit_end(self, data: Batch, generator: Generator) -> None:
        """Finish the inner model, then fit bounds and far noise on held-out rows (or any, if none are)."""
        self.inner.on_fit_end(data, generator)
        if data.weight is None:
            held_out = torch.zeros(1, len(data), dtype=torch.bool)
        else:
            held_out = data.weight.reshape(-1, len(data)) == 0
        rows = calibration_rows(data, held_out, generator)
        predictive = self.inner.predict(data.x[rows], generator)
        self.far.fit_limits(data, predictive)

        def log_densities(t: Tensor | None) -> Tensor:  # (1, rows)
            noisy = predictive if t is None else predictive.with_far_noise(t, self.far.far_params)
            return noisy.log_prob(data.y[rows]).unsqueeze(0)

        self.far.fit(data, rows, log_densities, generator)

    def predict_chunk(self, x: Tensor, n_samples: int, n_inner: int, generator: Generator) -> Predictive:
        return self.far(self.inner.predict_chunk(x, n_samples, n_inner, generator), x)  # type: ignore[no-any-return]

    def floats_per_row(self, n_samples: int, n_inner: int) -> int:
        return self.inner.floats_per_row(n_samples, n_inner)

    @property
    def distance(self) -> Distance | None:
        return self.far.noise.distance if self.far.fitted else None
