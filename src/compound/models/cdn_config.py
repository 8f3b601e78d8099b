"""Options of compound density networks, and their defaults for each task."""

from dataclasses import dataclass
from typing import Any, Literal

from compound.models.base import with_defaults
from compound.models.observation.last_layer_family import INTEGRATED
from compound.types import Task


@dataclass(frozen=True)
class Config:
    """Options of both CDNs; None stands for the default of the task, see `DEFAULTS`.

    Parameters
    ----------
    widths : tuple of int, optional
        Hidden layers of the predictive network.
    hyper : tuple of int, optional
        Hidden layers of each hypernetwork.
    last_hyper : tuple of int, optional
        Those of the last layer's; None: as `hyper`, if that is given.
    samples : int, optional
        S, draws of θ per row in training.
    last_layer : {'integrate', 'sample'}, optional
        Whether the last layer's Gaussian is integrated over, or sampled; of the families other than the
        Gaussian, only log-normal targets and ordered classes can be integrated over, and are by default.
    last_draws : int, default=2
        Antithetic draws of the logits per hidden draw.
    parametrization : {'scaled', 'paper'}, default='scaled'
        Weight variances over fan-in, or as published.
    gradients : {'local', 'weights'}, default='local'
        Of local reparametrisation, or, as in the paper, of whole weight matrices drawn for every row: the
        same law and mean gradients, more noise. Needs last_layer='sample', for classes last_draws=1.
    noise : float, default=0.0
        Standard deviation of targets given the network; 0: learnt.
    noise_rate : float, default=5.0
        Factor on the learning rate of the learnt noise.
    log_col : tuple of float, optional
        Initial column log-variances of the layers; the last entry holds for all later layers.
    members : int, optional
        Networks of the ensemble, trained as one batched computation.
    far : float, default=3.0
        Far noise; targets: its standard deviation far away, in standard deviations of the target; 0: none.
    far_classes : {'uniform', 'frequencies'}, optional
        Probabilities of classes far away: all equal, or the class frequencies of the training rows.
    far_distance : {'inputs', 'directions'}, default='inputs'
        Far in the inputs, or in their directions, where these are features of a network (not centred).
    """

    widths: tuple[int, ...] | None = None
    hyper: tuple[int, ...] | None = None
    last_hyper: tuple[int, ...] | None = None
    samples: int | None = None
    last_layer: Literal["integrate", "sample"] | None = None
    last_draws: int = 2
    parametrization: Literal["scaled", "paper"] = "scaled"
    gradients: Literal["local", "weights"] = "local"
    noise: float = 0.0
    noise_rate: float = 5.0
    log_col: tuple[float, ...] | None = None
    members: int | None = None
    far: float = 3.0
    far_classes: Literal["uniform", "frequencies"] | None = None
    far_distance: Literal["inputs", "directions"] = "inputs"


@dataclass(frozen=True)
class MLConfig(Config):
    """Options of `ml-cdn`.

    Parameters
    ----------
    lam : float or pair of floats, optional
        λ, or a geometric path from first to last over training.
    activation : {'relu', 'tanh'}, default='relu'
        Activation of the hypernetworks.
    basis : {'point', 'map'}, default='point'
        V without a prior, or with N(0, 2 / fan-in).
    beta : float, optional
        Targets: a row's likelihood counts in training in proportion to its predictive variance to this power.
    """

    lam: float | tuple[float, float] | None = None
    beta: float | None = None
    activation: Literal["relu", "tanh"] = "relu"
    basis: Literal["point", "map"] = "point"


@dataclass(frozen=True)
class VBConfig(Config):
    """Options of `vb-cdn`.

    Parameters
    ----------
    objective : {'elbo', 'official', 'joint'}, default='elbo'
        A row's draws of θ share all of ψ ('elbo'), ψ of the hypernetworks' last layers ('official'), or none.
    activation : {'relu', 'tanh'}, default='tanh'
        Activation of the hypernetworks.
    basis : {'point', 'map', 'vmg'}, default='point'
        'map': V with the prior N(0, 2 / fan-in); 'vmg': V with a matrix-Gaussian posterior.
    """

    objective: Literal["elbo", "official", "joint"] = "elbo"
    activation: Literal["relu", "tanh"] = "tanh"
    basis: Literal["point", "map", "vmg"] = "point"


