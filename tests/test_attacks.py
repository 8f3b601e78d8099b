"""Attacks against closed forms, gradients of linear models, and another library."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from compound.attacks import direction, fgsm, label_loss, odds_loss, pgd
from compound.models import build
from compound.random import named_generator
from compound.types import Task

ROWS, FEATURES = 40, 6
UNEVEN = torch.tensor([0.0, 0.01, 0.1, 0.2, 0.5, 1.0], dtype=torch.float64)


def draw(name: str, *shape: int) -> Tensor:
    return torch.randn(shape, generator=named_generator(0, name), dtype=torch.float64)


def logistic() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs, labels 0 and 1, the weights and the bias of p(1 | x) = σ(x w + b)."""
    return draw("x", ROWS, FEATURES), (draw("y", ROWS) > 0).long(), draw("w", FEATURES), draw("b", 1)


def logistic_loss(y: Tensor, w: Tensor, b: Tensor):
    return label_loss(
        lambda x: torch.stack(
            [nn.functional.logsigmoid(-(x @ w + b)), nn.functional.logsigmoid(x @ w + b)], -1
        ),
        y,
    )


def several(classes: int = 5):
    """A linear model of several classes: its loss is convex in x."""
    weight, y = (
        draw("several", FEATURES, classes),
        torch.randint(classes, (ROWS,), generator=named_generator(1)),
    )
    return label_loss(lambda x: torch.log_softmax(x @ weight, -1), y)


def net() -> nn.Sequential:
    """A small network with weights of its own stream and gradients that must survive."""
    model = nn.Sequential(nn.Linear(FEATURES, 20), nn.Tanh(), nn.Linear(20, 3)).double()
    with torch.no_grad():
        for k, parameter in enumerate(model.parameters()):
            parameter.copy_(draw(f"parameter {k}", *parameter.shape))
    return model


@pytest.mark.parametrize("eps", [0.07, UNEVEN], ids=["one", "per feature"])
def test_fgsm_of_logistic_regression_in_closed_form(eps):
    """d/dx -log p(y | x) = -(y - p) w."""
    x, y, w, b = logistic()
    p = torch.sigmoid(x @ w + b)
    there = fgsm(logistic_loss(y, w, b), x, eps)
    assert_close(there, x + eps * torch.sign(-(y - p).unsqueeze(-1) * w), rtol=0, atol=1e-14)
    assert_close((there - x).abs(), torch.as_tensor(eps, dtype=x.dtype).expand_as(x), rtol=0, atol=1e-14)


def test_fgsm_of_linear_regression_in_closed_form():
    """d/dx (y - x w)² / (2 σ²) = -(y - x w) w / σ², two targets added."""
    x, y, w = draw("x", ROWS, FEATURES), draw("targets", ROWS, 2), draw("w", FEATURES, 2)
    variance = torch.tensor([0.3, 2.0], dtype=torch.float64)
    normal = lambda x: torch.distributions.Normal(x @ w, variance.sqrt())  # noqa: E731
    there = fgsm(lambda x: -normal(x).log_prob(y).sum(-1), x, 0.1)
    assert_close(there, x + 0.1 * torch.sign(((x @ w - y) / variance) @ w.T), rtol=0, atol=1e-14)


@pytest.mark.parametrize("eps", [0.3, UNEVEN], ids=["one", "per feature"])
def test_pgd_of_logistic_regression_ends_in_the_corner_of_fgsm(eps):
    """The loss grows along one direction everywhere.

    The default steps cross the whole box, wherever they start.
    """
    x, y, w, b = logistic()
    loss = logistic_loss(y, w, b)
    for steps in (1, 7, 40):
        assert_close(pgd(loss, x, eps, named_generator(3), steps), fgsm(loss, x, eps), rtol=0, atol=1e-12)


def test_pgd_takes_the_steps_it_is_told():
    """Too few to reach the corner: start + steps times α along the sign, and no further."""
    x, y, w, b = logistic()
    sign = torch.sign(-(y - 0.5).unsqueeze(-1) * w)
    start = x + 0.3 * (2 * torch.rand(x.shape, generator=named_generator(3), dtype=x.dtype) - 1)
    wanted = torch.minimum(torch.maximum(start + 4 * 0.01 * sign, x - 0.3), x + 0.3)
    assert_close(
        pgd(logistic_loss(y, w, b), x, 0.3, named_generator(3), steps=4, step=0.01),
        wanted,
        rtol=0,
        atol=1e-12,
    )


