"""The observation model of classes: the outputs f are logits."""

import torch
from torch import Tensor
from torch.nn import functional

from compound.models.observation.base import ObservationModel
from compound.predictive import CategoricalPredictive
from compound.types import RowWeights


class Categorical(ObservationModel):
    """p(y | f) = softmax(f)_y."""

    def __init__(self, classes: int):
        super().__init__()
        self.outputs = classes

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        labels = y if f.ndim == 2 else y.expand(f.shape[:-1]).reshape(-1)
        logits = f.reshape(-1, self.outputs)
        return -functional.cross_entropy(logits, labels, reduction="none").view(f.shape[:-1])

    def nll(self, f: Tensor, y: Tensor, weight: Tensor | RowWeights | None) -> Tensor:
        # one call where possible: every small autograd operation costs as much as its arithmetic
        return functional.cross_entropy(f, y) if weight is None and f.ndim == 2 else super().nll(f, y, weight)

    def predictive(self, f: Tensor) -> CategoricalPredictive:
        return CategoricalPredictive.from_draws(torch.log_softmax(f.flatten(0, 1), -1), len(f))
