"""For every method: a model driven to the limit in which it is the plain network, and that network.

One function per method, named like it with _ for -; it returns (model, plain), or None where a task has no such limit.
"""

import torch

from compound.models import Method, Model, build
from compound.models.map import MAP
from compound.types import Task, fork


def network(task: Task, **options) -> MAP:
    """A plain network 3-8-out with random biases, in float64."""
    plain = build(Method("map", widths=(8,), **options), 3, task, 5).double()
    with torch.no_grad():
        for layer in plain.network.layers:
            layer.bias.copy_(torch.randn(layer.bias.shape, generator=fork(6), dtype=torch.float64))
    return plain


def absorbed(plain: MAP) -> list[torch.Tensor]:
    """Its weight matrices with the bias as last row, (in + 1, out)."""
    return [torch.cat([layer.weight[0], layer.bias[0]]).detach() for layer in plain.network.layers]


def map(task: Task) -> tuple[Model, MAP]:
    """No prior; a copy of the weights."""
    plain = network(task)
    model = build(Method("map", widths=(8,), precision=0.0), 3, task, 0).double()
    model.load_state_dict(plain.state_dict())
    return model, plain


def ml_cdn(task: Task) -> tuple[Model, MAP]:
    """Every row's scale at 1, both variances at their lower bound."""
    return _compound("ml-cdn", task)


def vb_cdn(task: Task) -> tuple[Model, MAP]:
    return _compound("vb-cdn", task)


def _compound(name: str, task: Task) -> tuple[Model, MAP]:
    plain = network(task)
    model = build(Method(name, widths=(8,), hyper=(4,), members=1, parametrization="paper", far=0.0), 3, task, 0).double()
    with torch.no_grad():
        for layer, weight in zip(model.layers, absorbed(plain), strict=True):
            layer.basis.copy_(weight.expand_as(layer.basis))
            for step in layer.hyper.maps:
                for parameter in step.parameters():
                    parameter.zero_()
                if hasattr(step, "log_row"):
                    step.log_row.fill_(-40.0)
            heads = getattr(layer.hyper.maps[-1], "weight" if name == "ml-cdn" else "mean")
            scales = layer.inputs + 1
            heads[..., -1, :scales] = 1.0
            heads[..., -1, scales:] = -layer.form.bound
        if task.kind == "targets":
            model.likelihood.log_noise.copy_(plain.head.log_noise)
    return model, plain
