"""Predictions on Ray Data: for a data set of any source, or for Parquet files, a file of answers for each.

Actors hold the model, which is sent to each of them once; batches stream through them. Files are divided into
parts of some row groups. The file of a part has a fixed name, appears when it is complete, and says in its
metadata what it was made from: a part that is tried again, by Ray or by the next command, is not written
twice.
"""

import json
import logging
import pickle
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from compound.estimators.base import Estimator
from compound.estimators.row_predictions import predict_frame
from compound.experiments.run_memory import PROCESS_BYTES
from compound.io.bundle import digest
from compound.io.paths import check_folder
from compound.ray.cluster import check_nodes, first_line, require_ray
from compound.ray.parts import (
    Part,
    PartResult,
    RemoteParquet,
    Request,
    absolute,
    check_schemas,
    find_files,
    plan_parts,
    predict_part,
    read_footer,
)
from compound.tables.frames import cast_frame
from compound.tables.model_inputs import check_finite, column_types, load_estimator
from compound.tables.streaming import CHUNK_ROWS, PredictSummary

FOOTER_THREADS = 16
BATCH_BYTES = 4000  # per row of a batch: encoded columns, draws
Callback = Callable[[int], None]  # called with the number of rows done


def predict_dataset(
    model: Any,
    ds: Any,
    *,
    coverage: float = 0.9,
    predictions_only: bool = False,
    actors: int | tuple[int, int] | None = None,
    cores: int = 1,
) -> Any:
    """Append predictions to the rows of a Ray data set.

    The model is sent to each actor once, batches stream, and nothing is computed before the result is
    consumed. Predictions of a row have the same bits as those of `compound predict`.

    Parameters
    ----------
    model : CompoundRegressor, CompoundClassifier, str or Path
        A fitted estimator, or the directory of a saved one.
    ds : ray.data.Dataset
        Rows with the model's columns; other columns are passed on.
    coverage : float, default=0.9
        Coverage of the prediction intervals or sets.
    predictions_only : bool, default=False
        Leave out the columns of `ds`.
    actors : int or tuple of (int, int), default=None
        Number of actors, or the smallest and largest number. None: from one to as many as there are cores.
    cores : int, default=1
        Cores, and threads, of each actor.

    Returns
    -------
    ray.data.Dataset
        Regression: mean, std, lower, upper. Classification: class, probability, set and the probability of
        each class. Both: aleatoric, epistemic, ood_score, is_ood.

    Raises
    ------
    ValueError
        If Ray is not installed, or the data set lacks a column of the model or has one of a prediction.

    Examples
    --------
    >>> import ray  # doctest: +SKIP
    >>> from compound.ray import predict_dataset  # doctest: +SKIP
    >>> ds = ray.data.read_parquet("s3://bucket/new/")  # doctest: +SKIP
    >>> predict_dataset("houses.model", ds).write_parquet("s3://bucket/answers/")  # doctest: +SKIP
    """
    ray = require_ray()
    estimator = load_estimator(Path(model)) if isinstance(model, str | Path) else model
    schema = ds.schema()
    check_schemas([("the data set", schema.base_schema)], estimator, predictions_only)
    return ds.map_batches(
        RowPredictor,
        fn_constructor_args=(_send_model(ray, estimator), coverage, predictions_only, cores),
        batch_size=CHUNK_ROWS,
        batch_format="pyarrow",
        zero_copy_batch=True,
        **_actor_options(ray, estimator, actors, cores),
    )


class RowPredictor:
    """An actor's work: predictions for batches of rows."""

    def __init__(self, model: list[Any], coverage: float, predictions_only: bool, threads: int):
        self.estimator = _receive_model(model, threads)
        self.types = column_types(self.estimator)
        self.coverage = coverage
        self.predictions_only = predictions_only

    def __call__(self, batch: pa.Table) -> pa.Table:
        """A batch with its predictions."""
        source = RemoteParquet("a batch of the data set")
        frame = cast_frame(source, batch.select(list(self.types)), self.types, 0)
        check_finite(source, frame)
        predictions = predict_frame(self.estimator, frame, self.coverage)
        table = pa.Table.from_pandas(predictions, preserve_index=False).replace_schema_metadata(None)
        if self.predictions_only:
            return table
        names = [*batch.column_names, *table.column_names]
        return pa.Table.from_arrays([*batch.columns, *table.columns], names=names)


