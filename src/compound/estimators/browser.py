"""The numbers from which a browser computes a model's predictions: weights, noise, distances, calibration.

`export_program` writes down what `Estimator` computes for a row, as JSON with references to one array of
float32 numbers; `engine.js` of `compound explore` computes it. Both know ML-CDN on tables; every other model
is refused.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from compound.estimators.base import Estimator
from compound.estimators.encoder import LIMIT
from compound.estimators.prediction import n_draws
from compound.models.cdn import MLCDN
from compound.models.observation.last_layer import LastLayerCategorical, LastLayerGaussian
from compound.nn.piecewise import CLIP
from compound.ood import CombinedDetector, Distance
from compound.ood.evidence import SIGNIFICANT, SURPRISE, TAIL, WEIGHTS
from compound.ood.neighbours import NEIGHBOURS
from compound.ood.noise import MAX_RISE
from compound.ops.clamp import LIMIT as CLAMP
from compound.random import named_generator

COVERAGES = (0.5, 0.8, 0.9, 0.95, 0.99)  # to choose from

Spec = dict[str, Any]  # JSON


class Floats:
    """An array of float32 numbers that grows by tensors."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []
        self._count = 0

    def add(self, tensor: Tensor) -> Spec:
        """Append a tensor; returns where it begins, and its shape."""
        flat = tensor.detach().float().reshape(-1)
        self._parts.append(flat)
        self._count += len(flat)
        return {"at": self._count - len(flat), "shape": list(tensor.shape)}

    def bytes(self) -> bytes:
        return b"".join(part.numpy().astype("<f4").tobytes() for part in self._parts)


def check_explorable(estimator: Estimator, name: str) -> MLCDN:
    """The estimator's model; ValueError if a browser cannot compute it. `name` is that of its folder."""
    model = estimator.model_
    if type(model) is not MLCDN:
        raise ValueError(
            f"{name} is a model of the method {model.method!r}, and the page computes 'ml-cdn' alone: "
            "fit with --method ml-cdn"
        )
    if type(model.likelihood) not in (LastLayerGaussian, LastLayerCategorical):
        raise ValueError(
            f"{name} predicts with {type(model.likelihood).__name__}, which the page does not compute: "
            "fit a number with Gaussian noise, or classes"
        )
    if isinstance(model.likelihood, LastLayerCategorical) and model.likelihood.integrate:
        raise ValueError(
            f"{name} integrates over its logits, which the page does not compute: "
            "fit with --option last_layer=sample"
        )
    if model.config.basis == "vmg" or type(estimator.ood_detector_) is not CombinedDetector:
        raise ValueError(f"{name} has parts that the page does not compute: fit it again with the defaults")
    return model


@torch.no_grad()
def export_program(estimator: Estimator, model: MLCDN, with_rows: bool) -> tuple[Spec, Floats]:
    """What `engine.js` computes with, and its numbers; training rows are in it only if `with_rows`."""
    floats = Floats()
    detector = estimator.ood_detector_
    distances = [detector.distance]
    if model.distance is not None and model.distance is not detector.distance:
        distances.append(model.distance)
    spec = {
        "task": model.task.kind,
        "limit": LIMIT,
        "clamp": CLAMP,
        "shift": estimator.encoder_.shift.tolist(),
        "scale": estimator.encoder_.scale.tolist(),
        "network": _network(estimator, model, floats),
        "distances": [_distance(each, floats) for each in distances],
        "far": _far(model, len(distances) - 1) if model.distance is not None else None,
        "detector": _detector(detector, floats, with_rows),
        **(_targets if model.task.kind == "regression" else _classes)(estimator, model),
    }
    return spec, floats


