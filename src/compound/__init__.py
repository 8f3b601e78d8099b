"""Predictive uncertainty with compound density networks.

`import compound` is light: torch is imported with the first name that is used.
"""

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
    from compound.network import Head as Head
    from compound.network import PostHoc as PostHoc
    from compound.network import posthoc as posthoc
    from compound.predictive import CategoricalPredictive as CategoricalPredictive
    from compound.predictive import GaussianPredictive as GaussianPredictive
    from compound.predictive import Predictive as Predictive
    from compound.random import named_generator as named_generator
    from compound.train.config import TrainConfig as TrainConfig
    from compound.train.config import default_train_config as default_train_config
    from compound.train.holdout import holdout_weights as holdout_weights
    from compound.train.loop import fit as fit
    from compound.types import Batch as Batch
    from compound.types import Task as Task
    from compound.types import make_dataset as make_dataset

__version__ = "0.1.0"

_HOMES = {
    "Batch": "types",
    "CategoricalPredictive": "predictive",
    "CompoundClassifier": "estimators",
    "CompoundRegressor": "estimators",
    "GaussianPredictive": "predictive",
    "MatrixNormal": "distributions",
    "Head": "network",
    "Method": "models",
    "PostHoc": "network",
    "posthoc": "network",
    "Predictive": "predictive",
    "TrainConfig": "train.config",
    "Task": "types",
    "build": "models",
    "fit": "train.loop",
    "named_generator": "random",
    "holdout_weights": "train.holdout",
    "load": "estimators",
    "load_model": "models.files",
    "default_train_config": "train.config",
    "save_model": "models.files",
    "make_dataset": "types",
}

__all__ = [
    "Batch",
    "CategoricalPredictive",
    "CompoundClassifier",
    "CompoundRegressor",
    "GaussianPredictive",
    "Head",
    "MatrixNormal",
    "Method",
    "PostHoc",
    "Predictive",
    "Task",
    "TrainConfig",
    "build",
    "default_train_config",
    "fit",
    "holdout_weights",
    "load",
    "load_model",
    "make_dataset",
    "named_generator",
    "posthoc",
    "save_model",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'compound' has no attribute {name!r}")
    return getattr(import_module(f"compound.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
