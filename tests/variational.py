"""Networks with Gaussian weights: slow, obvious versions, their bound in closed form, and shared checks."""

import math
from collections.abc import Callable

import torch
from oracles import LinearGaussian, floored, wide
from torch import Generator, Tensor, nn
from torch.distributions import Independent, MultivariateNormal, Normal, kl_divergence
from torch.testing import assert_close

from compound.models import Method, Model, build
from compound.random import named_generator
from compound.types import Task, make_dataset

ONE, TWO, CLASSES = Task("regression", 1), Task("regression", 2), Task("classification", 3)
N = 100_000  # draws of a network
BAD_OPTIONS = [
    ({"samples": 0}, "samples is 0"),
    ({"prior": 0.0}, "prior is 0"),
    ({"prior": -1.0}, "prior is -1"),
    ({"prior": "wide"}, "prior is 'wide'"),
    ({"noise": -1.0}, "noise is -1"),
]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=named_generator(seed, "numbers", *shape), dtype=torch.float64)


def model_of(method: Method, inputs: int, task: Task) -> Model:
    """In float64, away from the start, where all variances are equal and biases 0."""
    model = floored(build(method, inputs, task, 3).double())
    with torch.no_grad():
        for k, parameter in enumerate(model.stack.parameters()):
            parameter += 0.5 * numbers(*parameter.shape, seed=k)
    return model


def law(layer) -> Normal:
    """Of every weight, (in + 1, out)."""
    if hasattr(layer, "log_row"):
        return Normal(
            layer.mean.detach(), (layer.log_row.exp().T @ layer.log_col.exp().unsqueeze(0)).sqrt().detach()
        )
    return Normal(layer.mean.detach(), layer.log_std.exp().detach())


def kl(layer, prior: float) -> Tensor:
    """Of one layer, weight by weight."""
    return kl_divergence(law(layer), Normal(torch.zeros_like(layer.mean), prior**0.5)).sum()


def divergence(layer) -> Tensor:
    """The KL as the layer tells it, beside its draws."""
    rows, out = layer.mean.shape
    return layer.sample(numbers(2, rows - 1), numbers(1, 2, out))[1]


def outputs(model: Model, x: Tensor, n: int, generator: Generator) -> Tensor:  # (n, rows, out)
    """A network for every draw: whole weight matrices are drawn, and serve all rows."""
    h = x.expand(n, -1, -1)
    for k, layer in enumerate(model.layers):
        q = law(layer)
        weight = q.loc + q.scale * torch.randn(n, *q.loc.shape, generator=generator, dtype=torch.float64)
        h = wide(h if k == 0 else h.relu()) @ weight
    return h


def elbo(model: Model, x: Tensor, y: Tensor) -> Tensor:
    """Of a linear model with Gaussian noise, exactly."""
    (layer,) = model.layers
    mean, std = layer.moments(x)
    return model.likelihood.expected_log_prob(
        mean.unsqueeze(0), std.square().unsqueeze(0), y
    ).sum() - divergence(layer)


