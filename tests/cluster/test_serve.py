"""Serving: requests in one batch get the predictions of their rows, and wrong ones a sentence."""

import json
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pandas as pd
import pytest
import ray_tables

from compound.estimators.row_predictions import predict_frame
from compound.ray.serve import Predictor, deployment

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_serve" / "serve_houses.py"


def ask(port: int, body: dict) -> dict:
    request = Request(f"http://127.0.0.1:{port}/", json.dumps(body).encode())
    try:
        with urlopen(request, timeout=100) as answer:
            return json.load(answer)
    except HTTPError as error:
        with error:
            return {"status": error.code, **json.load(error)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("serve") / "model"
    ray_tables.fitted().save(path)
    return path


def measure_load(url: str, *options: str) -> dict:
    """What the example's second process measures."""
    types = json.dumps({"size": "number", "age": "number", "kind": "text"})
    command = [sys.executable, str(EXAMPLE), "--load", url, "--types", types, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    return json.loads(done.stdout)  # of a process without Ray


def bodies() -> list[dict]:
    rows = ray_tables.rows(9, 5).drop(columns="id").to_dict("records")
    return [{"rows": rows[:4]}, {"rows": rows[4:]}]


def expected(model: Path) -> list[dict]:
    from compound.estimators import load

    return predict_frame(load(model), ray_tables.rows(9, 5).drop(columns="id")).to_dict("records")


def test_rows_of_one_batch_are_those_of_each_request(model: Path):
    answers = Predictor(str(model), 0.9, 1).predict([*bodies(), {"rows": []}])
    assert [len(answer.get("predictions", [])) for answer in answers] == [4, 5, 0]
    assert [*answers[0]["predictions"], *answers[1]["predictions"]] == expected(model)
    assert "at least one row" in answers[2]["error"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"colour": 1}], "the model has no column 'colour': it reads size, age, kind"),
        ([{"size": "large"}], "column 'size' must hold numbers"),
        ([3], "the body must be"),
        ([{}] * 10_001, "10,001 rows are too many"),
    ],
)
def test_wrong_requests_get_a_sentence_and_others_their_answers(model: Path, rows: list, message: str):
    wrong, right = Predictor(str(model), 0.9, 1).predict([{"rows": rows}, bodies()[0]])
    assert message in wrong["error"]
    assert right["predictions"] == expected(model)[:4]


def test_missing_values_are_those_of_a_table(model: Path):
    from compound.estimators import load

    (answer,) = Predictor(str(model), 0.9, 1).predict([{"rows": [{"size": 0.5, "age": None}]}])
    frame = pd.DataFrame({"size": [0.5], "age": [float("nan")], "kind": pd.Series([None], dtype=object)})
    assert answer["predictions"] == predict_frame(load(model), frame).to_dict("records")


def test_deployment_answers_over_http(ray: Any, model: Path):
    from ray import serve

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    try:
        serve.run(deployment(model, replicas=2, cores=1))
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(partial(ask, port), [*bodies() * 3, {"row": 1}]))
        load = measure_load(f"http://127.0.0.1:{port}/", "--seconds", "1", "--clients", "4", "--rows", "3")
    finally:
        serve.shutdown()
    for i in range(3):
        parts = answers[2 * i]["predictions"], answers[2 * i + 1]["predictions"]
        assert [*parts[0], *parts[1]] == expected(model)
    assert answers[-1]["status"] == 400
    assert load["requests"] >= 4 and load["errors"] == 0
    assert 0 < load["milliseconds"]["p50"] <= load["milliseconds"]["p99"]