def _network(estimator: Estimator, model: MLCDN, floats: Floats) -> Spec:
    """Encoding, layers and the fixed noise of all draws."""
    n_samples, n_inner, groups = model.draw_counts(*n_draws(model))
    assert n_samples == 1  # ψ of ML-CDN has no posterior
    like = torch.empty(0, dtype=torch.float32)
    generator = named_generator(estimator.seed_, "ask")
    layers = []
    for layer in model.layers:
        maps, basis = layer.draw(generator)
        layers.append(
            {
                "maps": [floats.add(weight) for weight in maps],
                "basis": floats.add(basis),
                "bound": layer.config.bound,
                "fan_in": layer.inputs + 1 if layer.config.scaled else 1,
                "activation": layer.config.activation,
                "groups": None if layer.counts is None else _groups(layer.counts),
            }
        )
    noises, last = model.draw_noise(n_inner, generator, like, groups)
    encoding = model.encoding
    return {
        "members": model.members,
        "draws": n_inner,
        "paired": n_inner // groups if groups else 1,
        "layers": layers,
        "noises": [floats.add(noise.squeeze(2)) for noise in noises],  # (members, draws, width)
        "last_noise": floats.add(last.reshape(model.members, -1, model.task.size)),
        "encoding": None
        if encoding is None
        else {
            "clip": CLIP,
            **{name: getattr(encoding, name).tolist() for name in ("kept", "column", "left", "slope")},
        },
        "input_scales": None if model.input_scales is None else floats.add(model.input_scales.squeeze(1)),
    }


def _groups(counts: Tensor) -> list[int]:
    """The group of each input, whose entries of s and lr it shares with the others; the constant is last."""
    return torch.arange(len(counts)).repeat_interleave(counts.long()).tolist()


def _distance(distance: Distance, floats: Floats) -> Spec:
    """Whitening and clusters; of symmetric precision roots the lower triangles."""
    rank = distance.whiten.shape[1]
    rows, columns = torch.tril_indices(rank, rank)
    roots = distance.precision_roots
    return {
        "shift": distance.shift.tolist(),
        "whiten": floats.add(distance.whiten),
        "residual_scale": float(distance.residual_scale),
        "centres": floats.add(distance.centres),
        "roots": floats.add(roots[:, rows, columns]) if len(roots) else None,
        "residual_precision": distance.residual_precision.tolist(),
    }


def _far(model: MLCDN, distance: int) -> Spec:
    """Far noise: which distance it uses, its ramp and its limit far away."""
    noise = model.far.noise
    return {
        "distance": distance,
        "quantiles": noise.distance.quantiles.tolist(),
        "ramp": noise.ramp.tolist(),
        "reach": float(noise.distance.reach),
        "max_rise": MAX_RISE,
        "params": model.far.far_params.tolist(),
    }


def _detector(detector: CombinedDetector, floats: Floats, with_rows: bool) -> Spec:
    return {
        "sample": floats.add(detector.sample) if with_rows else None,
        "neighbours": NEIGHBOURS,
        "values": detector.values.tolist(),
        "logs": detector.logs.tolist(),
        "log_weights": np.log10(WEIGHTS).tolist(),
        "significant": SIGNIFICANT,
        "tail": TAIL,
        "surprise": SURPRISE,
        "threshold": detector.threshold,
    }


def _targets(estimator: Any, model: MLCDN) -> Spec:
    """The observation model of a target, bounds, units and conformal quantiles."""
    likelihood, limits = model.likelihood, model.far.limits
    assert isinstance(likelihood, LastLayerGaussian) and limits is not None
    return {
        "likelihood": {
            "integrate": likelihood.integrate,
            "noise": likelihood.noise_variance()[:, 0].tolist(),  # (members,)
            "floor": float(likelihood.known_floor()[0]),
            "tau": float(likelihood.tau),
        },
        "limits": {name: float(getattr(limits, name)[0]) for name in ("low", "high", "aleatoric", "total")},
        "y_shift": float(estimator.shift_[0]),
        "y_scale": float(estimator.scale_[0]),
        "coverages": COVERAGES,
        "quantiles": [float(estimator.intervals_.conformal_quantile(c)[0]) for c in COVERAGES],
    }


def _classes(estimator: Any, model: MLCDN) -> Spec:
    """The observation model of classes, temperature and conformal quantiles; no quantile: all classes."""
    assert isinstance(model.likelihood, LastLayerCategorical)
    quantiles = [float(estimator.sets_.conformal_quantile(c)) for c in COVERAGES]
    return {
        "likelihood": {"last_draws": model.likelihood.last_draws},
        "classes": [str(label) for label in estimator.classes_],
        "temperature": estimator.temperature_.value,
        "coverages": COVERAGES,
        "quantiles": [q if np.isfinite(q) else None for q in quantiles],
    }
