"""How a model stands up to attacks: accuracy and mean entropy against strength, under two protocols.

*published*, as the original code has it: every one of the predictive draws gets an image of its own, made from one pass with
the label that pass gave, and is classified by another draw; the answers are averaged. That measures how much the attacks differ
as well as how robust the model is. *sound*: one image per input, the true label, the gradient of the log of the mean
probability over T draws, and fresh noise for judging; it looks past far noise. A sure model's probabilities are 0 and 1 to the last
bit, and the gradient of -log p(y) is lost; the sound attack climbs the odds against y instead, which have the same direction, and
does so in double precision. Pictures lie in [0, 1].
"""

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
from torch import Generator, Tensor

from compound.attacks import Function, direction, pgd
from compound.models import Model
from compound.predictive import CategoricalPredictive, entropy

Loss = Callable[[CategoricalPredictive, Tensor], Tensor]  # of an answer and labels, (rows,)
ROWS = 100  # attacked together: gradients keep every draw of every row
RANGE = (0.0, 1.0)
Draws = tuple[int, int]  # n_samples and n_inner of `Model.predict`
ONE: Draws = (1, 1)
TEN: Draws = (2, 5)
HUNDRED: Draws = (20, 5)


class Curve(NamedTuple):
    """One entry per strength."""

    accuracy: list[float]
    entropy: list[float]  # mean, in nats

    @classmethod
    def from_probs(cls, probs: Sequence[Tensor], y: Tensor) -> "Curve":
        """From mean probabilities (rows, classes) at every strength."""
        return cls(
            [(p.argmax(-1) == y).double().mean().item() for p in probs],
            [entropy(p.double()).mean().item() for p in probs],
        )


def ask(model: Model, x: Tensor, draws: Draws, generator: Generator) -> Tensor:  # (rows, classes)
    return cast(CategoricalPredictive, model.predict(x, generator, *draws)).probs


def surprise(answer: CategoricalPredictive, y: Tensor) -> Tensor:
    return -answer.log_prob(y)


def odds(answer: CategoricalPredictive, y: Tensor) -> Tensor:
    """Log-odds against y. They grow with -log p(y), and keep their gradient where p(y) rounds to 1: nothing is subtracted from 1."""
    p = answer.probs.clamp_min(torch.finfo(answer.probs.dtype).tiny)  # (rows, classes)
    own = torch.nn.functional.one_hot(y, p.shape[-1]).bool()
    return p.masked_fill(own, 0.0).sum(-1).log() - p[own].log()


def exact(model: Model) -> Model:
    """A copy in double precision, for attacks to aim at: its probabilities underflow at e^-745 instead of e^-103."""
    return copy.deepcopy(model).double()


def precision(model: Model) -> torch.dtype:
    return next(model.parameters()).dtype


def signs(
    model: Model, x: Tensor, y: Tensor, draws: Draws, generator: Generator, loss: Loss = odds
) -> Tensor:  # as x
    """Where each pixel makes the loss of the mean over draws grow; found in the precision of the model."""
    state = generator.get_state()
    parts = []
    for pixels, labels in zip(x.to(precision(model)).split(ROWS), y.split(ROWS), strict=True):
        parts.append(direction(label_loss(model, labels, draws, generator, state, loss), pixels).to(x.dtype))
    return torch.cat(parts)


def label_loss(
    model: Model, y: Tensor, draws: Draws, generator: Generator, state: Tensor, loss: Loss
) -> Function:
    """The loss of the mean over draws, always the same ones: those that begin at `state`."""

    def function(x: Tensor) -> Tensor:  # (rows,)
        generator.set_state(state)  # one set of draws, for all rows alike
        return loss(cast(CategoricalPredictive, model.predict_chunk(x, *draws, generator)), y)

    return function


def published(
    model: Model,
    x: Tensor,
    y: Tensor,
    strengths: Sequence[float],
    generator: Generator,
    draws: int = 100,
    passes: int = 1,
) -> Curve:
    """`passes` > 1 is what the paper calls a stronger attack: the average of that many images."""
    sums = [torch.zeros(len(x), 1) for _ in strengths]
    for _ in range(draws):
        up, down = torch.zeros_like(x), torch.zeros_like(x)  # shares of passes that brighten, darken a pixel
        for _ in range(passes):
            state = generator.get_state()
            own = ask(model, x, ONE, generator).argmax(-1)  # the label that this very pass gives
            generator.set_state(state)
            sign = signs(model, x, own, ONE, generator, surprise)
            up += (sign > 0) / passes
            down += (sign < 0) / passes
        for number, strength in enumerate(strengths):
            brighter, darker = (x + strength).clamp(*RANGE), (x - strength).clamp(*RANGE)
            image = up * brighter + down * darker + (1 - up - down) * x  # the average of the clipped images
            sums[number] = sums[number] + ask(model, image, ONE, generator) / draws
    return Curve.from_probs(sums, y)


def sound(
    model: Model,
    aim: Model,
    x: Tensor,
    y: Tensor,
    strengths: Sequence[float],
    generator: Generator,
    draws: Draws = TEN,
    n_eval: Draws = HUNDRED,
    loss: Loss = odds,
) -> Curve:
    """`draws` is T; `judges` fresh draws classify. The attack sees `aim`: the exact model, without far noise, which changes no label."""
    moves = signs(aim, x, y, draws, generator, loss)
    return Curve.from_probs(
        [ask(model, (x + strength * moves).clamp(*RANGE), n_eval, generator) for strength in strengths], y
    )


def transferred(
    model: Model, other: Model, x: Tensor, y: Tensor, strengths: Sequence[float], generator: Generator
) -> Curve:
    """Images made against another network."""
    moves = signs(other, x, y, TEN, generator)
    return Curve.from_probs(
        [ask(model, (x + strength * moves).clamp(*RANGE), HUNDRED, generator) for strength in strengths], y
    )


def random_signs(
    model: Model, x: Tensor, y: Tensor, strengths: Sequence[float], generator: Generator
) -> Curve:
    """A control that knows nothing of the model."""
    moves = torch.randint(2, x.shape, generator=generator, dtype=x.dtype) * 2 - 1
    return Curve.from_probs(
        [ask(model, (x + strength * moves).clamp(*RANGE), HUNDRED, generator) for strength in strengths], y
    )


def multi_step(
    model: Model,
    aim: Model,
    x: Tensor,
    y: Tensor,
    strengths: Sequence[float],
    generator: Generator,
    draws: Draws = TEN,
    steps: int = 40,
    restarts: int = 5,
) -> Curve:
    """PGD, with the expectation over draws that change at every call; aimed as in `sound`."""
    probs = []
    for strength in strengths:
        parts = []
        for pixels, labels in zip(x.to(precision(aim)).split(ROWS), y.split(ROWS), strict=True):

            def loss(x: Tensor, labels: Tensor = labels) -> Tensor:
                return odds(
                    cast(CategoricalPredictive, aim.predict_chunk(x, *draws, generator)), labels
                )

            parts.append(
                pgd(loss, pixels, strength, generator, steps, restarts=restarts, clip=RANGE).to(x.dtype)
            )
        probs.append(ask(model, torch.cat(parts), HUNDRED, generator))
    return Curve.from_probs(probs, y)


def silent(model: Model, x: Tensor, y: Tensor, generator: Generator) -> float:
    """Share of rows where the gradient of -log p(y) is zero or no number in every pixel: attacks that follow it are blind there."""
    return (signs(model, x, y, TEN, generator, surprise) == 0).all(-1).double().mean().item()
