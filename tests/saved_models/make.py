"""Saves the models of this folder; run with the library of an earlier commit.

    git archive d7444d9 src | tar x -C ../earlier
    PYTHONPATH=../earlier/src python tests/saved_models/make.py layout-7

For each model the folder has its directory, and beside it what it answered for the first rows of its table.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from compound import CompoundClassifier, CompoundRegressor, Method

HERE = Path(__file__).parent
TINY = Method("ml-cdn", widths=(4,), hyper=(3,), members=2)


def table() -> pd.DataFrame:
    """Numbers with a gap, words, and three things to predict."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 2)).round(3)
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "word": rng.choice(["p", "q", "r"], 240)})
    frame.loc[::30, "b"] = np.nan
    frame["number"] = (x[:, 0] + 0.3 * rng.normal(size=240)).round(3)
    frame["grade"] = np.where(x[:, 0] + 0.5 * rng.normal(size=240) > 0, "high", "low")
    frame["count"] = rng.poisson(np.exp(1 + 0.5 * x[:, 0]))
    return frame


def answers(model: object, rows: pd.DataFrame) -> dict[str, np.ndarray]:
    """What a model says of rows: predictions, intervals or sets, parts of uncertainty, OOD scores."""
    out = {"ood_score": model.ood_score(rows), "epistemic": model.decompose(rows).epistemic}
    if isinstance(model, CompoundClassifier):
        return out | {"probs": model.predict_proba(rows), "set": model.predict_set(rows)}
    return out | {"mean": model.predict(rows), "bounds": np.stack(model.predict_interval(rows), -1)}


def main(folder: Path) -> None:
    frame = table()
    x = frame[["a", "b", "word"]]
    fast = {"max_epochs": 4, "random_state": 0}
    models = {
        "regressor": CompoundRegressor(TINY, **fast).fit(x, frame["number"]),
        "classifier": CompoundClassifier(TINY, **fast).fit(x, frame["grade"]),
    }
    if folder.name != "layout-7":
        counts = CompoundRegressor(TINY, target_kind="negative-binomial", validation_fraction=0.8, **fast)
        models["counts"] = counts.fit(x, frame["count"], groups="word")
    folder.mkdir(exist_ok=True)
    for name, model in models.items():
        model.save(folder / name)
        np.savez_compressed(folder / f"{name}.npz", **answers(model, x.head(20)))


if __name__ == "__main__":
    main(HERE / sys.argv[1])
