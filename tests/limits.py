"""For every method: a model driven to the limit in which it is the plain network, and that network.

One function per method, named like it with _ for -; it returns (model, plain), or None where a task has no
such limit.
"""

import torch
from oracles import floored

from compound.models import Method, Model, build
from compound.models.map import MAP
from compound.random import named_generator
from compound.types import Task, make_dataset


def network(task: Task, **options) -> MAP:
    """A plain network 3-8-out with random biases, in float64."""
    plain = floored(build(Method("map", widths=(8,), **options), 3, task, 5).double())
    with torch.no_grad():
        for layer in plain.network.layers:
            layer.bias.copy_(torch.randn(layer.bias.shape, generator=named_generator(6), dtype=torch.float64))
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


def bnn_lv(task: Task) -> tuple[Model, MAP]:
    """Weights of z at 0, every weight's standard deviation at e^-40."""
    plain = network(task)
    model = build(Method("bnn-lv", widths=(8,)), 3, task, 0).double()
    with torch.no_grad():
        for layer, weight in zip(model.layers, absorbed(plain), strict=True):
            latents = len(layer.mean) - len(weight)  # rows of z stand before the bias
            layer.mean.copy_(
                torch.cat([weight[:-1], weight.new_zeros(latents, weight.shape[1]), weight[-1:]])
            )
            layer.rho.fill_(-80.0)
    model.likelihood.load_state_dict(plain.likelihood.state_dict())
    return model, plain


def bayes_hypernet(task: Task) -> tuple[Model, MAP]:
    """Scales are the norms of the columns of the network's weights, without noise."""
    plain = network(task)
    model = build(Method("bayes-hypernet", widths=(8,), flows=0, log_std=-40.0), 3, task, 0).double()
    model.network.load_state_dict(plain.network.state_dict())
    with torch.no_grad():
        model.mean.copy_(torch.cat([layer.weight[0].norm(dim=0) for layer in plain.network.layers]) - 1)
    model.likelihood.load_state_dict(plain.likelihood.state_dict())
    return model, plain


def implicit(task: Task) -> tuple[Model, MAP]:
    """The generator's last map is 0: all draws are its mean."""
    plain = network(task)
    model = build(Method("implicit", widths=(8,)), 3, task, 0).double()
    with torch.no_grad():
        for layer, weight in zip(model.layers, absorbed(plain), strict=True):
            layer.mean.copy_(weight)
            layer.heads.zero_()
    model.likelihood.load_state_dict(plain.likelihood.state_dict())
    return model, plain


def hypernet(task: Task) -> tuple[Model, MAP]:
    """Hypernetworks whose last map is 0: all scales are 1."""
    plain = network(task)
    model = build(Method("hypernet", widths=(8,)), 3, task, 0).double()
    with torch.no_grad():
        for layer, weight in zip(model.stack, absorbed(plain), strict=True):
            layer.basis.copy_(weight)
            layer.hyper.layers[-1].weight.zero_()
    model.likelihood.load_state_dict(plain.likelihood.state_dict())
    return model, plain


def pbp(task: Task) -> tuple[Model, MAP] | None:
    """Weights without variance, scaled by the root of their number; there are no classes."""
    if task.kind == "classification":
        return None
    plain = network(task)
    model = build(Method("pbp", widths=(8,)), 3, task, 0).double()
    with torch.no_grad():
        weights = [len(weight) ** 0.5 * weight for weight in absorbed(plain)]
        model.mean.copy_(torch.cat([weight.flatten() for weight in weights]))
        model.variance.fill_(1e-20)
        model.noise_gamma[:, 1] = (model.noise_gamma[:, 0] - 1) * plain.likelihood.variance()[0]
    return model, plain


def hmc(task: Task) -> tuple[Model, MAP]:
    """All draws of the one chain are the weights of the network."""
    plain = network(task)
    model = build(Method("hmc", widths=(8,), members=1, draws=3), 3, task, 0).double()
    model.samples.copy_(torch.cat([p.flatten(1) for p in plain.network.parameters()], 1))
    model.sampled.fill_(True)
    model.likelihood.load_state_dict(plain.likelihood.state_dict())
    return model, plain


def mdn(task: Task) -> tuple[Model, MAP]:
    """One component: the network with a variance for every row; the weight of that component is 1."""
    plain = network(task, variance="rows")
    model = build(Method("mdn", widths=(8,), components=1), 3, task, 0).double()
    (first, last), (plain_first, plain_last) = model.network.layers, plain.network.layers
    first.load_state_dict(plain_first.state_dict())
    with torch.no_grad():
        last.weight[..., 1:].copy_(plain_last.weight)
        last.bias[..., 1:].copy_(plain_last.bias)
    return model, plain


def temperature(task: Task) -> tuple[Model, MAP]:
    """No held-out rows: the temperature is 1."""
    plain = network(task)
    model = build(Method("temperature", widths=(8,)), 3, task, 0).double()
    model.base_model.load_state_dict(plain.state_dict())
    return model, plain


def mc_dropout(task: Task) -> tuple[Model, MAP]:
    """Nothing is dropped."""
    plain = network(task)
    model = build(Method("mc-dropout", widths=(8,), rate=0.0), 3, task, 0).double()
    model.load_state_dict(plain.state_dict())
    return model, plain


def vmg(task: Task) -> tuple[Model, MAP]:
    """Both factors at e^-40."""
    return _gaussian("vmg", task, log_variance=-40.0)


