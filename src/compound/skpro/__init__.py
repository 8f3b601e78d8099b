"""The estimators behind skpro's interface for probabilistic regression, and so sktime's: extra `skpro`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compound.skpro.distribution import PredictiveDistribution as PredictiveDistribution
    from compound.skpro.regressor import CompoundProbaRegressor as CompoundProbaRegressor

_HOMES = {"CompoundProbaRegressor": "regressor", "PredictiveDistribution": "distribution"}
__all__ = ["CompoundProbaRegressor", "PredictiveDistribution"]


def __getattr__(name: str) -> Any:
    """Names are resolved on first use; ImportError, in a sentence, where skpro is not installed."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import_module("skpro")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"compound.skpro.{name} needs skpro, which is not installed: pip install 'compound-torch[skpro]'"
        ) from error
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
