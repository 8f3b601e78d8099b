"""`compound explore`: a page that computes in the browser what Python predicts, and keeps text as text."""

import json
import re
import struct
import threading
import time
import urllib.request
from base64 import b64decode
from gzip import decompress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from browser import overflow, problems, resize, screenshot
from table_commands import TINY, assert_rejected, run, run_ok

from compound import load
from compound.estimators.browser import check_explorable
from compound.estimators.prediction import ood_scores
from compound.estimators.row_predictions import predict_frame
from compound.estimators.validation import encode_table
from compound.tables.explore.columns import controls, row_values
from compound.tables.explore.page import explore_page
from compound.tables.explore.server import page_server
from compound.tables.model_inputs import read_features

SCRIPT = "</script><script>window.hacked = 1</script>"
IMAGE = '<img src=x onerror="window.hacked = 1">'
NAMES = [SCRIPT, IMAGE, "$x^2$ 'a' \"b\" 😀", "ein Feld\nmit Zeilen"]
browser_group = pytest.mark.xdist_group("browser")


def hostile(rows: int, seed: int = 0) -> pd.DataFrame:
    """Columns and values that would break a page which takes them for HTML; times, gaps and rare values."""
    random = np.random.default_rng(seed)
    words = np.array([SCRIPT, IMAGE, "😀", "{{x}}", "&amp;"])
    table = pd.DataFrame({name: random.normal(size=rows).round(3) for name in NAMES[:2]})
    table[NAMES[2]] = random.choice(words, rows)
    table[NAMES[3]] = random.integers(0, 9, rows)
    seconds = random.integers(0, 800 * 86400, rows)
    table["when"] = pd.Timestamp("2023-03-05") + pd.to_timedelta(seconds, "s")
    table["truth"] = random.random(rows) < 0.5
    table["rare"] = np.where(random.random(rows) < 0.03, [f"r{i % 20}" for i in range(rows)], "common")
    table["constant"] = 7
    y = 3 * table[NAMES[0]] + (table[NAMES[2]] == SCRIPT) + table["when"].dt.hour / 6
    table["</title><b>y"] = (y + random.normal(0, 0.3, rows)).round(2)
    table.loc[random.random(rows) < 0.1, NAMES[1]] = np.nan
    return table


