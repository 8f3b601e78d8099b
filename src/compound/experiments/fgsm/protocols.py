"""Robustness to attacks: accuracy and mean predictive entropy against strength, under two protocols.

*published*, as in the original code: for each predictive draw an attacked image is made, from the gradient of
one stochastic forward pass and the label which that pass predicts. Another draw classifies the image, and
probabilities are averaged over draws. A model whose draws give different attacks then seems more robust.

*sound*: one image per input, the true label, the gradient of the log of the mean probability over draws, and
fresh draws for classification; far noise is left out of the gradient. Probabilities of a confident model
round to 0 and 1, and the gradient of -log p(y) is lost; the sound attack follows the log-odds against y,
whose gradient has the same direction, in double precision.

Images lie in [0, 1].
"""

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
from torch import Generator, Tensor

from compound.attacks import Function, direction, pgd
from compound.models import Model
from compound.predictive import CategoricalPredictive, entropy

Loss = Callable[[CategoricalPredictive, Tensor], Tensor]  # of a predictive and labels, (rows,)
BATCH_ROWS = 100  # attacked together: the autograd graph has every draw of every row
RANGE = (0.0, 1.0)
Counts = tuple[int, int]  # n_samples and n_inner of `Model.predict`
ONE: Counts = (1, 1)
TEN: Counts = (2, 5)
HUNDRED: Counts = (20, 5)  # fresh draws that classify an attacked image


class Curve(NamedTuple):
    """Accuracy and entropy under attack, one entry per strength."""

    accuracy: list[float]
    entropy: list[float]  # mean, in nats

    @classmethod
    def from_probs(cls, probs: Sequence[Tensor], y: Tensor) -> "Curve":
        """From mean probabilities (rows, classes) at every strength, and labels (rows,)."""
        accuracy = [(p.argmax(-1) == y).double().mean().item() for p in probs]
        return cls(accuracy, [entropy(p.double()).mean().item() for p in probs])


def predict_probs(model: Model, x: Tensor, draws: Counts, generator: Generator) -> Tensor:  # (rows, classes)
    return cast(CategoricalPredictive, model.predict(x, generator, *draws)).probs


def nll_loss(predictive: CategoricalPredictive, y: Tensor) -> Tensor:
    return -predictive.log_prob(y)


def log_odds_loss(predictive: CategoricalPredictive, y: Tensor) -> Tensor:
    """log((1 - p(y)) / p(y)), (rows,): increases with -log p(y), but its gradient stays at p(y) near 1.

    1 - p(y) is computed as the sum of the other probabilities: the difference would round to 0.
    """
    p = predictive.probs.clamp_min(torch.finfo(predictive.probs.dtype).tiny)  # (rows, classes)
    is_label = torch.nn.functional.one_hot(y, p.shape[-1]).bool()
    return p.masked_fill(is_label, 0.0).sum(-1).log() - p[is_label].log()


def to_double(model: Model) -> Model:
    """A copy in double precision, for gradients: probabilities underflow at e^-745 instead of e^-103."""
    return copy.deepcopy(model).double()


def dtype_of(model: Model) -> torch.dtype:
    return next(model.parameters()).dtype


def gradient_signs(
    model: Model, x: Tensor, y: Tensor, draws: Counts, generator: Generator, loss: Loss = log_odds_loss
) -> Tensor:  # as x
    """Sign of the gradient with respect to x (rows, pixels) of the loss of the mean predictive over `draws`.

    The gradient is computed in the precision of the model's parameters.
    """
    state = generator.get_state()
    signs = []
    for inputs, labels in zip(x.to(dtype_of(model)).split(BATCH_ROWS), y.split(BATCH_ROWS), strict=True):
        function = fixed_draws_loss(model, labels, draws, generator, state, loss)
        signs.append(direction(function, inputs).to(x.dtype))
    return torch.cat(signs)


def fixed_draws_loss(
    model: Model, y: Tensor, draws: Counts, generator: Generator, state: Tensor, loss: Loss
) -> Function:
    """The function from x to the loss of each row, (rows,), for labels y. Every call uses the same draws.

    Each call sets `generator` to `state` before it draws.
    """

    def function(x: Tensor) -> Tensor:  # (rows,)
        generator.set_state(state)
        return loss(cast(CategoricalPredictive, model.predict_chunk(x, *draws, generator)), y)

    return function


