"""Attacks on pixels through a fixed feature extractor, under the protocols of protocols.py.

The extractor is nearly all of the cost, so it is called as seldom as possible: gradients with respect to
features are computed for the model alone, and each becomes a gradient with respect to pixels by one
vector-Jacobian product; features of an image that several draws share are computed once. Pixels x are
(rows, 3, 32, 32) in [0, 1].
"""

from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor

from compound.attacks import gradient
from compound.experiments.fgsm.features import BATCH_ROWS, FeatureExtractor, extract
from compound.experiments.fgsm.protocols import (
    HUNDRED,
    ONE,
    RANGE,
    Counts,
    Curve,
    dtype_of,
    fixed_draws_loss,
    log_odds_loss,
    nll_loss,
    predict_probs,
)
from compound.models import Model

# features (rows, features) and labels (rows,) -> gradients of one or more losses with respect to the features
FeatureGradients = Callable[[Tensor, Tensor], list[Tensor]]


def gradient_signs(
    extractor: FeatureExtractor, model: Model, x: Tensor, y: Tensor, draws: Counts, generator: Generator
) -> Tensor:  # as x, int8
    """Sign of the gradient with respect to pixels x of `log_odds_loss`, for the mean over `draws`."""
    state = generator.get_state()

    def feature_gradients(z: Tensor, labels: Tensor) -> list[Tensor]:
        loss = fixed_draws_loss(model, labels, draws, generator, state, log_odds_loss)
        return [gradient(loss, z.to(dtype_of(model))).to(z.dtype)]

    return pixel_gradient_signs(extractor, x, y, feature_gradients)[0]


def pixel_gradient_signs(
    extractor: FeatureExtractor, x: Tensor, y: Tensor, feature_gradients: FeatureGradients
) -> Tensor:  # (losses, *x.shape), int8
    """Signs of the gradients of several losses with respect to pixels x; 0 where a gradient is 0 or NaN."""
    signs = []
    for inputs, labels in zip(x.split(BATCH_ROWS), y.split(BATCH_ROWS), strict=True):
        with torch.enable_grad():
            inputs = inputs.detach().requires_grad_()
            features = extractor(inputs)
            vectors = feature_gradients(features.detach(), labels)
            products = [torch.autograd.grad(features, inputs, v, retain_graph=True)[0] for v in vectors]
        signs.append(torch.stack([product.sign().nan_to_num_(0.0).to(torch.int8) for product in products]))
    return torch.cat(signs, 1)


def sound_protocol(
    extractor: FeatureExtractor,
    model: Model,
    x: Tensor,
    signs: Tensor,
    y: Tensor,
    strengths: Sequence[float],
    generator: Generator,
    n_eval: Counts = HUNDRED,
) -> Curve:
    """The curve under the sound protocol: `n_eval` fresh draws classify x + strength * signs, clipped.

    `signs` are those of `gradient_signs`, of the shape of x.
    """
    features = (_attacked_features(extractor, x, signs, strength) for strength in strengths)
    return Curve.from_probs([predict_probs(model, z, n_eval, generator) for z in features], y)


def published_protocol(
    extractor: FeatureExtractor,
    model: Model,
    x: Tensor,
    y: Tensor,
    strengths: Sequence[float],
    generator: Generator,
    draws: int,
) -> Curve:
    """The curve under the published protocol, as `protocols.published_protocol` with one pass per draw."""
    state = generator.get_state()

    def feature_gradients(z: Tensor, labels: Tensor) -> list[Tensor]:
        generator.set_state(state)  # draw k is the same for all rows
        gradients = []
        for _ in range(draws):
            pass_state = generator.get_state()
            labels = predict_probs(model, z, ONE, generator).argmax(-1)  # of this very pass
            loss = fixed_draws_loss(model, labels, ONE, generator, pass_state, nll_loss)
            gradients.append(gradient(loss, z))
        return gradients

    signs, rows, index = _unique_signs(pixel_gradient_signs(extractor, x, y, feature_gradients))
    probs = []
    for strength in strengths:
        if strength:
            features = _attacked_features(extractor, x[rows], signs, strength)
        else:
            features = extract(extractor, x)[rows]
        by_draw = [predict_probs(model, features[index[k]], ONE, generator) for k in range(draws)]
        probs.append(torch.stack(by_draw).mean(0))
    return Curve.from_probs(probs, y)


def _attacked_features(
    extractor: FeatureExtractor, x: Tensor, signs: Tensor, strength: float
) -> Tensor:  # (rows, features)
    """Features of the attacked images."""
    return extract(extractor, (x + strength * signs).clamp(*RANGE))


def _unique_signs(signs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The unique gradient signs of each row of signs (draws, rows, ...): draws often agree.

    Returns the unique ones of all rows (n, ...), the row of each (n,), and which one each draw and row has,
    (draws, rows).
    """
    distinct: list[Tensor] = []
    rows: list[int] = []
    index = []
    for row, of_row in enumerate(signs.unbind(1)):
        unique, inverse = torch.unique(of_row, dim=0, return_inverse=True)
        index.append(len(rows) + inverse)
        distinct.append(unique)
        rows += [row] * len(unique)
    return torch.cat(distinct), torch.tensor(rows), torch.stack(index, 1)
