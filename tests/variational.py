"""Slow, obvious versions of what networks with Gaussian weights do, and their bound in closed form."""

import torch
from oracles import LinearGaussian, wide
from torch import Generator, Tensor
from torch.distributions import Independent, MultivariateNormal, Normal, kl_divergence

from compound.models import Method, Model, build
from compound.types import Task, fork


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=fork(seed, "numbers", *shape), dtype=torch.float64)


def model_of(method: Method, inputs: int, task: Task) -> Model:
    """In float64, away from the start, where all variances are equal and biases 0."""
    model = build(method, inputs, task, 3).double()
    with torch.no_grad():
        for k, parameter in enumerate(model.stack.parameters()):
            parameter += 0.5 * numbers(*parameter.shape, seed=k)
    return model


def law(layer) -> Normal:
    """Of every weight, (in + 1, out)."""
    if hasattr(layer, "log_row"):
        return Normal(layer.mean.detach(), (layer.log_row.exp().T @ layer.log_col.exp().unsqueeze(0)).sqrt().detach())
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
    return model.head.expected_log_prob(mean.unsqueeze(0), std.square().unsqueeze(0), y).sum() - divergence(layer)


def maximise(model: Model, x: Tensor, y: Tensor) -> None:
    """With a line search to the neighbourhood, then by gradients alone: values of the bound are good to 1e-7 in the parameters."""
    for search in ("strong_wolfe", None):
        optimizer = torch.optim.LBFGS(
            model.stack.parameters(), max_iter=300, tolerance_grad=1e-12, tolerance_change=0, line_search_fn=search
        )

        def closure(optimizer: torch.optim.LBFGS = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = -elbo(model, x, y)
            loss.backward()
            return loss

        optimizer.step(closure)


def exact_posterior(model: Model, x: Tensor, y: Tensor, prior: float = 1.0) -> LinearGaussian:
    """With the model's own noise, which was rounded to float32."""
    return LinearGaussian(x, y, model.head.variance()[0, 0].item(), prior)


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
