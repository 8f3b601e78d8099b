"""Any method behind a piecewise-linear encoding of its inputs; it is trained on encoded rows."""

from dataclasses import replace

import torch
from torch import Generator, Tensor

from compound.models.base import Loss, Model, OptimizerSettings
from compound.nn import PiecewiseLinearEncoding
from compound.ops.clamp import clamp_inputs
from compound.predictive import Predictive
from compound.random import Generators
from compound.types import Batch


class Encoded(Model):
    """Wraps the model of another method: its inputs are the outputs of the encoding."""

    def __init__(self, inner: Model, encoding: PiecewiseLinearEncoding):
        super().__init__()
        self.inner = inner
        self.encoding = encoding
        self.inputs = encoding.inputs
        self.task = inner.task
        self.members = inner.members
        self.method = inner.method  # type: ignore[misc]
        self.components = inner.components  # type: ignore[misc]
        self.eval_inner = inner.eval_inner  # type: ignore[misc]
        self.needs_ood_rows = inner.needs_ood_rows  # type: ignore[misc]
        self.whole_batches = inner.whole_batches  # type: ignore[misc]
        self.rows_in_memory = inner.rows_in_memory  # type: ignore[misc]
        self.config = inner.config

    def on_fit_start(self, data: Batch, generator: Generator) -> None:
        self.inner.on_fit_start(self._encode(data), generator)

    def loss(self, batch: Batch, generator: Generators) -> Loss:
        return self.inner.loss(self._encode(batch), generator)

    def nll(self, batch: Batch, n_samples: int, generator: Generator) -> Tensor:
        return self.inner.nll(self._encode(batch), n_samples, generator)

    def on_fit_end(self, data: Batch, generator: Generator) -> None:
        self.inner.on_fit_end(self._encode(data), generator)

    def lr_multipliers(self) -> dict[str, float]:
        return self.inner.lr_multipliers()

    def optimizer(self, settings: OptimizerSettings) -> torch.optim.Optimizer:
        return self.inner.optimizer(settings)

    def predict_chunk(self, x: Tensor, n_samples: int, n_inner: int, generator: Generator) -> Predictive:
        return self.inner.predict_chunk(self.encoding(clamp_inputs(x)), n_samples, n_inner, generator)

    def floats_per_row(self, n_samples: int, n_inner: int) -> int:
        return self.inner.floats_per_row(n_samples, n_inner)

    def _encode(self, batch: Batch) -> Batch:
        """The batch with encoded inputs, those of out-of-distribution rows included."""
        x_ood = None if batch.x_ood is None else self.encoding(clamp_inputs(batch.x_ood))
        return replace(batch, x=self.encoding(clamp_inputs(batch.x)), x_ood=x_ood)
