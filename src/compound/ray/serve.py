"""A Ray Serve deployment of a saved model: rows as JSON, answered in batches by several replicas.

    POST /  {"rows": [{"size": 3, "kind": "house"}, ...]}    ->    {"predictions": [{"mean": ..., ...}, ...]}

Rows of requests that arrive within `wait_seconds` are predicted together; a row's prediction has the same
bits whatever it shares its batch with.
"""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from compound.estimators.row_predictions import predict_frame
from compound.tables.model_inputs import column_types, load_estimator

MAX_REQUESTS = 64  # in one batch
MAX_ROWS = 10_000  # of one request
WAIT_SECONDS = 0.01


class Predictor:
    """A replica: holds the model, and predicts the rows of several requests at once."""

    def __init__(self, model: str, coverage: float, threads: int):
        import torch

        from compound.experiments.memory import keep_memory

        torch.set_num_threads(threads)
        keep_memory()
        self.estimator = load_estimator(Path(model))
        self.types = column_types(self.estimator)
        self.coverage = coverage

    def predict(self, requests: list[Any]) -> list[Any]:
        """The answers to the bodies of some requests; {"error": ...} for one of another form."""
        frames: list[pd.DataFrame | str] = [self._frame(request) for request in requests]
        tables = [frame for frame in frames if isinstance(frame, pd.DataFrame)]
        if not tables:
            return [{"error": frame} for frame in frames]
        try:
            predictions = predict_frame(self.estimator, pd.concat(tables, ignore_index=True), self.coverage)
        except (ValueError, TypeError) as error:
            if len(requests) > 1:  # one of them is wrong: each alone
                return [self.predict([request])[0] for request in requests]
            return [{"error": str(error).splitlines()[0]}]
        answers, start = [], 0
        for frame in frames:
            if isinstance(frame, str):
                answers.append({"error": frame})
                continue
            part = predictions.iloc[start : start + len(frame)]
            start += len(frame)
            answers.append({"predictions": part.to_dict("records")})
        return answers

    def _frame(self, request: Any) -> "pd.DataFrame | str":
        """The rows of a request with the model's columns, missing ones empty; a sentence if it has none."""
        rows = request.get("rows") if isinstance(request, dict) else None
        if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
            return 'the body must be {"rows": [{column: value, ...}, ...]} with at least one row'
        if len(rows) > MAX_ROWS:
            return f"{len(rows):,} rows are too many: send at most {MAX_ROWS:,}"
        unknown = {name for row in rows for name in row} - set(self.types)
        if unknown:
            return f"the model has no column {sorted(unknown)[0]!r}: it reads {', '.join(self.types)}"
        columns = {}
        for name, kind in self.types.items():
            values = pd.Series([row.get(name) for row in rows])
            if kind == "time":
                columns[name] = pd.to_datetime(values, errors="coerce")
            elif kind == "text":
                columns[name] = values.astype("object")
            else:
                numbers = pd.to_numeric(values, errors="coerce")
                if bool((numbers.isna() & values.notna()).any()):
                    return f"column {name!r} must hold numbers"
                columns[name] = numbers.astype("float64")
        return pd.DataFrame(columns)


def config(model: str | Path, replicas: int = 2) -> str:
    """The configuration with which `serve run FILE` serves a saved model; ValueError if there is none."""
    load_estimator(Path(model))
    arguments = {"model": str(Path(model).absolute()), "replicas": replicas}
    application = {"name": "compound", "route_prefix": "/", "args": arguments}
    path = f"{__name__}:{build_application.__name__}"
    return json.dumps({"applications": [{**application, "import_path": path}]}, indent=1) + "\n"  # is YAML


def build_application(arguments: dict[str, Any]) -> Any:
    """The application of a configuration: `arguments` are those of `deployment`, by name."""
    return deployment(**arguments)


def deployment(
    model: str | Path,
    *,
    replicas: int = 2,
    cores: int = 1,
    coverage: float = 0.9,
    max_requests: int = MAX_REQUESTS,
    wait_seconds: float = WAIT_SECONDS,
) -> Any:
    """A Ray Serve application for a saved estimator.

    Parameters
    ----------
    model : str or Path
        Directory of the model, which every node sees.
    replicas : int, default=2
        Processes that hold the model.
    cores : int, default=1
        Cores, and threads, of each.
    coverage : float, default=0.9
        Coverage of the prediction intervals or sets.
    max_requests : int, default=64
        Requests that are predicted together, at most.
    wait_seconds : float, default=0.01
        How long the first of them waits for others.

    Returns
    -------
    ray.serve.Application
        For `ray.serve.run`.

    Raises
    ------
    ValueError
        If Ray is not installed, or the model cannot be loaded.

    Examples
    --------
    >>> from ray import serve  # doctest: +SKIP
    >>> from compound.ray.serve import deployment  # doctest: +SKIP
    >>> serve.run(deployment("houses.model", replicas=2))  # doctest: +SKIP
    """
    from compound.ray.cluster import require_ray

    require_ray()
    from ray import serve
    from starlette.requests import Request
    from starlette.responses import JSONResponse

    path = str(Path(model).absolute())
    load_estimator(Path(path))  # refused here, not on a node

    class Model:
        """The deployment: HTTP in, batches to a `Predictor`."""

        def __init__(self) -> None:
            self.predictor = Predictor(path, coverage, cores)

        @serve.batch(max_batch_size=max_requests, batch_wait_timeout_s=wait_seconds)
        async def answer(self, bodies: list[Any]) -> list[Any]:
            return self.predictor.predict(bodies)

        async def __call__(self, request: Request) -> JSONResponse:
            try:
                body = await request.json()
            except ValueError:
                body = None
            result = await self.answer(body)
            return JSONResponse(result, status_code=400 if "error" in result else 200)

    Model.__call__.__annotations__ = {"request": Request, "return": JSONResponse}
    deploy: Any = serve.deployment(
        name="compound",
        num_replicas=replicas,
        ray_actor_options={"num_cpus": cores},
        max_ongoing_requests=4 * max_requests,
    )
    return deploy(Model).bind()