# Values of options that are None. Those for regression are the same for all nine UCI sets.
DEFAULTS: dict[str, dict[str, Any]] = {
    "classification": {
        "widths": (100,),
        "hyper": (50,),
        "samples": 1,
        "last_layer": "sample",
        "members": 5,
        "log_col": (-6.0,),
        "lam": 5e-6,
        "beta": 0.0,
        "far_classes": "uniform",
    },
    "regression": {
        "widths": (50,),
        "hyper": (20,),
        "samples": 5,
        "last_layer": "integrate",
        "members": 5,
        "log_col": (-4.0, -2.0),
        "lam": (3e-3, 1e-6),
        "beta": 0.0,
        "far_classes": "uniform",
    },
}
# `ml-cdn` behind a piecewise-linear encoding, see results/tables-trials.md
TABLE_DEFAULTS: dict[str, dict[str, Any]] = {
    "classification": {"hyper": (20,), "samples": 2, "lam": 3e-5, "far_classes": "frequencies"},
    "regression": {
        "hyper": (50,),
        "last_hyper": (20,),
        "samples": 3,
        "lam": (1e-4, 1e-6),
        "beta": 0.5,
    },
}
VB_DEFAULTS: dict[str, dict[str, Any]] = {
    "classification": {"hyper": (100,), "log_col": (-5.0,), "members": 2},
    "regression": {"members": 1},
}


def resolve(config: MLConfig | VBConfig, task: Task, table: bool = False) -> MLConfig | VBConfig:
    """The config with None replaced by defaults; ValueError for values out of range.

    Defaults depend on the task, and on whether the inputs are the encoded columns of a `table`.
    """
    defaults = DEFAULTS[task.kind] | (TABLE_DEFAULTS[task.kind] if table else {})
    if task.family is not None:
        last_layer = "integrate" if task.family in INTEGRATED else "sample"
        defaults |= {"last_layer": last_layer, "beta": 0.0}
    is_ml = isinstance(config, MLConfig)
    if not is_ml:
        defaults |= VB_DEFAULTS[task.kind]
    if config.hyper is not None or not is_ml or "last_hyper" not in defaults:
        defaults["last_hyper"] = config.hyper or defaults["hyper"]
    config = with_defaults(config, defaults)
    _check(config)
    if config.gradients == "weights":
        _check_weights(config, task)
    if isinstance(config, MLConfig):
        _check_ml(config, task)
        return config
    if config.objective not in ("elbo", "official", "joint"):
        raise ValueError(f"objective is {config.objective!r}: use one of elbo, official, joint")
    return config


def _check(config: Any) -> None:
    """Raise ValueError for a common option that is out of range or unknown."""
    if config.samples < 1 or config.members < 1 or config.last_draws < 1:
        raise ValueError("samples, members and last_draws must be at least 1")
    widths, hyper, last = config.widths, config.hyper, config.last_hyper
    if any(width < 1 for width in (*widths, *hyper, *last)) or not hyper or not last:
        raise ValueError(
            f"widths {widths}, hyper {hyper} and last_hyper {last} must be positive, the last two not empty"
        )
    if config.far < 0 or config.noise < 0:
        raise ValueError(
            f"far is {config.far} and noise {config.noise}: neither may be negative; "
            "0 turns far noise off and learns the noise"
        )
    for name, allowed in (
        ("parametrization", ("scaled", "paper")),
        ("gradients", ("local", "weights")),
        ("activation", ("relu", "tanh")),
        ("basis", ("point", "map", "vmg")),
    ):
        if getattr(config, name) not in allowed:
            raise ValueError(f"{name} is {getattr(config, name)!r}: use one of {', '.join(allowed)}")


def _check_weights(config: Any, task: Task) -> None:
    """Raise ValueError where draws would share weights, so that none is drawn whole for every row."""
    if config.last_layer != "sample" or (task.kind == "classification" and config.last_draws != 1):
        raise ValueError(
            "gradients is 'weights': give last_layer='sample' with it, and for classes last_draws=1"
        )
    if config.basis == "vmg":
        raise ValueError("gradients is 'weights': basis 'vmg' has no such gradients, use 'point' or 'map'")
    if config.samples > 1 and getattr(config, "objective", "joint") != "joint":
        raise ValueError("gradients is 'weights': draws may not share ψ, give samples=1 or objective='joint'")


def _check_ml(config: Any, task: Task) -> None:
    """Raise ValueError for a basis, a λ or a β that `ml-cdn` cannot use."""
    if config.basis == "vmg":
        raise ValueError("basis is 'vmg': a posterior over V needs vb-cdn")
    if not 0 <= config.beta <= 1:
        raise ValueError(f"beta is {config.beta}: give a number between 0, the likelihood, and 1")
    if config.beta and task.family is not None:
        raise ValueError(f"beta is {config.beta}: it is for Gaussian targets, give 0 for {task.family}")
    if config.beta and task.kind == "classification":
        raise ValueError(f"beta is {config.beta}: only targets have a variance, give 0 for classes")
    lam = config.lam if isinstance(config.lam, tuple) else (config.lam,)
    if len(lam) > 2 or min(lam) < 0 or (len(lam) == 2 and min(lam) == 0):
        raise ValueError(f"lam is {config.lam}: give one number >= 0, or two > 0 for a path")
