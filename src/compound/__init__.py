"""Predictive uncertainty with compound density networks: `import compound` is light, torch comes with the first name you use."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compound.distributions import MatrixNormal as MatrixNormal
    from compound.estimators import CompoundClassifier as CompoundClassifier
    from compound.estimators import CompoundRegressor as CompoundRegressor
    from compound.estimators import load as load
    from compound.models import Method as Method
    from compound.models import build as build
    from compound.models.files import load_model as load_model
    from compound.models.files import save_model as save_model
    from compound.predictive import CategoricalPredictive as CategoricalPredictive
    from compound.predictive import GaussianPredictive as GaussianPredictive
    from compound.predictive import Predictive as Predictive
    from compound.train import Settings as Settings
    from compound.train import fit as fit
    from compound.train import hold_out as hold_out
    from compound.train import recipe as recipe
    from compound.types import Batch as Batch
    from compound.types import Task as Task
    from compound.types import fork as fork
    from compound.types import whole as whole

__version__ = "0.1.0"

_HOMES = {
    "Batch": "types",
    "CategoricalPredictive": "predictive",
    "CompoundClassifier": "estimators",
    "CompoundRegressor": "estimators",
    "GaussianPredictive": "predictive",
    "MatrixNormal": "distributions",
    "Method": "models",
    "Predictive": "predictive",
    "Settings": "train",
    "Task": "types",
    "build": "models",
    "fit": "train",
    "fork": "types",
    "hold_out": "train",
    "load": "estimators",
    "load_model": "models.files",
    "recipe": "train",
    "save_model": "models.files",
    "whole": "types",
}

__all__ = [
    "Batch",
    "CategoricalPredictive",
    "CompoundClassifier",
    "CompoundRegressor",
    "GaussianPredictive",
    "MatrixNormal",
    "Method",
    "Predictive",
    "Settings",
    "Task",
    "build",
    "fit",
    "fork",
    "hold_out",
    "load",
    "load_model",
    "recipe",
    "save_model",
    "whole",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'compound' has no attribute {name!r}")
    return getattr(import_module(f"compound.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
