"""Where the predictive of a trained network comes from: its outputs, a posterior, or a head."""

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from compound.models import Laplace, Method
from compound.network.features import Collected
from compound.network.head import Head
from compound.predictive import CategoricalPredictive, GaussianPredictive, Predictive
from compound.random import named_generator
from compound.types import Task, make_dataset

HEAD_EPOCHS = 30  # of a head that is trained on the features


class Source(Protocol):
    """Fitted to rows that the network was and was not trained on; maps features and outputs of rows."""

    def fit(self, train: Collected, held_out: Collected) -> None: ...

    def predict(self, features: Tensor, outputs: Tensor) -> Predictive: ...


class Outputs:
    """The network's outputs: softmax of logits, or a Gaussian whose variance held-out residuals give.

    The draws of a network with compound layers are draws from a posterior, or else from the mixing
    distribution alone.
    """

    def __init__(self, task: Task, has_posterior: bool = False):
        self.task = task
        self.has_posterior = has_posterior
        self.variance = torch.ones(task.size, dtype=torch.float32)

    def fit(self, train: Collected, held_out: Collected) -> None:
        if self.task.kind == "regression":
            w = held_out.weight.unsqueeze(1)
            draws = self._draws(held_out.outputs).flatten(0, 1)  # (draws, rows, targets)
            squares = (held_out.targets - draws.mean(0)).square() - draws.var(0, correction=0)
            residual = (w * squares).sum(0) / w.sum()  # what the draws do not explain
            least = 0.01 * (w * (held_out.targets - draws.mean(0)).square()).sum(0) / w.sum()
            self.variance = torch.maximum(residual, least)

    def _draws(self, outputs: Tensor) -> Tensor:  # (n_samples, n_inner, rows, outputs)
        if outputs.ndim == 2:
            return outputs[None, None]
        draws = outputs.transpose(0, 1)
        return draws.unsqueeze(1) if self.has_posterior else draws.unsqueeze(0)

    def predict(self, features: Tensor, outputs: Tensor) -> Predictive:
        draws = self._draws(outputs)
        if self.task.kind == "classification":
            return CategoricalPredictive.from_draws(torch.log_softmax(draws, -1))
        noise = self.variance.expand(1, 1, 1, -1)
        return GaussianPredictive.from_draws(draws, noise, torch.zeros_like(noise))


class LastLayerLaplace:
    """A Laplace posterior over the network's last layer, a linear map of the features."""

    def __init__(self, network: nn.Module, method: Method, features: int, task: Task, seed: int):
        options = {"widths": (), "subset": "last", **method.options}
        self.model: Any = Method("laplace", **{k: v for k, v in options.items() if k != "far"}).build(
            features, task, seed
        )
        if not isinstance(self.model, Laplace) or self.model.config.widths:
            raise ValueError("the Laplace posterior is that of the network's last layer: leave widths alone")
        self.network, self.seed = network, seed

    @torch.no_grad()
    def fit(self, train: Collected, held_out: Collected) -> None:
        layer = self._last_layer(train)
        data = make_dataset(train.features, train.targets, self.model.task, train.weight)
        self.model.on_fit_start(data, named_generator(self.seed, "start"))
        (last,) = self.model.base_model.network.layers
        last.weight.copy_(layer.weight.T[None])
        last.bias.zero_() if layer.bias is None else last.bias.copy_(layer.bias)
        if self.model.task.kind == "regression":
            residual = (held_out.targets - held_out.outputs).square().mean(0)
            self.model.base_model.likelihood.log_noise.copy_(0.5 * residual.clamp_min(1e-12).log())
        self.model.on_fit_end(data, named_generator(self.seed, "finish"))

    def _last_layer(self, rows: Collected) -> nn.Linear:
        size = rows.features.shape[1], rows.outputs.shape[1]
        for module in self.network.modules():
            if isinstance(module, nn.Linear) and (module.in_features, module.out_features) == size:
                weight, bias = (
                    None if p is None else p.detach().float().cpu() for p in (module.weight, module.bias)
                )
                outputs = nn.functional.linear(rows.features[:100], weight, bias)  # type: ignore[arg-type]
                if torch.allclose(outputs, rows.outputs[:100], rtol=1e-3, atol=1e-3):
                    return module
        raise ValueError(
            "no nn.Linear of the network maps these features to its outputs: name the last layer's inputs as "
            "features"
        )

    def predict(self, features: Tensor, outputs: Tensor) -> Predictive:
        return self.model.predict(features, named_generator(self.seed, "predict"))  # type: ignore[no-any-return]


class FeatureHead:
    """A head trained on the features."""

    def __init__(self, head: Head):
        self.head = head

    def fit(self, train: Collected, held_out: Collected) -> None:
        batches = list(
            zip(train.features.split(100), train.targets.split(100), train.weight.split(100), strict=True)
        )
        with torch.enable_grad():
            self.head.fit(nn.Identity(), batches, epochs=HEAD_EPOCHS, frozen=True)

    def predict(self, features: Tensor, outputs: Tensor) -> Predictive:
        return self.head.predict(features)