def test_pgd_finds_a_summit_inside_the_box():
    """A concave loss.

    Fgsm overshoots to a corner, pgd stays within a step of the top, or on the side nearest to it.
    """
    x, top = draw("x", ROWS, FEATURES), draw("x", ROWS, FEATURES) + 0.5 * draw("top", ROWS, FEATURES)
    there = pgd(lambda x: -(x - top).square().sum(-1), x, 0.4, named_generator(3), steps=100, step=0.01)
    nearest = torch.minimum(torch.maximum(top, x - 0.4), x + 0.4)
    assert (there - nearest).abs().max() <= 0.01 + 1e-12


def test_pgd_is_at_least_as_strong_as_fgsm():
    """A convex loss is largest in a corner.

    One run may end in the wrong one, the best of several hardly does.
    """
    x, convex = draw("x", ROWS, FEATURES), several()
    for eps in (0.1, 0.5, 2.0):
        weak, strong = (
            convex(fgsm(convex, x, eps)),
            convex(pgd(convex, x, eps, named_generator(3), restarts=10)),
        )
        corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * FEATURES)
        largest = torch.stack([convex(x + eps * corner) for corner in corners]).amax(0)
        assert (strong >= weak - 1e-9).all() and (strong <= largest + 1e-9).all()
        assert_close(strong, largest, rtol=1e-6, atol=0)
        assert weak.mean() > convex(x).mean()
    model, y = net(), torch.randint(3, (ROWS,), generator=named_generator(2))
    bent = label_loss(lambda x: torch.log_softmax(model(x), -1), y)
    one, many = (
        bent(pgd(bent, x, 0.5, named_generator(3))),
        bent(pgd(bent, x, 0.5, named_generator(3), restarts=5)),
    )
    assert (many >= one).all() and (many > one).any()  # the first of five runs is that of one
    assert one.mean() > bent(fgsm(bent, x, 0.5)).mean() > bent(x).mean()


