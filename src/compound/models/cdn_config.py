"""Options of compound density networks, and what their defaults are for each task."""

from dataclasses import dataclass
from typing import Any, Literal

from compound.models.base import with_defaults
from compound.types import Task


@dataclass(frozen=True)
class Config:
    """Options of both CDNs; None means: as the task asks, see `_COMMON`."""

    widths: tuple[int, ...] | None = None  # hidden layers of the predictive network
    hyper: tuple[int, ...] | None = None  # hidden layers of each hypernetwork
    samples: int | None = None  # S, draws of θ per row in training
    last_layer: Literal["integrate", "sample"] | None = None  # its Gaussian taken whole, or drawn from
    last_draws: int = 2  # antithetic draws of the logits per hidden draw
    parametrization: Literal["scaled", "paper"] = "scaled"  # weight variances over fan-in, or as published
    noise: float = 0.0  # standard deviation of targets given the network; 0: learnt
    noise_rate: float = 5.0  # factor on the learning rate of the learnt noise
    log_col: tuple[float, ...] | None = (
        None  # where each layer's column log-variances start; the last serves the layers after
    )
    members: int | None = None  # networks trained side by side, as one batched computation
    far: float = 3.0  # far noise; targets: its standard deviation far away, in those of the target; 0: none


@dataclass(frozen=True)
class MLConfig(Config):
    lam: float | tuple[float, float] | None = None  # λ, or a geometric path from first to last over training
    activation: Literal["relu", "tanh"] = "relu"  # of the hypernetworks
    basis: Literal["point", "map"] = "point"  # V without a prior, or with N(0, 2 / fan-in)


@dataclass(frozen=True)
class VBConfig(Config):
    objective: Literal["elbo", "official", "joint"] = (
        "elbo"  # ψ shared by a row's draws of θ; heads only; not at all
    )
    activation: Literal["relu", "tanh"] = "tanh"  # of the hypernetworks
    basis: Literal["point", "map", "vmg"] = "point"  # "vmg": V has a matrix-Gaussian posterior of its own


# What None stands for. Targets: the same for all nine UCI sets. Log-variances start low, close to a plain network.
DEFAULTS: dict[str, dict[str, Any]] = {
    "classification": {
        "widths": (100,),
        "hyper": (50,),
        "samples": 1,
        "last_layer": "sample",
        "members": 5,
        "log_col": (-6.0,),
        "lam": 5e-6,
    },
    "regression": {
        "widths": (50,),
        "hyper": (20,),
        "samples": 5,
        "last_layer": "integrate",
        "members": 5,
        "log_col": (-4.0, -2.0),
        "lam": (3e-3, 1e-6),
    },
}
VB_DEFAULTS: dict[str, dict[str, Any]] = {
    "classification": {"hyper": (100,), "log_col": (-5.0,), "members": 2},
    "regression": {"members": 1},
}


def resolve(config: MLConfig | VBConfig, task: Task) -> MLConfig | VBConfig:
    """The config with the defaults of its task, checked."""
    defaults = DEFAULTS[task.kind]
    if isinstance(config, MLConfig):
        config = with_defaults(config, defaults)
        _check(config)
        _check_ml(config)
        return config
    config = with_defaults(config, defaults | VB_DEFAULTS[task.kind])
    _check(config)
    if config.objective not in ("elbo", "official", "joint"):
        raise ValueError(f"objective is {config.objective!r}: use one of elbo, official, joint")
    return config


def _check(config: Any) -> None:
    if config.samples < 1 or config.members < 1 or config.last_draws < 1:
        raise ValueError("samples, members and last_draws must be at least 1")
    if any(width < 1 for width in (*config.widths, *config.hyper)) or not config.hyper:
        raise ValueError(f"widths {config.widths} and hyper {config.hyper} must be positive, hyper not empty")
    if config.far < 0 or config.noise < 0:
        raise ValueError(
            f"far is {config.far} and noise {config.noise}: neither may be negative; "
            "0 turns far noise off and learns the noise"
        )
    for name, allowed in (
        ("parametrization", ("scaled", "paper")),
        ("activation", ("relu", "tanh")),
        ("basis", ("point", "map", "vmg")),
    ):
        if getattr(config, name) not in allowed:
            raise ValueError(f"{name} is {getattr(config, name)!r}: use one of {', '.join(allowed)}")


def _check_ml(config: Any) -> None:
    if config.basis == "vmg":
        raise ValueError("basis is 'vmg': a posterior over V needs vb-cdn")
    lam = config.lam if isinstance(config.lam, tuple) else (config.lam,)
    if len(lam) > 2 or min(lam) < 0 or (len(lam) == 2 and min(lam) == 0):
        raise ValueError(f"lam is {config.lam}: give one number >= 0, or two > 0 for a path")
