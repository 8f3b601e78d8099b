"""How a model stands up to attacks: accuracy and mean entropy against strength, under two protocols.

*published*, as the original code has it: every one of the predictive draws gets an image of its own, made from one pass with
the label that pass gave, and is classified by another draw; the answers are averaged. That measures how much the attacks differ
as well as how robust the model is. *sound*: one image per input, the true label, the gradient of the log of the mean
probability over T draws, and fresh noise for judging; it looks past far noise. Pictures lie in [0, 1].
"""

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Generator, Tensor

from compound.attacks import Function, direction, pgd
from compound.models import Draws, Model
from compound.predictive import CategoricalPredictive, entropy

ROWS = 100  # attacked together: gradients keep every draw of every row
RANGE = (0.0, 1.0)


class Curve(NamedTuple):
    """One entry per strength."""

    accuracy: list[float]
    entropy: list[float]  # mean, in nats

    @classmethod
    def of(cls, probs: Sequence[Tensor], y: Tensor) -> "Curve":
        """From mean probabilities (rows, classes) at every strength."""
        return cls(
            [(p.argmax(-1) == y).double().mean().item() for p in probs],
            [entropy(p.double()).mean().item() for p in probs],
        )


def ask(model: Model, x: Tensor, draws: int, generator: Generator) -> Tensor:  # (rows, classes)
    return cast(CategoricalPredictive, model.predict(x, draws, generator)).probs


def signs(model: Model, x: Tensor, y: Tensor, draws: int, generator: Generator) -> Tensor:  # (rows, features)
    """Where each pixel makes -log p(y | x) grow, p being the mean over draws."""
    state = generator.get_state()
    parts = []
    for pixels, labels in zip(x.split(ROWS), y.split(ROWS), strict=True):
        parts.append(direction(label_loss(model, labels, draws, generator, state), pixels))
    return torch.cat(parts)


def label_loss(model: Model, y: Tensor, draws: int, generator: Generator, state: Tensor) -> Function:
    """-log p(y | x), p being the mean over draws, always the same ones: those that begin at `state`."""

    def loss(x: Tensor) -> Tensor:  # (rows,)
        generator.set_state(state)  # one set of draws, for all rows alike
        return -model.answer(x, Draws.of(draws), generator).log_prob(y)

    return loss


def published(
    model: Model, x: Tensor, y: Tensor, strengths: Sequence[float], generator: Generator, draws: int = 100, passes: int = 1
) -> Curve:
    """`passes` > 1 is what the paper calls a stronger attack: the average of that many images."""
    sums = [torch.zeros(len(x), 1) for _ in strengths]
    for _ in range(draws):
        up, down = torch.zeros_like(x), torch.zeros_like(x)  # shares of passes that brighten, darken a pixel
        for _ in range(passes):
            state = generator.get_state()
            own = ask(model, x, 1, generator).argmax(-1)  # the label that this very pass gives
            generator.set_state(state)
            sign = signs(model, x, own, 1, generator)
            up += (sign > 0) / passes
            down += (sign < 0) / passes
        for number, strength in enumerate(strengths):
            brighter, darker = (x + strength).clamp(*RANGE), (x - strength).clamp(*RANGE)
            image = up * brighter + down * darker + (1 - up - down) * x  # the average of the clipped images
            sums[number] = sums[number] + ask(model, image, 1, generator) / draws
    return Curve.of(sums, y)


def sound(
    model: Model,
    aim: Model,
    x: Tensor,
    y: Tensor,
    strengths: Sequence[float],
    generator: Generator,
    draws: int = 10,
    judges: int = 100,
) -> Curve:
    """`draws` is T; `judges` fresh draws classify. The attack is aimed at the model without far noise, which cannot change a label."""
    moves = signs(aim, x, y, draws, generator)
    return Curve.of([ask(model, (x + strength * moves).clamp(*RANGE), judges, generator) for strength in strengths], y)


def transferred(model: Model, other: Model, x: Tensor, y: Tensor, strengths: Sequence[float], generator: Generator) -> Curve:
    """Images made against another network."""
    moves = signs(other, x, y, 10, generator)
    return Curve.of([ask(model, (x + strength * moves).clamp(*RANGE), 100, generator) for strength in strengths], y)


def random_signs(model: Model, x: Tensor, y: Tensor, strengths: Sequence[float], generator: Generator) -> Curve:
    """A control that knows nothing of the model."""
    moves = torch.randint(2, x.shape, generator=generator, dtype=x.dtype) * 2 - 1
    return Curve.of([ask(model, (x + strength * moves).clamp(*RANGE), 100, generator) for strength in strengths], y)


def multi_step(
    model: Model,
    aim: Model,
    x: Tensor,
    y: Tensor,
    strengths: Sequence[float],
    generator: Generator,
    draws: int = 10,
    steps: int = 40,
    restarts: int = 5,
) -> Curve:
    """PGD, with the expectation over draws that change at every call; aimed as in `sound`."""
    probs = []
    for strength in strengths:
        parts = []
        for pixels, labels in zip(x.split(ROWS), y.split(ROWS), strict=True):

            def loss(x: Tensor, labels: Tensor = labels) -> Tensor:
                return -aim.answer(x, Draws.of(draws), generator).log_prob(labels)

            parts.append(pgd(loss, pixels, strength, generator, steps, restarts=restarts, clip=RANGE))
        probs.append(ask(model, torch.cat(parts), 100, generator))
    return Curve.of(probs, y)


def silent(model: Model, x: Tensor, y: Tensor, generator: Generator) -> float:
    """Share of rows whose gradient is zero or no number in every pixel: attacks by gradients are blind there."""
    return (signs(model, x, y, 10, generator) == 0).all(-1).double().mean().item()