@pytest.mark.parametrize("eps", [0.25, UNEVEN], ids=["one", "per feature"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attacks_stay_in_the_box_and_in_the_range(eps, dtype):
    x = torch.rand(ROWS, FEATURES, generator=named_generator(4), dtype=dtype)
    eps = eps if isinstance(eps, float) else eps.to(dtype)
    model, y = net().to(dtype), torch.randint(3, (ROWS,), generator=named_generator(2))
    loss = label_loss(lambda x: torch.log_softmax(model(x), -1), y)
    for there in (
        fgsm(loss, x, eps, (0.0, 1.0)),
        pgd(loss, x, eps, named_generator(3), clip=(0.0, 1.0)),
        pgd(loss, x, eps, named_generator(3), steps=3, step=5.0, clip=(0.0, 1.0)),
        pgd(loss, x, eps, named_generator(3), steps=1, step=0.0, clip=(0.0, 1.0)),
    ):
        assert there.dtype == dtype and not there.requires_grad
        assert (there >= 0).all() and (there <= 1).all()
        assert ((there - x).abs() <= eps + 4 * torch.finfo(dtype).eps).all()
    free = fgsm(loss, x, eps)
    assert torch.equal(free.clamp(0.0, 1.0), fgsm(loss, x, eps, (0.0, 1.0)))


def test_random_start_fills_the_box_and_comes_from_the_generator():
    x = torch.zeros(4000, FEATURES, dtype=torch.float64)
    before = torch.get_rng_state()
    loss = lambda x: x.sum(-1)  # noqa: E731
    start = pgd(loss, x, UNEVEN, named_generator(3), steps=1, step=0.0)
    assert torch.equal(start, pgd(loss, x, UNEVEN, named_generator(3), steps=1, step=0.0))
    assert not torch.equal(start, pgd(loss, x, UNEVEN, named_generator(4), steps=1, step=0.0))
    assert torch.equal(before, torch.get_rng_state())
    even = start[:, 1:] / UNEVEN[1:]  # uniform on -1..1: mean 0, variance 1/3, fourth moment 1/5
    assert (even.mean(0).abs() <= 5 * math.sqrt(1 / 3 / 4000)).all()
    assert ((even.square().mean(0) - 1 / 3).abs() <= 5 * math.sqrt((1 / 5 - 1 / 9) / 4000)).all()


@pytest.mark.parametrize(
    "attack",
    [lambda loss, x: fgsm(loss, x, 0.1), lambda loss, x: pgd(loss, x, 0.1, named_generator(3), 3)],
    ids=["fgsm", "pgd"],
)
def test_nothing_is_left_on_the_model_or_the_inputs(attack):
    model, x, y = net(), draw("x", ROWS, FEATURES), torch.randint(3, (ROWS,), generator=named_generator(2))
    loss = label_loss(lambda x: torch.log_softmax(model(x), -1), y)
    kept = x.clone()
    for parameter in model.parameters():
        assert parameter.grad is None
    attack(loss, x)
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    loss(x).sum().backward()
    marks = [parameter.grad.clone() for parameter in model.parameters()]
    with torch.no_grad():
        there = attack(loss, x)  # even where gradients are switched off
    assert all(
        torch.equal(parameter.grad, mark) for parameter, mark in zip(model.parameters(), marks, strict=True)
    )
    assert torch.equal(x, kept) and not x.requires_grad and x.grad is None
    assert loss(there).mean() > loss(x).mean()


def test_several_draws_count_as_their_mixture():
    weights, y = draw("draws", 3, 4, FEATURES, 5), torch.randint(5, (ROWS,), generator=named_generator(1))
    logs = lambda x: torch.log_softmax(x @ weights, -1)  # noqa: E731  (3, 4, rows, 5)
    x = draw("x", ROWS, FEATURES).requires_grad_()
    mixture = torch.softmax(x @ weights, -1).mean((0, 1))[torch.arange(ROWS), y]
    assert_close(label_loss(logs, y)(x), -mixture.log())
    (gradient,) = torch.autograd.grad(-mixture.log().sum(), x)
    assert torch.equal(fgsm(label_loss(logs, y), x.detach(), 0.1), x.detach() + 0.1 * gradient.sign())


def test_rows_without_a_gradient_stay_where_they_are():
    """√0 · 0 has the gradient 0 · inf, which is no number."""
    x = draw("x", ROWS, FEATURES)
    x[0] = 0.0
    there = fgsm(lambda x: (x.square().sum(-1).sqrt() * 0.0) + x.sum(-1) * (x.sum(-1) != 0), x, 0.1)
    assert torch.equal(there[0], x[0]) and torch.isfinite(there).all()
    assert_close(there[1:], x[1:] + 0.1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda loss, x: fgsm(loss, x, -0.1), "eps is -0.1"),
        (lambda loss, x: pgd(loss, x, torch.tensor([0.1, -0.1]), named_generator(0)), "eps is"),
        (lambda loss, x: pgd(loss, x, 0.1, named_generator(0), step=-1.0), "step is -1.0"),
        (lambda loss, x: pgd(loss, x, 0.1, named_generator(0), steps=0), "steps is 0"),
        (lambda loss, x: pgd(loss, x, 0.1, named_generator(0), restarts=0), "restarts is 0"),
        (lambda loss, x: pgd(loss, x, 0.1, None, restarts=2), "restarts is 2: without a generator"),
    ],
)
def test_bad_numbers_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call(lambda x: x.sum(-1), torch.zeros(3, 2))


# pixel for pixel what the adversarial-robustness-toolbox makes against the same network

STRENGTHS = (0.01, 0.1, 0.3, 1.0)
ROUNDING = {"rtol": 0, "atol": 4 * torch.finfo(torch.float32).eps}  # of sums of numbers below 2


class Logits(nn.Module):
    """The network of a `map` model."""

    def __init__(self):
        super().__init__()
        self.network = build("map", 100, Task("classification", 10), 3).network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)[0]


