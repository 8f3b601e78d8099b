"""Grids of runs, predictions and serving on a Ray cluster (extra `ray`).

cluster    connecting to a cluster, or starting one on this machine
watcher    ends the processes of such a one when its command has ended, also by SIGKILL
grid       the runs of an experiment, each as a task with its own cores and memory
storage    results and checkpoints through an fsspec path, where nodes share no folder
predict    predictions for Ray Data sets, and for Parquet files (parts)
serve      a deployment that answers rows in batches
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compound.ray.predict import predict_dataset as predict_dataset

__all__ = ["predict_dataset"]


def __getattr__(name: str) -> object:
    if name == "predict_dataset":
        from compound.ray.predict import predict_dataset

        return predict_dataset
    raise AttributeError(f"module 'compound.ray' has no attribute {name!r}")