def bbb(task: Task) -> tuple[Model, MAP]:
    """Every weight's standard deviation at e^-20."""
    return _gaussian("bbb", task, log_std=-20.0)


def _gaussian(name: str, task: Task, **options) -> tuple[Model, MAP]:
    plain = network(task)
    model = build(Method(name, widths=(8,), **options), 3, task, 0).double()
    with torch.no_grad():
        for layer, weight in zip(model.layers, absorbed(plain), strict=True):
            layer.mean.copy_(weight)
    model.likelihood.load_state_dict(plain.likelihood.state_dict())
    return model, plain


def dpn(task: Task) -> tuple[Model, MAP]:
    """Classes: the mean of the Dirichlet is the softmax. Targets: the mean and the variance are sure."""
    plain = network(task)
    model = build(Method("dpn", widths=(8,)), 3, task, 0).double()
    (first, last), (plain_first, plain_last) = model.network.layers, plain.network.layers
    first.load_state_dict(plain_first.state_dict())
    if task.kind == "classification":
        last.load_state_dict(plain_last.state_dict())
        return model, plain
    size = task.size
    with torch.no_grad():
        last.weight.zero_()
        last.weight[..., :size] = plain_last.weight
        last.bias[..., :size] = plain_last.bias
        last.bias[0, :, size : 2 * size] = plain.likelihood.variance().log()
        last.bias[..., 2 * size :] = 1e6
    return model, plain


def vib(task: Task) -> tuple[Model, MAP]:
    """Codes that hardly vary: the hidden units themselves, read by the last layer."""
    plain = network(task)
    model = build(Method("vib", widths=(8,), latent=8), 3, task, 0).double()
    (first, last), (plain_first, plain_last) = model.encoder.layers, plain.network.layers
    first.load_state_dict(plain_first.state_dict())
    model.decoder.load_state_dict(plain_last.state_dict())
    with torch.no_grad():
        last.weight[0] = torch.cat([torch.eye(8), torch.zeros(8, 8)], 1)
        last.bias[..., 8:] = -10.0
        if task.kind == "regression":
            model.likelihood.log_noise.copy_(plain.likelihood.log_noise)
    return model, plain


def deep_ensemble(task: Task) -> tuple[Model, MAP]:
    """Every member the same network."""
    plain = network(task)
    model = build(Method("deep-ensemble", widths=(8,), members=3, variance="one"), 3, task, 0).double()
    with torch.no_grad():
        for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            mine.copy_(theirs.expand_as(mine))
    return model, plain


def laplace(task: Task) -> tuple[Model, MAP]:
    """A prior so narrow that no weight leaves its mode."""
    plain = network(task)
    model = build(Method("laplace", widths=(8,), precision=1e14, tune="none"), 3, task, 0).double()
    model.base_model.load_state_dict(plain.state_dict())
    x = torch.randn(20, 3, generator=named_generator(7), dtype=torch.float64)
    y = torch.arange(20) % task.size if task.kind == "classification" else x[:, : task.size]
    model.on_fit_end(make_dataset(x, y, task), named_generator(0))
    return model, plain


def noisy_kfac(task: Task) -> tuple[Model, MAP]:
    """λ towards 0: the posterior shrinks to its mean."""
    return _noisy("noisy-kfac", task)


def noisy_adam(task: Task) -> tuple[Model, MAP]:
    return _noisy("noisy-adam", task)


def _noisy(name: str, task: Task) -> tuple[Model, MAP]:
    plain = network(task)
    model = build(Method(name, widths=(8,), lam=1e-16), 3, task, 0).double()
    with torch.no_grad():
        for layer, weight in zip(model.layers, absorbed(plain), strict=True):
            layer.mean.copy_(weight)
        if task.kind == "regression":
            model.likelihood.log_noise.copy_(plain.likelihood.log_noise)
    model.refresh()
    return model, plain


def ml_cdn(task: Task) -> tuple[Model, MAP]:
    """Every row's scale at 1, both variances at their lower bound."""
    return _compound("ml-cdn", task)


def vb_cdn(task: Task) -> tuple[Model, MAP]:
    return _compound("vb-cdn", task)


def _compound(name: str, task: Task) -> tuple[Model, MAP]:
    plain = network(task)
    model = build(
        Method(name, widths=(8,), hyper=(4,), members=1, parametrization="paper", far=0.0), 3, task, 0
    ).double()
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
            heads[..., -1, scales:] = -layer.config.bound
        if task.kind == "regression":
            model.likelihood.log_noise.copy_(plain.likelihood.log_noise)
    return model, plain


def mnf(task: Task) -> tuple[Model, MAP]:
    """No flow: z is a Gaussian around 1 without spread, and so are the weights around their means."""
    plain = network(task)
    model = build(Method("mnf", widths=(8,), flows_q=0), 3, task, 0).double()
    with torch.no_grad():
        for layer, theirs in zip(model.layers, plain.network.layers, strict=True):
            layer.mean.copy_(theirs.weight[0])
            layer.bias[0] = theirs.bias[0, 0]
            layer.vectors[0] = 1.0  # the mean of z
            for logs in (layer.log_std, layer.bias[1], layer.vectors[1]):
                logs.fill_(-40.0)
        if task.kind == "regression":
            model.likelihood.log_noise.copy_(plain.likelihood.log_noise)
    return model, plain
