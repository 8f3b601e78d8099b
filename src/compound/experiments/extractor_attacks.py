"""Attacks on pixels through a fixed extractor, on heads that see features: the two protocols of `robust`.

Passing the extractor is nearly all of the cost, so a picture passes it as seldom as can be: gradients w.r.t. features come from the
head, and one vector-Jacobian product each brings them to the pixels; pictures that several draws share pass once.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor

from compound.attacks import gradient
from compound.experiments.features import ROWS, FeatureExtractor, extracted
from compound.experiments.robust import (
    HUNDRED,
    ONE,
    RANGE,
    Curve,
    Draws,
    ask,
    label_loss,
    odds,
    precision,
    surprise,
)
from compound.models import Model

Slopes = Callable[
    [Tensor, Tensor], list[Tensor]
]  # features and labels of some rows -> gradients of losses w.r.t. the features


def signs(
    front: FeatureExtractor, model: Model, x: Tensor, y: Tensor, draws: Draws, generator: Generator
) -> Tensor:  # as x, int8
    """Where each pixel makes -log p(y | x) grow, p being the mean over draws."""
    state = generator.get_state()

    def slopes(z: Tensor, labels: Tensor) -> list[Tensor]:
        return [
            gradient(label_loss(model, labels, draws, generator, state, odds), z.to(precision(model))).to(
                z.dtype
            )
        ]

    return pulled(front, x, y, slopes)[0]


def pulled(
    front: FeatureExtractor, x: Tensor, y: Tensor, slopes: Slopes
) -> Tensor:  # (losses, *x.shape), int8
    """Signs of the gradients of losses w.r.t. pixels."""
    parts = []
    for part, labels in zip(x.split(ROWS), y.split(ROWS), strict=True):
        with torch.enable_grad():
            part = part.detach().requires_grad_()
            features = front(part)
            # the graph is kept for the next product
            products = [
                torch.autograd.grad(features, part, slope, retain_graph=True)[0]
                for slope in slopes(features.detach(), labels)
            ]
        parts.append(torch.stack([product.sign().nan_to_num_(0.0).to(torch.int8) for product in products]))
    return torch.cat(parts, 1)


def judged(
    front: FeatureExtractor,
    model: Model,
    x: Tensor,
    moves: Tensor,
    y: Tensor,
    strengths: Sequence[float],
    generator: Generator,
    n_eval: Draws = HUNDRED,
) -> Curve:
    """The sound protocol, its directions given: `judges` fresh draws classify."""
    return Curve.from_probs(
        [ask(model, _moved(front, x, moves, strength), n_eval, generator) for strength in strengths], y
    )


def published(
    front: FeatureExtractor,
    model: Model,
    x: Tensor,
    y: Tensor,
    strengths: Sequence[float],
    generator: Generator,
    draws: int,
) -> Curve:
    """A picture per draw, from one pass and the label it gave, classified by another draw."""
    state = generator.get_state()

    def slopes(z: Tensor, labels: Tensor) -> list[Tensor]:
        generator.set_state(state)  # draw k is the same for all rows
        found = []
        for _ in range(draws):
            here = generator.get_state()
            own = ask(model, z, ONE, generator).argmax(-1)  # the label that this very pass gives
            found.append(gradient(label_loss(model, own, ONE, generator, here, surprise), z))
        return found

    moves, rows, which = _distinct(pulled(front, x, y, slopes))
    probs = []
    for strength in strengths:
        features = _moved(front, x[rows], moves, strength) if strength else extracted(front, x)[rows]
        probs.append(
            torch.stack([ask(model, features[which[k]], ONE, generator) for k in range(draws)]).mean(0)
        )
    return Curve.from_probs(probs, y)


def _moved(front: FeatureExtractor, x: Tensor, moves: Tensor, strength: float) -> Tensor:  # (rows, features)
    return extracted(front, (x + strength * moves).clamp(*RANGE))


def _distinct(moves: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of moves (draws, rows, ...) each row's different ones, (some, ...); their rows (some,); where each is among them, (draws, rows)."""
    kept, rows, which, count = [], [], [], 0
    for row, own in enumerate(moves.unbind(1)):
        different, places = torch.unique(own, dim=0, return_inverse=True)
        kept.append(different)
        rows += [row] * len(different)
        which.append(count + places)
        count += len(different)
    return torch.cat(kept), torch.tensor(rows), torch.stack(which, 1)
