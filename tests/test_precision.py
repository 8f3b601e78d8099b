"""Layers and models stay exact under autocast, other default dtypes, retained graphs and checkpoints."""

import ast
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import compound
from compound.models import METHODS, build
from compound.nn import BatchedCompoundLinear, CompoundConfig, MatrixGaussianLinear
from compound.nn.mean_field import MeanFieldLinear
from compound.nn.multiplicative import MultiplicativeLinear
from compound.ops.affine import append_ones
from compound.ops.gaussian_noise import standard_normal
from compound.random import named_generator
from compound.train.config import TrainConfig
from compound.train.loop import fit
from compound.types import Batch, Task, make_dataset

X = standard_normal(named_generator(0, "x"), (12, 5), torch.empty(0))
TARGETS, CLASSES = Task("regression", 2), Task("classification", 3)


def rows(task: Task) -> Batch:
    y = X[:, :2] * X[:, 1:3] if task is TARGETS else (X[:, 0] > 0).long() + (X[:, 1] > 0).long()
    return make_dataset(X, y, task, x_ood=3 * X)


def layers() -> dict[str, Callable[[Tensor], tuple[Tensor, ...]]]:
    """Layers with a backward pass of their own, their noise the same at every call."""
    forms = {
        "ml": CompoundConfig((4,)),
        "vb": CompoundConfig((4, 3), bayes=True),
        "V with a posterior": CompoundConfig((4,), bayes=True, basis="vmg"),
    }
    compound = {name: BatchedCompoundLinear(5, 3, form, named_generator(1)) for name, form in forms.items()}
    gaussian, factorised = (
        kind(standard_normal(named_generator(2), (6, 3), X))
        for kind in (MatrixGaussianLinear, MeanFieldLinear)
    )
    scaled = MultiplicativeLinear(5, 3, named_generator(3))
    return {
        **{
            name: lambda x, layer=layer: tuple(layer(x, named_generator(4)))
            for name, layer in compound.items()
        },
        "vb, shared draws": lambda x: tuple(compound["vb"](x, named_generator(4), (2, 2))),
        "noisy map": lambda x: (gaussian(append_ones(x), named_generator(5)), gaussian.kl() * x.sum()),
        "matrix Gaussian": lambda x: gaussian.sample(x, standard_normal(named_generator(6), (2, 12, 3), X)),
        "factorised": lambda x: factorised.sample(x, standard_normal(named_generator(6), (2, 12, 3), X)),
        "random scales": lambda x: scaled(x, 2, named_generator(7)),
    }


LAYERS = layers()


def sums(name: str, x: Tensor) -> Tensor:  # (outputs,)
    """A number of each of a layer's outputs."""
    return torch.stack([out.square().sum() for out in LAYERS[name](x)])


def gradients_apart(name: str) -> Tensor:  # (outputs, rows, in)
    """The gradient of each output, from a separate pass."""
    results = []
    for k in range(len(sums(name, X))):
        x = X.clone().requires_grad_()
        results.append(torch.autograd.grad(sums(name, x)[k], x)[0])
    return torch.stack(results)


@pytest.mark.parametrize("name", LAYERS)
def test_a_second_backward_and_the_jacobian(name):
    x, expected = X.clone().requires_grad_(), gradients_apart(name)
    each = sums(name, x)
    again = [torch.autograd.grad(each[k % len(each)], x, retain_graph=True)[0] for k in range(2 * len(each))]
    assert torch.equal(torch.stack(again), expected.repeat(2, 1, 1))
    assert torch.equal(torch.autograd.functional.jacobian(lambda x: sums(name, x), X), expected)


@pytest.mark.parametrize("name", LAYERS)
def test_checkpoints(name):
    expected = gradients_apart(name)
    for k in range(len(expected)):
        for reentrant in (True, False):
            x = X.clone().requires_grad_()
            checkpoint(lambda x: sums(name, x), x, use_reentrant=reentrant)[k].backward()
            assert torch.equal(x.grad, expected[k])
    x = X.clone().requires_grad_()
    each = checkpoint(lambda x: sums(name, x), x, use_reentrant=False)
    assert torch.equal(
        torch.stack([torch.autograd.grad(value, x, retain_graph=True)[0] for value in each]), expected
    )