class PartPredictor:
    """An actor's work: predictions for parts of files, written to files."""

    def __init__(self, model: list[Any], request: Request, threads: int):
        self.estimator = _receive_model(model, threads)
        self.request = request

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Predict the parts of a batch; an error of one is its result, so that the others go on."""
        columns = [batch[name].tolist() for name in Part._fields]
        results = [self._predict(Part(*part)) for part in zip(*columns, strict=True)]
        return {name: [getattr(result, name) for result in results] for name in PartResult._fields}

    def _predict(self, part: Part) -> PartResult:
        try:
            return predict_part(self.estimator, part, self.request)
        except (ValueError, OSError, pa.ArrowException) as error:
            return PartResult(part.source, part.rows, 0, f"{part.source}: {first_line(error)}")


class FilesPlan(NamedTuple):
    """Predictions of Parquet files, planned and checked."""

    parts: list[Part]
    out: str  # folder of the answers
    request: Request

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def local_paths(self) -> tuple[str, ...]:
        """What all nodes must see."""
        return tuple(path for path in (self.parts[0].source, self.out) if "://" not in path)


def plan_files(
    estimator: Estimator, pattern: str, out: str, coverage: float, predictions_only: bool
) -> FilesPlan:
    """Plan predictions for Parquet files, written to files of the same names in the folder `out`.

    `pattern` is a file, a folder, or a pattern such as data/*.parquet, on a disk that all nodes share or at
    an fsspec URL. All footers are read here; ValueError for what can be known before any work.
    """
    out = absolute(out)
    files = find_files(absolute(pattern), out)
    with ThreadPoolExecutor(FOOTER_THREADS) as pool:
        footers = list(pool.map(read_footer, files))
    check_schemas(
        [(file, footer.schema) for file, footer in zip(files, footers, strict=True)],
        estimator,
        predictions_only,
    )
    parts = plan_parts(footers, out)
    if not parts:
        raise ValueError(f"{pattern} holds no rows: give at least one")
    if "://" not in out:
        check_folder(Path(out))
    return FilesPlan(
        parts, out, Request(coverage, predictions_only, _digest(estimator, coverage, predictions_only))
    )


def predict_files(
    ray: Any,
    estimator: Estimator,
    plan: FilesPlan,
    callback: Callback,
    actors: int | tuple[int, int] | None = None,
    cores: int = 1,
) -> PredictSummary:
    """Write the predictions of a plan. Parts that are done already are kept.

    ValueError, after all others are done, if a part could not be predicted.
    """
    start = time.monotonic()
    if "://" not in plan.out:
        Path(plan.out).mkdir(parents=True, exist_ok=True)
    check_nodes(ray, plan.local_paths)
    results = _perform(ray, estimator, plan.parts, plan.request, actors, cores, callback)
    failed = [result for result in results if result.error]
    if failed:
        raise ValueError(
            f"{len(failed)} of {len(plan.parts)} parts could not be predicted, first {failed[0].error}; "
            f"the others are in {plan.out}, the same command goes on with the rest"
        )
    n_ood = sum(result.n_ood for result in results)
    return PredictSummary(plan.rows, n_ood, time.monotonic() - start)


def _perform(
    ray: Any,
    estimator: Estimator,
    parts: Sequence[Part],
    request: Request,
    actors: int | tuple[int, int] | None,
    cores: int,
    callback: Callback,
) -> list[PartResult]:
    """Predict the parts on actors; `callback` receives the number of rows done."""
    from ray import data

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    data.DataContext.get_current().enable_progress_bars = False
    items = [part._asdict() for part in parts]
    answers = data.from_items(items, override_num_blocks=len(items)).map_batches(
        PartPredictor,
        fn_constructor_args=(_send_model(ray, estimator), request, cores),
        batch_size=1,
        **_actor_options(ray, estimator, actors, cores),
    )
    results, rows = [], 0
    for row in answers.iter_rows():
        results.append(PartResult(**row))
        rows += results[-1].rows
        callback(rows)
    return results


class _Cores(NamedTuple):
    smallest: int
    largest: int


def _actor_options(
    ray: Any, estimator: Estimator, actors: int | tuple[int, int] | None, cores: int
) -> dict[str, Any]:
    """Options of `map_batches`: the pool of actors, and the cores and memory of each."""
    from ray.data import ActorPoolStrategy

    if actors is None:
        actors = (1, max(1, int(ray.cluster_resources().get("CPU", 1)) // cores))
    limits = _Cores(actors, actors) if isinstance(actors, int) else _Cores(*actors)
    numbers = sum(tensor.numel() for tensor in estimator.model_.state_dict().values())
    return {
        "compute": ActorPoolStrategy(min_size=limits.smallest, max_size=limits.largest),
        "num_cpus": cores,
        "memory": PROCESS_BYTES + 3 * 8 * numbers + CHUNK_ROWS * BATCH_BYTES,
    }


def _send_model(ray: Any, estimator: Estimator) -> list[Any]:
    """A reference to the estimator as bytes, from which each actor makes arrays of its own, to be written."""
    return [ray.put(pickle.dumps(estimator))]  # in a list: Ray would replace the reference itself


def _receive_model(model: list[Any], threads: int) -> Estimator:
    """The estimator of `_send_model`; torch takes so many threads from now on."""
    import ray
    import torch

    from compound.experiments.memory import keep_memory

    torch.set_num_threads(threads)
    keep_memory()
    estimator: Estimator = pickle.loads(ray.get(model[0]))
    return estimator


def _digest(estimator: Any, coverage: float, predictions_only: bool) -> str:
    """A digest of the model, and of what is asked of it."""
    options = [coverage, predictions_only, estimator.seed_, estimator.encoder_.to_config()]
    return digest(json.dumps(options), estimator.model_.state_dict())
