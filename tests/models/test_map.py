"""The plain network against ridge and logistic regression."""

from dataclasses import replace

import pytest
import torch
from oracles import floored
from sklearn.linear_model import LogisticRegression
from torch.testing import assert_close

from compound.models import Method, build
from compound.random import named_generator
from compound.types import Task, make_dataset


def to_the_minimum(model, data) -> None:
    optimizer = torch.optim.LBFGS(
        model.parameters(),
        max_iter=500,
        tolerance_grad=1e-12,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def closure():
        optimizer.zero_grad()
        total = model.loss(data, named_generator(0)).total
        total.backward()
        return total

    for _ in range(5):
        optimizer.step(closure)


@pytest.mark.parametrize("delta", [0.3, 4.0])
def test_linear_model_is_ridge_regression(delta):
    g = named_generator(1)
    x, y = torch.randn(50, 4, generator=g).double(), torch.randn(50, 1, generator=g).double()
    model = build(Method("map", widths=(), precision=delta, noise=0.7), 4, Task("regression", 1)).double()
    to_the_minimum(model, make_dataset(x, y, model.task))
    wide = torch.cat([x, torch.ones(50, 1)], 1)
    ridge = torch.linalg.solve(wide.T @ wide + 0.49 * delta * torch.eye(5, dtype=torch.float64), wide.T @ y)
    (layer,) = model.network.layers
    assert_close(torch.cat([layer.weight[0], layer.bias[0]]), ridge, rtol=0, atol=1e-8)


def test_learnt_noise_is_the_residual_variance():
    g = named_generator(2)
    x, y = torch.randn(60, 2, generator=g).double(), torch.randn(60, 3, generator=g).double()
    model = floored(build(Method("map", widths=(), precision=0.0), 2, Task("regression", 3)).double())
    to_the_minimum(model, make_dataset(x, y, model.task))
    residual = y - model.network(x)[0]
    assert_close(model.likelihood.variance()[0], residual.square().mean(0), rtol=1e-6, atol=0)
    p = model.predict(x, named_generator(0), 1, 1)
    assert_close(p.variance[0], residual.square().mean(0).detach(), rtol=1e-6, atol=0)
    assert (p.epistemic == 0).all()


def test_one_layer_of_classes_is_logistic_regression():
    g = named_generator(3)
    x, y = torch.randn(80, 3, generator=g).double(), torch.randint(3, (80,), generator=g)
    model = build(Method("map", widths=(), precision=2.0), 3, Task("classification", 3)).double()
    to_the_minimum(model, make_dataset(x, y, model.task))
    wide = torch.cat([x, torch.ones(80, 1)], 1)
    theirs = LogisticRegression(C=0.5, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(wide, y)
    assert_close(
        model.predict(x, named_generator(0), 1, 1).probs,
        torch.from_numpy(theirs.predict_proba(wide)),
        rtol=0,
        atol=1e-6,
    )


def test_gradient_is_the_rows_mean_plus_the_prior():
    g = named_generator(4)
    x, y = torch.randn(7, 3, generator=g).double(), torch.randn(7, 2, generator=g).double()
    model = floored(build(Method("map", widths=(5,), precision=3.0), 3, Task("regression", 2)).double())
    data = make_dataset(x, y, model.task)
    model.loss(data, named_generator(0)).total.backward()
    rows = []
    for k in range(7):
        one = replace(data.take(torch.tensor([k])), size=7.0)
        bare = build(Method("map", widths=(5,), precision=0.0), 3, Task("regression", 2)).double()
        bare.load_state_dict(model.state_dict())
        bare.loss(one, named_generator(0)).total.backward()
        rows.append([p.grad for p in bare.network.parameters()])
    for p, each in zip(model.network.parameters(), zip(*rows, strict=True), strict=True):
        assert_close(p.grad, torch.stack(each).mean(0) + 3.0 / 7 * p.detach(), rtol=1e-10, atol=1e-12)


def test_shifted_logits_change_nothing():
    model = build(Method("map", widths=(5,)), 3, Task("classification", 4)).double()
    x, y = (
        torch.randn(9, 3, generator=named_generator(5)).double(),
        torch.randint(4, (9,), generator=named_generator(6)),
    )
    f = model.network(x)
    assert_close(model.likelihood.log_prob(f + 7.0, y), model.likelihood.log_prob(f, y))
    assert_close(model.likelihood.log_prob(f, y)[0], torch.log_softmax(f[0], -1)[torch.arange(9), y])


def test_row_noise_is_a_normal_with_its_own_variance():
    model = floored(build(Method("map", widths=(5,), variance="rows"), 3, Task("regression", 2)).double())
    x, y = (
        torch.randn(9, 3, generator=named_generator(7)).double(),
        torch.randn(9, 2, generator=named_generator(8)).double(),
    )
    mean, rho = model.network(x)[0].split(2, -1)
    normal = torch.distributions.Normal(mean, (torch.nn.functional.softplus(rho) + 1e-6).sqrt())
    assert_close(model.predict(x, named_generator(0), 1, 1).log_prob(y), normal.log_prob(y).sum(-1).detach())
    assert_close(
        -model.loss(make_dataset(x, y, model.task), named_generator(0)).nll,
        normal.log_prob(y).sum(-1).mean().detach(),
    )