@pytest.mark.parametrize("name", LAYERS)
def test_second_derivatives_and_batched_gradients_are_refused(name):
    """Second derivatives and batched gradients: hand-written backward passes have neither."""
    x = X.clone().requires_grad_()
    with pytest.raises(ValueError, match="no second derivative"):
        torch.autograd.grad(sums(name, x)[0], x, create_graph=True)
    with pytest.raises((ValueError, RuntimeError), match=r"inside torch\.func|Batching rule not implemented"):
        torch.autograd.functional.jacobian(lambda x: sums(name, x), X, vectorize=True)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_under_autocast(name):
    """After a torch layer whose output autocast reduces: the same as in full precision from there on."""
    before = nn.Linear(5, 5)
    results = []
    for on in (True, False):
        for _ in range(20):
            with torch.autocast("cpu", torch.bfloat16):
                h = before(X).detach()
            with torch.autocast("cpu", torch.bfloat16, enabled=on):
                h = (h if on else h.float()).requires_grad_()
                out = LAYERS[name](h)
                loss = sum((value.float() ** 2).sum() for value in out)
                (gradient,) = torch.autograd.grad(loss, h)
        results.append([*(value.detach() for value in out), gradient])
    for reduced, full in zip(*results, strict=True):
        assert_close(
            reduced.float(), full, rtol=2**-7, atol=2**-7 * float(full.abs().max())
        )  # bfloat16 has 8 bits


CASES = [
    pytest.param(name, task, id=f"{name}-{task.kind}")
    for task in (TARGETS, CLASSES)
    for name, method in METHODS.items()
    if task.kind in method.kinds
]


@pytest.mark.parametrize(("method", "task"), CASES)
def test_methods_under_autocast(method, task):
    """The loss as in full precision; only products in autograd's own backward pass are reduced."""
    data, results = rows(task), []
    for on in (True, False):
        model = build(method, 5, task)
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            model.on_fit_start(data, named_generator(0))
            for _ in range(3):
                model.zero_grad()
                total = model.loss(
                    data, tuple(named_generator(k, "noise") for k in range(model.members))
                ).total
                total.backward()
            answer = model.predict(X, named_generator(1), 4, 2).log_prob(data.y)
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        results.append((total.detach(), answer, gradient))
    for k, (reduced, full) in enumerate(zip(*results, strict=True)):
        assert reduced.dtype == full.dtype
        # a sum of products, each rounded to 8 bits, is off by 2^-8 of its norm: twice for two factors, and
        # two layers
        assert (
            torch.equal(reduced, full)
            if k < 2
            else float((reduced - full).norm()) <= 2**-6 * float(full.norm())
        )


@pytest.fixture
def double_by_default():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(("method", "task"), CASES)
def test_another_default_dtype_changes_nothing(method, task, double_by_default):
    data, results = rows(task), []
    for default in (torch.float32, torch.float64):
        torch.set_default_dtype(default)
        model = build(method, 5, task)
        fit(model, data, TrainConfig(steps=3, batch_size=6))
        results.append(
            [*model.state_dict().values(), model.predict(X, named_generator(1), 2, 2).log_prob(data.y)]
        )
    for one, other in zip(*results, strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)


def test_draws_have_the_requested_dtype(double_by_default):
    for shape in ((4,), (3, 2)):
        torch.set_default_dtype(torch.float64)
        noise = standard_normal(named_generator(0), shape, torch.empty(0, dtype=torch.float32))
        torch.set_default_dtype(torch.float32)
        assert noise.dtype is torch.float32
        assert torch.equal(noise, standard_normal(named_generator(0), shape, noise))
        assert float(noise.abs().min()) > 1e-6  # memory of another type would read as 4e-310


MAKERS = {"empty", "zeros", "ones", "full", "rand", "randn", "tensor", "eye", "linspace"}
# of numpy arrays, or replaced by fitted values
FROM_ARRAYS = {"digits.py", "prediction_metrics.py", "row_predictions.py"}


def test_new_tensors_say_their_dtype():
    root = Path(compound.__file__).parent
    for path in root.rglob("*.py"):
        if path.relative_to(root).parts[0] in ("bench", "experiments") or path.name in FROM_ARRAYS:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {f"torch.{name}" for name in MAKERS}:
                assert "dtype" in {word.arg for word in node.keywords}, (
                    f"{path.name}, line {node.lineno}: {ast.unparse(node)}"
                )


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("mdn", "dpn", "pbp")])
def test_a_noise_floor_nobody_knows_is_refused(method):
    """A head that has not seen the training rows would take another floor than after them."""
    data, model = rows(TARGETS), build(method, 5, TARGETS)
    if method == "bnn-lv":  # its rows come first
        model.latents.on_fit_start(len(data), len(data))
    with pytest.raises(ValueError, match="noise floor of the targets is not known yet"):
        model.loss(data, tuple(named_generator(k) for k in range(model.members)))
    with pytest.raises(ValueError, match="not known yet"):
        model.predict(X, named_generator(0), 2)
    other = build(method, 5, TARGETS)
    other.on_fit_start(data, named_generator(0))
    model.load_state_dict(other.state_dict())  # a state that knows it
    assert math.isfinite(float(model.predict(X, named_generator(0), 2).log_prob(data.y).sum()))
    model.load_state_dict(build(method, 5, TARGETS).state_dict()) if method != "bnn-lv" else None