def pictures() -> tuple[Tensor, Tensor]:
    """Pixels in [0, 1], many of them black or white, and labels."""
    x = (1.6 * torch.rand(64, 100, generator=named_generator(5)) - 0.3).clamp(0, 1)
    return x, torch.randint(10, (64,), generator=named_generator(6))


@pytest.fixture(scope="module")
def theirs():
    from art.estimators.classification import PyTorchClassifier  # here: it takes seconds

    return PyTorchClassifier(
        Logits(), nn.CrossEntropyLoss(), (100,), 10, clip_values=(0.0, 1.0), device_type="cpu"
    )


@pytest.mark.parametrize("eps", STRENGTHS)
def test_fgsm_of_another_library(theirs, eps):
    from art.attacks.evasion import FastGradientMethod

    (x, y), logits = pictures(), Logits()
    expected = torch.from_numpy(FastGradientMethod(theirs, eps=eps).generate(x.numpy(), y.numpy()))
    ours = fgsm(label_loss(lambda x: torch.log_softmax(logits(x), -1), y), x, eps, (0.0, 1.0))
    assert_close(ours, expected, **ROUNDING)
    assert (ours - x).abs().max() > 0.99 * eps and ours.min() == 0 and ours.max() == 1


@pytest.mark.parametrize("start", ["at the picture", "random"])
@pytest.mark.parametrize("eps", STRENGTHS)
def test_pgd_of_another_library(theirs, eps, start, monkeypatch):
    from art.attacks.evasion.projected_gradient_descent import projected_gradient_descent_pytorch as there

    (x, y), logits = pictures(), Logits()
    step, steps, random = eps / 4, 10, start == "random"

    def sphere(rows: int, features: int, radius: float, norm: float):
        """Their random start, with our numbers."""
        return (radius * (2 * torch.rand(rows, features, generator=named_generator(7)) - 1)).numpy()

    monkeypatch.setattr(there, "random_sphere", sphere)
    attack = there.ProjectedGradientDescentPyTorch(
        theirs,
        eps=eps,
        eps_step=step,
        max_iter=steps,
        num_random_init=int(random),
        batch_size=len(x),
        verbose=False,
    )
    expected = torch.from_numpy(attack.generate(x.numpy(), y.numpy()))
    loss = label_loss(lambda x: torch.log_softmax(logits(x), -1), y)
    ours = pgd(loss, x, eps, named_generator(7) if random else None, steps, step, clip=(0.0, 1.0))
    assert_close(ours, expected, **ROUNDING)
    assert not torch.equal(
        ours, pgd(loss, x, eps, None if random else named_generator(7), steps, step, clip=(0.0, 1.0))
    )  # the start can be seen


def test_odds_point_where_the_label_loss_points_and_further_in_single_precision():
    """Both are functions of p(y) alone, so double precision has one direction for both.

    Of a sure network only the odds keep it.
    """
    x, weight = draw("x", ROWS, FEATURES), draw("several", 3, FEATURES, 5)  # three draws
    y = torch.randint(5, (ROWS,), generator=named_generator(1))

    def logs(x: Tensor, scale: float = 1.0) -> Tensor:
        return torch.log_softmax(x @ (scale * weight.to(x.dtype)), -1)

    p = logs(x).exp().mean(0).gather(-1, y.unsqueeze(-1)).squeeze(-1)
    assert_close(odds_loss(logs, y)(x), (1 / p - 1).log())
    assert torch.equal(direction(odds_loss(logs, y), x), direction(label_loss(logs, y), x))

    own = logs(x, 200.0)[0].argmax(-1)  # of one draw, so sure that p(y) is 1
    sure = lambda x: logs(x, 200.0)[:1]  # noqa: E731
    exact = direction(odds_loss(sure, own), x)
    single = x.float()
    assert torch.equal(direction(odds_loss(sure, own), single).double(), exact)
    assert not torch.equal(direction(label_loss(sure, own), single).double(), exact)
    top = logs(x, 200.0)[0].topk(2).indices
    assert_close(
        exact, (weight[0][:, top[:, 1]] - weight[0][:, top[:, 0]]).T.sign(), rtol=0, atol=0
    )  # of the runner-up's lead
