"""Options of the Laplace approximation."""

from dataclasses import dataclass
from typing import Literal

from compound.models.network_model import NetworkConfig


@dataclass(frozen=True)
class LaplaceConfig(NetworkConfig):
    """Options of `laplace`.

    Parameters
    ----------
    precision : float, default=1.0
        δ, prior precision in training, and initial value of its tuning.
    subset : {'all', 'last'}, default='all'
        Layers that have a posterior; others stay at θ*.
    structure : {'kron', 'full'}, default='kron'
        Form of the curvature; 'full' only where subset is 'last'.
    damping : {'exact', 'factored'}, default='exact'
        δ added to A ⊗ G, or √δ to each factor.
    tune : {'marglik', 'none'}, default='marglik'
        Prior precisions and learnt noise by the evidence, or as in training.
    predictive : {'linear', 'sample', 'closed'}, default='linear'
        Draws of f ('linear'), draws of networks ('sample'), or probit or a Gaussian ('closed').
    """

    precision: float = 1.0
    subset: Literal["all", "last"] = "all"
    structure: Literal["kron", "full"] = "kron"
    damping: Literal["exact", "factored"] = "exact"
    tune: Literal["marglik", "none"] = "marglik"
    predictive: Literal["linear", "sample", "closed"] = "linear"


def check(config: LaplaceConfig) -> None:
    """Raise ValueError for values that are unknown, or that cannot be combined."""
    choices = {
        "subset": ("all", "last"),
        "structure": ("kron", "full"),
        "damping": ("exact", "factored"),
        "tune": ("marglik", "none"),
        "predictive": ("linear", "sample", "closed"),
    }
    for name, allowed in choices.items():
        if getattr(config, name) not in allowed:
            raise ValueError(
                f"{name} is {getattr(config, name)!r}: use one of {', '.join(map(repr, allowed))}"
            )
    if not config.precision > 0:
        raise ValueError(
            f"precision is {config.precision}: the posterior needs a prior, give a number above 0"
        )
    if config.structure == "full" and config.subset == "all":
        raise ValueError(
            "structure is 'full' with subset 'all': use subset='last', all layers together would be too large"
        )
    if config.structure == "full" and config.damping == "factored":
        raise ValueError("damping is 'factored' with structure 'full': there are no factors, use 'exact'")