def published_protocol(
    model: Model,
    x: Tensor,
    y: Tensor,
    strengths: Sequence[float],
    generator: Generator,
    draws: int = 100,
    passes: int = 1,
) -> Curve:
    """The curve of a model on images x (rows, pixels) under the protocol *published*, with this many draws.

    With `passes` > 1 an attacked image is the average of that many: the paper's stronger attack.
    """
    probs = [torch.zeros(len(x), 1) for _ in strengths]
    for _ in range(draws):
        # fractions of the passes that increase and decrease a pixel
        increase = torch.zeros_like(x)
        decrease = torch.zeros_like(x)
        for _ in range(passes):
            state = generator.get_state()
            labels = predict_probs(model, x, ONE, generator).argmax(-1)  # of this very pass
            generator.set_state(state)
            signs = gradient_signs(model, x, labels, ONE, generator, nll_loss)
            increase += (signs > 0) / passes
            decrease += (signs < 0) / passes
        for number, strength in enumerate(strengths):
            brighter, darker = (x + strength).clamp(*RANGE), (x - strength).clamp(*RANGE)
            # mean of clipped images
            image = increase * brighter + decrease * darker + (1 - increase - decrease) * x
            probs[number] = probs[number] + predict_probs(model, image, ONE, generator) / draws
    return Curve.from_probs(probs, y)


def attack_curve(
    model: Model,
    signs: Tensor,
    x: Tensor,
    y: Tensor,
    strengths: Sequence[float],
    generator: Generator,
    n_eval: Counts = HUNDRED,
) -> Curve:
    """The curve of a model on x + strength * signs, clipped to RANGE, classified by `n_eval` fresh draws."""
    images = ((x + strength * signs).clamp(*RANGE) for strength in strengths)
    return Curve.from_probs([predict_probs(model, image, n_eval, generator) for image in images], y)


def sound_protocol(
    model: Model,
    surrogate: Model,
    x: Tensor,
    y: Tensor,
    strengths: Sequence[float],
    generator: Generator,
    draws: Counts = TEN,
    loss: Loss = log_odds_loss,
) -> Curve:
    """The curve of a model under the protocol *sound*, with the gradient signs of `surrogate`.

    The surrogate is the model in double precision without far noise, which never changes a label but has a
    gradient away from the training data. With another network as surrogate this is a transfer attack.
    """
    signs = gradient_signs(surrogate, x, y, draws, generator, loss)
    return attack_curve(model, signs, x, y, strengths, generator)


def random_sign_attack(
    model: Model, x: Tensor, y: Tensor, strengths: Sequence[float], generator: Generator
) -> Curve:
    """The curve of a model when random signs replace those of the gradient: a control for real attacks."""
    signs = torch.randint(2, x.shape, generator=generator, dtype=x.dtype) * 2 - 1
    return attack_curve(model, signs, x, y, strengths, generator)


def pgd_attack(
    model: Model,
    surrogate: Model,
    x: Tensor,
    y: Tensor,
    strengths: Sequence[float],
    generator: Generator,
    draws: Counts = TEN,
    steps: int = 40,
    restarts: int = 5,
) -> Curve:
    """The curve under projected gradient descent on `surrogate`, with new draws at every step."""
    probs = []
    for strength in strengths:
        images = []
        batches = zip(x.to(dtype_of(surrogate)).split(BATCH_ROWS), y.split(BATCH_ROWS), strict=True)
        for inputs, labels in batches:

            def loss(x: Tensor, labels: Tensor = labels) -> Tensor:
                predictive = surrogate.predict_chunk(x, *draws, generator)
                return log_odds_loss(cast(CategoricalPredictive, predictive), labels)

            image = pgd(loss, inputs, strength, generator, steps, restarts=restarts, clip=RANGE)
            images.append(image.to(x.dtype))
        probs.append(predict_probs(model, torch.cat(images), HUNDRED, generator))
    return Curve.from_probs(probs, y)


def zero_gradient_fraction(model: Model, x: Tensor, y: Tensor, generator: Generator) -> float:
    """Fraction of rows where the gradient of -log p(y) is zero or NaN in every pixel: attacks fail there."""
    return (gradient_signs(model, x, y, TEN, generator, nll_loss) == 0).all(-1).double().mean().item()
