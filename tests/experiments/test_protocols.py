"""Attacks on models whose gradients are known, and the published protocol against a direct computation."""

import math

import pytest
import torch
from torch.testing import assert_close

from compound.experiments.fgsm import protocols
from compound.experiments.fgsm.protocols import Curve
from compound.models import METHODS, Method, build
from compound.predictive import CategoricalPredictive
from compound.random import named_generator
from compound.types import Task

TASK = Task("classification", 3)


def linear():
    """Softmax regression on four pixels."""
    model = build(Method("map", widths=()), 4, TASK, 1)
    return model, model.network.layers[0].weight[0].detach()


def pixels(rows: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(rows, 4, generator=named_generator(2)), torch.randint(
        3, (rows,), generator=named_generator(3)
    )


def test_gradient_signs_of_softmax_regression():
    model, weight = linear()
    x, y = pixels(250)  # more rows than go together
    probs = model.predict(x, named_generator(0), 1, 1).probs
    expected = ((probs - torch.nn.functional.one_hot(y, 3)) @ weight.T).sign()  # of d(-log p_y)/dx
    assert torch.equal(protocols.gradient_signs(model, x, y, (5, 1), named_generator(0)), expected)
    assert protocols.zero_gradient_fraction(model, x, y, named_generator(0)) == 0


def test_curves_are_of_the_attacked_images():
    model, weight = linear()
    x, y = pixels()
    probs = model.predict(x, named_generator(0), 1, 1).probs
    signs = ((probs - torch.nn.functional.one_hot(y, 3)) @ weight.T).sign()
    curve = protocols.sound_protocol(model, model, x, y, (0.0, 0.3), named_generator(0))
    for k, strength in enumerate((0.0, 0.3)):
        p = model.predict((x + strength * signs).clamp(0, 1), named_generator(0), 1, 1)
        assert curve.accuracy[k] == pytest.approx((p.label == y).double().mean().item())
        assert curve.entropy[k] == pytest.approx(p.entropy().double().mean().item(), rel=1e-5)
    # the published protocol takes the model's own label; where nothing is random all its images are one
    own_label = protocols.sound_protocol(model, model, x, probs.argmax(-1), (0.0, 0.3), named_generator(0))
    published = protocols.published_protocol(model, x, y, (0.0, 0.3), named_generator(0), draws=3, passes=2)
    assert published.entropy == pytest.approx(own_label.entropy, rel=1e-5)
    assert published.accuracy[0] == pytest.approx(curve.accuracy[0])


def test_published_protocol_is_its_direct_computation():
    """An image for every draw: the mean of `passes` clipped images, each from one pass and its label."""
    model = build(Method("mc-dropout", widths=(6,)), 4, TASK, 1)
    x, y = pixels()
    strengths, draws, passes = (0.2, 0.7), 4, 3
    curve = protocols.published_protocol(model, x, y, strengths, named_generator(5), draws, passes)
    stream, sums = named_generator(5), [torch.zeros(len(x), 3) for _ in strengths]
    for _ in range(draws):
        images = [torch.zeros_like(x) for _ in strengths]
        for _ in range(passes):
            state = stream.get_state()
            label = model.predict(x, stream, 1, 1).label
            stream.set_state(state)
            inputs = x.clone().requires_grad_()
            (grad,) = torch.autograd.grad(
                -model.predict_chunk(inputs, 1, 1, stream).log_prob(label).sum(), inputs
            )
            for k, strength in enumerate(strengths):
                images[k] += (x + strength * grad.sign()).clamp(0, 1) / passes
        for k in range(len(strengths)):
            sums[k] += model.predict(images[k], stream, 1, 1).probs / draws
    slow = Curve.from_probs(sums, y)
    assert curve.accuracy == slow.accuracy
    assert_close(torch.tensor(curve.entropy), torch.tensor(slow.entropy), rtol=1e-5, atol=1e-6)


def test_sound_attack_follows_the_mean_over_draws():
    model = build(Method("mc-dropout", widths=(6,)), 4, TASK, 1).double()
    x, y = (value.double() if value.is_floating_point() else value for value in pixels())
    inputs = x.clone().requires_grad_()
    predictive = model.predict_chunk(inputs, 4, 5, named_generator(7))
    assert isinstance(predictive, CategoricalPredictive)
    (grad,) = torch.autograd.grad(-predictive.probs[torch.arange(len(x)), y].log().sum(), inputs)
    assert torch.equal(protocols.gradient_signs(model, x, y, (4, 5), named_generator(7)), grad.sign())


def test_stronger_attacks_are_stronger_and_random_ones_weaker():
    g = named_generator(1)
    y = torch.randint(3, (300,), generator=g)
    x = (0.5 + 0.25 * torch.nn.functional.one_hot(y, 4) + 0.05 * torch.randn(300, 4, generator=g)).clamp(0, 1)
    model = build(Method("map", widths=(20,)), 4, TASK, 0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(300):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model.network(x)[0], y).backward()
        optimizer.step()
    strengths = (0.0, 0.1)
    one = protocols.sound_protocol(model, model, x, y, strengths, named_generator(0))
    many = protocols.pgd_attack(
        model, model, x, y, strengths, named_generator(0), draws=(1, 1), steps=10, restarts=1
    )
    random = protocols.random_sign_attack(model, x, y, strengths, named_generator(0))
    transferred = protocols.sound_protocol(model, model, x, y, strengths, named_generator(0), draws=(2, 5))
    assert one.accuracy[0] > 0.95 and many.accuracy[0] == one.accuracy[0]
    assert many.accuracy[1] <= one.accuracy[1] + 0.01 < random.accuracy[1]
    assert transferred == one  # from the model itself it is the attack itself


def test_entropy_of_even_probabilities():
    assert Curve.from_probs([torch.full((2, 10), 0.1)], torch.tensor([0, 1])).entropy[0] == pytest.approx(
        math.log(10)
    )


def test_attacks_of_a_confident_network_need_double_precision():
    """Where p(y) rounds to 1 its gradient is 0 in single precision; the exact one is of the second class."""
    model, weight = linear()
    with torch.no_grad():
        model.network.layers[0].weight.mul_(500)
    x, _ = pixels(250)
    logits = x @ weight + model.network.layers[0].bias[0].detach()
    (first, second), (_, second_class) = (part.T[:2] for part in logits.topk(2))
    y = logits.argmax(-1)
    confident = (first - second > 110) & (first - second < 700)
    expected = (weight[:, second_class] - weight[:, y]).T.sign()
    exact = protocols.to_double(model)
    predictive = exact.predict_chunk(x.double(), 1, 1, named_generator(0))
    assert_close(
        protocols.log_odds_loss(predictive, y)[confident],
        (second - first)[confident].double(),
        rtol=1e-4,
        atol=1.0,
    )  # a third class adds at most log 2
    assert confident.sum() > 50 and protocols.dtype_of(model) == torch.float32
    assert not protocols.gradient_signs(model, x, y, (1, 1), named_generator(0))[confident].any()
    assert torch.equal(
        protocols.gradient_signs(exact, x, y, (1, 1), named_generator(0))[confident], expected[confident]
    )
    curve = protocols.pgd_attack(
        model,
        exact,
        x[confident],
        y[confident],
        (0.4,),
        named_generator(0),
        draws=(1, 1),
        steps=1,
        restarts=1,
    ).accuracy
    blind = protocols.pgd_attack(
        model,
        model,
        x[confident],
        y[confident],
        (0.4,),
        named_generator(0),
        draws=(1, 1),
        steps=1,
        restarts=1,
    ).accuracy
    assert curve[0] < blind[0]


@pytest.mark.parametrize("name", [n for n, method in METHODS.items() if TASK.kind in method.kinds])
def test_every_method_can_be_attacked_in_double_precision(name):
    """With enough draws for the means of both precisions, whose draws differ, to agree."""
    model = build(Method(name, widths=(6,)), 4, TASK, 1)
    x, y = pixels(20)
    single = model.predict_chunk(x, 800, 5, named_generator(4)).probs
    double = protocols.to_double(model).predict_chunk(x.double(), 800, 5, named_generator(4)).probs
    assert double.dtype == torch.float64
    assert_close(single.double(), double, atol=6 * 0.5 * (2 / 4000) ** 0.5, rtol=0)
    assert (
        protocols.gradient_signs(protocols.to_double(model), x, y, (5, 1), named_generator(0)).dtype
        == x.dtype
    )
