"""Gradients as if whole weight matrices had been drawn."""

import pytest
import torch
from torch.testing import assert_close

from compound.models import Method, build
from compound.nn import BatchedCompoundLinear, CompoundConfig, MatrixGaussianLinear
from compound.ops.weight_gradients import drawn_weights
from compound.random import named_generator
from compound.types import Task, make_dataset

REAL = torch.float64


def leaves(rows: int):
    """One row's h~, means and standard deviations, repeated: gradients of each copy are kept apart."""
    g = named_generator(0, "leaves")
    x, row = torch.randn(4, generator=g, dtype=REAL), 0.3 + torch.rand(4, generator=g, dtype=REAL)
    mean, col = torch.randn(4, 3, generator=g, dtype=REAL), torch.tensor([0.3, 2.0, 0.7], dtype=REAL)
    return [v.expand(rows, *v.shape).clone().requires_grad_() for v in (x, row, mean, col)]


def gradients(out: torch.Tensor, inputs: list[torch.Tensor]) -> torch.Tensor:
    """Pre-activations and the gradients of a function of them, one line for each copy."""
    loss = (out.tanh() * torch.tensor([1.0, -2.0, 0.5], dtype=REAL)).sum() + out.logsumexp(1).sum()
    return torch.cat([out.detach(), *(v.flatten(1) for v in torch.autograd.grad(loss, inputs))], 1)


def drawn(rows: int) -> torch.Tensor:
    """The oracle: W = M + diag(row) E diag(col) is drawn for every copy."""
    x, row, mean, col = inputs = leaves(rows)
    e = torch.randn(mean.shape, generator=named_generator(1, "weights"), dtype=REAL)
    w = mean + row.unsqueeze(2) * e * col.unsqueeze(1)
    return gradients((x.unsqueeze(1) @ w).squeeze(1), inputs)


def local(rows: int, noise: torch.Tensor | None, seed: int = 2) -> torch.Tensor:
    """Pre-activations are drawn; with `noise` (rows, in) their gradients are those of drawn weights."""
    x, row, mean, col = inputs = leaves(rows)
    q = x * row
    std = q.norm(dim=1, keepdim=True) * col
    eps = torch.randn(std.shape, generator=named_generator(seed, "outputs"), dtype=REAL)
    out = (x.unsqueeze(1) @ mean).squeeze(1) + std * eps
    return gradients(out if noise is None else drawn_weights(out, q, col, noise), inputs)


def test_gradients_have_the_joint_law_of_drawn_weights():
    """First and second moments of pre-activations and all gradients, within 4.5 standard errors each."""
    n = 40_000
    noise = torch.randn((n, 4), generator=named_generator(3, "ξ"), dtype=REAL)
    ours, theirs = local(n, noise), drawn(n)
    upper = torch.triu_indices(ours.shape[1], ours.shape[1])
    for power in (lambda v: v, lambda v: v[:, upper[0]] * v[:, upper[1]]):
        a, b = power(ours), power(theirs)
        error = ((a.var(0) + b.var(0)) / n).sqrt().clamp_min(1e-12)
        assert ((a.mean(0) - b.mean(0)).abs() / error).max() < 5
    # without the further part the variance of the gradients is too small, and this test would see it
    plain = local(n, None)
    assert plain[:, 3:11].var(0).sum() < 0.8 * theirs[:, 3:11].var(0).sum()


def test_mean_gradients_are_those_of_local_reparametrisation():
    """Exactly, for equal pre-activations: ξ and -ξ together give twice the local gradients."""
    noise = torch.randn((50, 4), generator=named_generator(3), dtype=REAL)
    assert_close(local(50, noise) + local(50, -noise), 2 * local(50, None), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(local(50, noise), local(50, None))


def moments(layer, x: torch.Tensor, call) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and second moment of the gradients of all parameters, over 150 calls of ten rows."""
    total = []
    for k in range(150):
        out = call(layer, x.expand(*x.shape[:-2], 10, -1), named_generator(k, "calls"))
        loss = (out * out.detach().tanh()).sum()
        total.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(layer.parameters()))]))
    stacked = torch.stack(total)
    return stacked.mean(0), stacked.var(0)


@pytest.mark.parametrize("kind", ["posterior", "compound"])
def test_layers_differ_in_nothing_but_the_noise_of_gradients(kind):
    """Same outputs in mean and variance, same mean gradients, a larger variance of those of row variances."""
    results = {}
    for gradients_of in ("local", "weights"):
        g = named_generator(0, "start")
        if kind == "posterior":
            start = torch.randn(5, 3, generator=g, dtype=REAL)
            layer = MatrixGaussianLinear(start, (2, 1), -1.0, (1.0, 1.0), gradients=gradients_of).double()
            x = torch.ones(1, 5, dtype=REAL)
            call = lambda layer, x, g: layer(x, g)  # noqa: E731
        else:
            config = CompoundConfig((4,), log_col=-1.0, gradients=gradients_of)
            layer = BatchedCompoundLinear(4, 3, config, g).double()
            x = torch.ones(1, 4, dtype=REAL)

            def call(layer, x, g):
                out = layer(x, g, kl=False)
                return out.draw(torch.randn(out.mean.shape, generator=g, dtype=REAL))

        results[gradients_of] = moments(layer, x, call)
    (mean, variance), (other_mean, other_variance) = results["local"], results["weights"]
    error = ((variance + other_variance) / 150).sqrt().clamp_min(1e-12)
    assert ((mean - other_mean).abs() / error).max() < 5
    assert other_variance.sum() > 1.02 * variance.sum()


@pytest.mark.parametrize("name", ["ml-cdn", "vb-cdn"])
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_models_train_with_the_gradients_of_drawn_weights(name, kind):
    """Losses are finite, and their mean is that of local gradients; prediction does not change."""
    task = Task(kind, 3 if kind == "classification" else 1)
    x = torch.randn(40, 4, generator=named_generator(0, "x"))
    y = (x[:, 0] > 0).long() if kind == "classification" else x[:, :1]
    options = {
        "widths": (8,),
        "hyper": (5,),
        "members": 1,
        "last_layer": "sample",
        "last_draws": 1,
        "samples": 3,
    }
    options |= {"objective": "joint"} if name == "vb-cdn" else {}
    losses, predictions = [], []
    for gradients_of in ("local", "weights"):
        model = build(Method(name, gradients=gradients_of, **options), 4, task, 0)
        model.on_fit_start(make_dataset(x, y, task), named_generator(0))
        draws = [model.loss(make_dataset(x, y, task), named_generator(k)) for k in range(50)]
        losses.append(torch.stack([loss.total.detach() for loss in draws]))
        draws[0].total.backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
        p = model.predict(x, named_generator(1), 10, 2)
        predictions.append(p.probs if kind == "classification" else p.mean)
    assert_close(*predictions, rtol=0, atol=0)
    error = sum(v.var() / 50 for v in losses).sqrt()
    assert (losses[0].mean() - losses[1].mean()).abs() < 4.5 * error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"last_layer": "integrate"}, "last_layer='sample'"),
        ({"last_draws": 2}, "last_draws=1"),
        ({"last_draws": 1, "samples": 2}, "objective='joint'"),
        ({"last_draws": 1, "basis": "vmg"}, "'vmg'"),
    ],
)
def test_what_would_share_weights_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        build(Method("vb-cdn", gradients="weights", **options), 4, Task("classification", 3))