def maximise(model: Model, x: Tensor, y: Tensor) -> None:
    """A line search, then gradients alone: values of the bound determine the parameters only to 1e-7."""
    for search in ("strong_wolfe", None):
        optimizer = torch.optim.LBFGS(
            model.stack.parameters(),
            max_iter=300,
            tolerance_grad=1e-12,
            tolerance_change=0,
            line_search_fn=search,
        )

        def closure(optimizer: torch.optim.LBFGS = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = -elbo(model, x, y)
            loss.backward()
            return loss

        optimizer.step(closure)


def exact_posterior(model: Model, x: Tensor, y: Tensor, prior: float = 1.0) -> LinearGaussian:
    """With the model's own noise, which was rounded to float32."""
    return LinearGaussian(x, y, model.likelihood.variance()[0, 0].item(), prior)


def distance(model: Model, exact: LinearGaussian) -> Tensor:
    """KL of the posterior of a linear model to the exact one: evidence minus ELBO."""
    q = law(model.layers[0])
    columns = Independent(Normal(q.loc.T, q.scale.T), 1)
    mine = MultivariateNormal(columns.mean, torch.diag_embed(columns.variance))
    return kl_divergence(mine, MultivariateNormal(exact.mean.T, exact.covariance)).sum()


def orthogonal(rows: int, inputs: int) -> Tensor:
    """Inputs of different scales, orthogonal to each other and to the constant."""
    q = torch.linalg.qr(torch.cat([torch.ones(rows, 1, dtype=torch.float64), numbers(rows, inputs)], 1))[0]
    return rows**0.5 * q[:, 1:] * torch.linspace(0.5, 2.0, inputs, dtype=torch.float64)


class _Call(nn.Module):
    """A function of a module as a module, for `functional_call`."""

    def __init__(self, inner: nn.Module, function: Callable[..., object]):
        super().__init__()
        self.inner, self.function = inner, function

    def forward(self, *inputs: Tensor) -> object:
        return self.function(self.inner, *inputs)


def _check_gradients(inner: nn.Module, function: Callable[..., object], *inputs: Tensor) -> None:
    """Of function(inner, *inputs) w.r.t. the inputs and all parameters, against differences."""
    names, call = [f"inner.{name}" for name, _ in inner.named_parameters()], _Call(inner, function)

    def values(*given: Tensor) -> object:
        parameters = dict(zip(names, given[len(inputs) :], strict=True))
        return torch.func.functional_call(call, parameters, given[: len(inputs)])

    torch.autograd.gradcheck(values, (*inputs, *inner.parameters()))


def check_scaled_prior(model: Model) -> None:
    """Three inputs, five hidden units: variances 1/4 and 1/6."""
    x, y = numbers(7, 3), torch.zeros(7, dtype=torch.long)
    loss = model.loss(make_dataset(x, y, CLASSES), named_generator(0))
    assert_close(loss.kl, (kl(model.layers[0], 1 / 4) + kl(model.layers[1], 1 / 6)) / 7, rtol=1e-12, atol=0)
    assert_close(loss.total, (loss.nll + loss.kl).sum())


def check_prior_is_stationary(layer) -> None:
    """The KL and its gradient are 0."""
    value = divergence(layer)
    value.backward()
    assert value.abs() < 1e-12
    assert all(p.grad.abs().max() < 1e-12 for p in layer.parameters())


def check_moments(drawn: Tensor, mean: Tensor, std: Tensor) -> None:
    """Of many draws (n, rows, out), within standard errors."""
    n, variance = len(drawn), std.square()
    assert ((drawn.mean(0) - mean).abs() < 4 * std / math.sqrt(n)).all()
    assert ((drawn.var(0) - variance).abs() < 4 * variance * math.sqrt(2 / n)).all()


def check_draws_of_training(layer) -> None:
    """Mean plus deviation times noise, with the right gradients."""
    rows, out = layer.mean.shape
    h, noise = numbers(5, rows - 1).requires_grad_(), numbers(2, 5, out)
    mean, std = layer.moments(h)
    assert_close(layer.sample(h, noise.clone())[0], mean + std * noise)
    _check_gradients(layer, lambda layer, h: layer.sample(h, noise.clone()), h)


def check_gradient_of_loss(model: Model) -> None:
    """With frozen noise; rows weigh what they weigh."""
    y = torch.tensor([0, 2, 1, 1, 0]) if model.task.kind == "classification" else numbers(5, model.task.size)
    data = make_dataset(numbers(5, 3), y, model.task, weight=torch.tensor([1.0, 0.0, 1.0, 2.0, 1.0]))
    _check_gradients(model, lambda model: model.loss(data, [named_generator(5)]).total)


def check_prediction(model: Model) -> None:
    """The probabilities are those of drawn networks."""
    x = numbers(3, 3)
    probs = outputs(model, x, N, named_generator(1)).softmax(-1)
    error = probs.std(0) * math.sqrt(2 / N)  # both sides are averages of N draws
    assert ((model.predict(x, named_generator(2), N, 1).probs - probs.mean(0)).abs() < 4 * error).all()


def check_nll(model: Model) -> None:
    """The mean of log-likelihoods of drawn networks, row by row."""
    n = model.config.samples
    x, y = numbers(3, 3), torch.tensor([0, 1, 2])
    logs = outputs(model, x, n, named_generator(1)).log_softmax(-1)[:, range(3), y]  # (n, rows)
    for row in range(3):
        nll = model.loss(make_dataset(x, y, CLASSES, torch.eye(3)[row]), named_generator(2)).nll
        assert (nll + logs[:, row].mean()).abs() < 4 * logs[:, row].std() * math.sqrt(2 / n)


def check_gap_while_maximised(model: Model, prior: float = 1.0) -> LinearGaussian:
    """A linear model's bound lies below the evidence by the KL to the exact posterior, before and after."""
    x, y = numbers(30, 3) @ numbers(3, 3, seed=1), numbers(30, model.task.size)
    exact = exact_posterior(model, x, y, prior)
    for _ in range(2):
        gap = exact.log_evidence - elbo(model, x, y)
        assert gap > 1e-3
        assert_close(gap, distance(model, exact), rtol=1e-8, atol=1e-8)
        maximise(model, x, y)
    return exact


def check_shares(model: Model) -> None:
    """Of a linear model with noise 1/2: the noise, and the variance of the network."""
    x = numbers(3, 3)
    p = model.predict(x, named_generator(1), N // 5)
    variance = model.layers[0].moments(x)[1].square()
    assert len(p.means) == N
    assert_close(p.aleatoric, torch.full_like(variance, 0.25))
    assert ((p.epistemic - variance).abs() < 4 * variance * math.sqrt(2 / N)).all()


def check_start(name: str, std: float) -> None:
    """The means are the weights of the plain network."""
    model, plain = build(name, 784, CLASSES, 4), build("map", 784, CLASSES, 4)
    for layer, other in zip(model.layers, plain.network.layers, strict=True):
        assert_close(
            layer.mean.detach(), torch.cat([other.weight[0], other.bias[0]]).detach(), rtol=0, atol=0
        )
        assert_close(law(layer).stddev, torch.full_like(layer.mean, std).detach())


def check_float32(name: str) -> None:
    """Enough for a layer with 784 inputs."""
    model, double = build(name, 784, CLASSES), build(name, 784, CLASSES).double()
    x = torch.rand(20, 784, generator=named_generator(0))
    (layer, _), (exact_layer, _) = model.layers, double.layers
    noise = torch.randn(1, 20, 100, generator=named_generator(1))
    ours, exact = layer.sample(x, noise.clone()), exact_layer.sample(x.double(), noise.double())
    for value, correct in zip(
        [*layer.moments(x), *ours], [*exact_layer.moments(x.double()), *exact], strict=True
    ):
        assert ((value - correct).abs() <= 1e-5 * correct.abs().max()).all()