def wide(rows: int, seed: int = 0) -> pd.DataFrame:
    """More than 64 encoded columns, whose clusters have covariances; three classes."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 70)).round(2)
    score = x[:, 0] + 0.5 * x[:, 1] ** 2
    table = pd.DataFrame(x, columns=[f"v{i}" for i in range(70)])
    table["kind"] = np.select([score < 0, score < 1], ["low", "middle"], "high")
    return table


@pytest.fixture(scope="module")
def models(home: Path) -> dict[str, tuple[Path, Path]]:
    """Model and a table with its columns, by name: of every kind that the page computes."""
    hostile(300).to_csv(home / "hostile.csv", index=False)
    odd = hostile(40, seed=1)
    odd.loc[0, NAMES[0]] = 50.0  # far beyond the range
    odd.loc[1, NAMES[2]] = "never seen"
    odd.loc[2, NAMES[0]] = np.nan  # where training had no gap
    odd.loc[3, "when"] = pd.Timestamp("2031-01-01 12:00")
    odd.loc[4, "when"] = pd.NaT
    odd.loc[5, "rare"] = "r1"
    odd.loc[6, NAMES[2]] = np.nan
    odd.to_csv(home / "odd.csv", index=False)
    wide(300).to_csv(home / "wide.csv", index=False)
    deep = ("widths=[8,6]", "hyper=[5,4]", "activation=tanh", "last_layer=sample", "members=3")
    options = [word for option in deep for word in ("--option", option)]
    target = "</title><b>y"
    run_ok(
        "fit", home / "hostile.csv", "--target", target, "--epochs", 8, *options, "--out", home / "wild.model"
    )
    run_ok("fit", home / "wide.csv", "--target", "kind", "--out", home / "wide.model", *TINY)
    new = home / "new.csv"
    return {
        "price": (home / "price.model", new),
        "dear": (home / "dear.model", new),
        "wild": (home / "wild.model", home / "odd.csv"),
        "wide": (home / "wide.model", home / "wide.csv"),
    }


def open_page(driver: Any, path: Path) -> None:
    driver.get(path.as_uri())
    for _ in range(200):
        if driver.execute_script("return !!window.compoundExplorer"):
            return
        time.sleep(0.05)
    raise AssertionError(problems(driver))


def numbers(text: str) -> tuple[dict[str, Any], np.ndarray]:
    """What a page holds."""
    packed = re.findall(r'id="numbers">([^<]*)<', text)[0]
    content = decompress(b64decode(packed))
    (length,) = struct.unpack("<I", content[:4])
    return json.loads(content[4 : 4 + length]), np.frombuffer(content[4 + length + -length % 4 :], "<f4")


PREDICT = """
const e = compoundExplorer.engine, k = e.spec.coverages.indexOf(0.9);
return JSON.stringify(JSON.parse(arguments[0]).map((row) => {
  const { aleatoric, epistemic, ood_score, is_ood, mean, std, probs } = e.predict(row);
  const out = { aleatoric, epistemic, ood_score, is_ood };
  if (probs) return { ...out, probs, inside: e.set(probs, k) };
  const [lower, upper] = e.interval(e.predict(row), k);
  return { ...out, mean, std, lower, upper };
}));
"""


@browser_group
@pytest.mark.parametrize("name", ["price", "dear", "wild", "wide"])
def test_the_page_computes_what_python_predicts(models, driver: Any, name: str):
    folder, table = models[name]
    page = folder.with_suffix(".html")
    run_ok("explore", folder, table, "--out", page)
    resize(driver, 1100)
    open_page(driver, page)
    estimator = load(folder)
    rows = read_features(table, estimator).head(60)
    if name == "price":
        rows = pd.concat([rows, rows.head(1).assign(size=1e6), rows.head(1).assign(city="Bonn")])
        rows = rows.reset_index(drop=True)
    values = row_values(estimator.encoder_, rows)
    found = json.loads(driver.execute_script(PREDICT, json.dumps(values)))
    expected = predict_frame(estimator, rows)
    columns = {key: np.array([one[key] for one in found]) for key in found[0]}
    assert columns.pop("is_ood").tolist() == expected["is_ood"].tolist()
    if "probs" in columns:
        classes = [str(label) for label in estimator.classes_]
        probs = expected[[f"p({label})" for label in classes]].to_numpy()
        assert np.abs(columns.pop("probs") - probs).max() < 1e-4
        inside = estimator.predict_set(rows, 0.9)
        assert (columns.pop("inside") == inside).mean() > 0.99  # a probability on the edge may round
    # the epistemic part is rounded to float32 in Python, and the score may depend steeply on it
    x, epistemic = encode_table(estimator, rows), torch.tensor(expected["epistemic"].to_numpy())
    rounding = 1e-6 * torch.tensor(np.asarray(expected.get("std", 1.0)) ** 2 * np.ones(len(rows)))
    low, high = (ood_scores(estimator.ood_detector_, x, epistemic + d) for d in (-rounding, rounding))
    error = np.abs(columns.pop("ood_score") - expected["ood_score"])
    assert (error <= 1e-4 * np.maximum(expected["ood_score"], 1) + (high - low).abs().numpy()).all()
    least = {}  # what errors are compared with where a number is smaller
    least |= dict.fromkeys(("mean", "std", "lower", "upper"), expected.get("std", 0))
    for part in ("aleatoric", "epistemic"):  # differences of larger numbers: they round
        least[part] = 0.1 * (expected["std"] ** 2 if "std" in expected else 1.0)
    for key, computed in columns.items():
        size = np.maximum(np.abs(expected[key]), least[key])
        assert (np.abs(computed - expected[key]) / size).max() < 1e-4, key
    assert len(expected) < 10 or expected["is_ood"].any() or name in ("dear", "wide")


@browser_group
def test_sliders_and_menus_change_the_numbers_to_those_of_python(models, driver: Any, tmp_path: Path):
    folder, table = models["price"]
    run_ok("explore", folder, table, "--out", tmp_path / "page.html")
    open_page(driver, tmp_path / "page.html")
    estimator = load(folder)
    row = read_features(table, estimator).head(1)

    def act(script: str) -> dict[str, Any]:
        """Change a control as a hand would; the answer that is shown then."""
        driver.execute_script(f"const find = (s) => document.querySelector(s); {script}")
        driver.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0], 0))")
        text = driver.execute_script("return document.getElementById('answer').innerText")
        answer = driver.execute_script(
            "const {mean, std, lower, upper, ood_score} = compoundExplorer.answer;"
            "return {mean, std, lower, upper, ood_score}"
        )
        return {"text": text, **answer}

    def check(answer: dict[str, Any], expected: pd.DataFrame, coverage: float = 0.9) -> None:
        python = predict_frame(estimator, expected, coverage).iloc[0]
        for key in ("mean", "std", "lower", "upper", "ood_score"):
            assert answer[key] == pytest.approx(python[key], abs=1e-4 * max(1.0, python["std"])), key
        assert f"{python['mean']:.4g}" in answer["text"].replace(",", "")

    check(act(""), row)
    moved = row.assign(size=70.0)
    event = ".dispatchEvent(new Event('input'))"
    check(act(f"const s = find('input[aria-label=size]'); s.value = 70; s{event}"), moved)
    moved = moved.assign(city="Rom")
    index = "[...s.options].findIndex((o) => o.text === 'Rom')"
    change = "s.dispatchEvent(new Event('change'))"
    check(act(f"const s = find('select[aria-label=city]'); s.value = {index}; {change}"), moved)
    moved = moved.assign(weight=np.nan)
    box = "compoundExplorer.controls[1].card.querySelector('input[type=checkbox]')"
    check(act(f"const b = {box}; b.checked = true; b.dispatchEvent(new Event('change'))"), moved)
    moved = moved.assign(size=1234.5)
    check(act(f"const n = find('input[aria-label=\"size, number\"]'); n.value = 1234.5; n{event}"), moved)
    last = "const c = find('#coverage'); c.value = 3; c.dispatchEvent(new Event('change'))"
    check(act(last), moved, 0.95)


@browser_group
@pytest.mark.parametrize("name", ["dear", "wild", "wide"])
def test_pages_fit_the_window_and_text_stays_text(models, driver: Any, tmp_path: Path, name: str):
    folder, table = models[name]
    run_ok("explore", folder, table, "--out", tmp_path / "page.html")
    for width, dark in ((1100, False), (400, True)):
        resize(driver, width, dark=dark)
        open_page(driver, tmp_path / "page.html")
        driver.execute_async_script("setTimeout(arguments[0], 150)")  # until the curve is there
        assert overflow(driver) <= 0, width
        assert not problems(driver)
        assert driver.execute_script("return document.querySelector('#curve svg') !== null")
        paper = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(20, 24, 31)") is dark
        driver.execute_script("document.querySelector('button.theme').click()")
        assert paper != driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert driver.execute_script("return performance.getEntriesByType('resource').length") == 0
    if name == "wild":
        assert driver.execute_script("return window.hacked") is None
        assert driver.execute_script("return document.querySelectorAll('img, b').length") == 1  # the gauge's
        shown = driver.execute_script("return document.body.textContent")
        for text in (SCRIPT, IMAGE, NAMES[2], "</title><b>y"):
            assert text in shown
    screenshot(driver, tmp_path / "page.png", 800)
    assert (tmp_path / "page.png").stat().st_size > 10_000


def test_training_rows_are_in_the_page_only_if_wanted(models):
    folder, _ = models["price"]
    estimator = load(folder)
    page = explore_page(folder)
    head, floats = numbers(page)
    sample = estimator.ood_detector_.sample.numpy().ravel()
    place = head["program"]["detector"]["sample"]
    assert np.array_equal(floats[place["at"] : place["at"] + sample.size], sample)
    assert f"holds {len(estimator.ood_detector_.sample)} training rows" in page
    bare = explore_page(folder, prototypes=False)
    head, floats = numbers(bare)
    assert head["program"]["detector"]["sample"] is None and head["rows"] == []
    row = estimator.ood_detector_.sample[5].numpy()
    windows = np.lib.stride_tricks.sliding_window_view(floats, len(row))
    assert not (windows == row).all(1).any()
    assert "holds no training rows" in bare and len(bare) < len(page)


def test_rows_of_a_table_are_in_the_page_as_they_were_read(models):
    folder, table = models["wild"]
    head, _ = numbers(explore_page(folder, table))
    columns = head["columns"]
    read = read_features(table, load(folder))
    assert len(head["rows"]) == len(read) == 40
    for i, column in enumerate(columns):
        if column["kind"] == "number":
            values = [np.nan if row[i] is None else row[i] for row in head["rows"]]
            assert np.array_equal(values, read.iloc[:, i], equal_nan=True)
    labels = [column["options"][row[i]]["label"] for i, column in enumerate(columns) for row in head["rows"]
              if column["name"] == NAMES[2]]  # fmt: skip
    assert labels[1] == "a value never seen" and labels[6] == "missing" and labels[0] == read[NAMES[2]][0]


def test_histograms_count_the_sample(models):
    estimator = load(models["price"][0])
    size = next(column for column in controls(estimator) if column["name"] == "size")
    assert sum(size["histogram"]) == len(estimator.ood_detector_.sample)
    assert size["low"] < size["number"]["low"] < size["usual"] < size["number"]["high"] < size["high"]


def test_models_that_a_browser_cannot_compute_are_refused_in_a_sentence(home: Path, here: Path):
    run_ok(
        "fit",
        home / "houses.csv",
        "--target",
        "price",
        "--method",
        "map",
        "--epochs",
        1,
        "--out",
        "map.model",
    )
    assert_rejected(run("explore", "map.model"), "'map'", "'ml-cdn'", "--method ml-cdn")
    estimator = load(home / "dear.model")
    estimator.model_.likelihood.integrate = True
    with pytest.raises(ValueError, match="last_layer=sample"):
        check_explorable(estimator, "dear.model")
    assert_rejected(run("explore", home / "price.model", home / "none.csv"), "none.csv")
    assert_rejected(run("explore", home / "price.model", "--out", here), str(here))
    assert sorted(path.name for path in here.iterdir()) == ["map.model"]


def test_the_page_is_served_on_this_machine_alone():
    server = page_server("<p>ü</p>", 0)
    assert server.server_address[0] == "127.0.0.1"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_port}/"
        assert urllib.request.urlopen(address).read().decode() == "<p>ü</p>"
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            urllib.request.urlopen(address + "etc/passwd")
        refused.value.close()
        with pytest.raises(ValueError, match="--port"):
            page_server("", server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
