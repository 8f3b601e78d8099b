"""What `is_ood` and `ood_score` show on fourteen real tables, after short fits.

    python tests/measurements/ood_tables.py out.jsonl [tables ...] [--epochs 3] [--max-rows 10000]

One line of JSON per table; tables that the file has are skipped, and a page is printed at the end. Measured:
false alarms on test rows; the proportion flagged of test rows with one value changed (an unseen category, a
number beyond the range by half its width, a gap in a column that never had one, a number 1e6 standard
deviations out); AUROC of held-out groups of rows against ordinary test rows, beside that of the mean distance
of the 5 nearest training rows (Euclidean, of encoded rows) and of the whitened distance alone.
"""

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors

from compound import CompoundClassifier, CompoundRegressor
from compound.datasets.tables import TABLES, Split, load
from compound.estimators.columns import is_categorical
from compound.estimators.row_predictions import predict_frame
from compound.estimators.validation import encode_table

RATE = 0.01
CHANGED = 40  # test rows that a value is changed in, for each column
OUTLIERS = 1000  # rows of a held-out group, at most
FRACTION = (0.03, 0.3)  # of the rows, in a held-out group


def fit(name: str, x: pd.DataFrame, y: np.ndarray, epochs: int) -> Any:
    kind = CompoundRegressor if TABLES[name].kind == "regression" else CompoundClassifier
    return kind(max_epochs=epochs, false_positive_rate=RATE, random_state=0).fit(x, y)


def changed_rows(split: Split) -> dict[tuple[str, str], pd.DataFrame]:
    """Test rows with one value changed, by kind of change and column."""
    base = split.x_test.iloc[:CHANGED].reset_index(drop=True)
    out = {}
    for name in split.x:
        column, test = split.x[name], split.x_test[name]
        if is_categorical(column):
            if test.dropna().isin(set(column)).all():  # where test rows bring new ones, they are ordinary
                out["unseen category", name] = base.assign(**{name: "never seen"})
        elif column.max() > column.min():
            half = 0.5 * (column.max() - column.min())
            out["half a width above", name] = base.assign(**{name: column.max() + half})
            out["half a width below", name] = base.assign(**{name: column.min() - half})
            out["1e6 deviations", name] = base.assign(**{name: column.mean() + 1e6 * column.std()})
        if not column.isna().any() and not test.isna().any():
            out["gap", name] = base.assign(**{name: None if is_categorical(column) else np.nan})
    return out


def changes(model: Any, split: Split) -> dict[str, Any]:
    """Proportions flagged, of the worst column of each kind; and whether predictions stayed within bounds."""
    frames = changed_rows(split)
    table = pd.concat(frames.values(), ignore_index=True)
    predictions = predict_frame(model, table)
    keys = [key for key, frame in frames.items() for _ in range(len(frame))]
    kinds = pd.Series([kind for kind, _ in keys])
    flagged = predictions["is_ood"].groupby([kinds, [column for _, column in keys]]).mean()
    result: dict[str, Any] = {}
    for kind in kinds.unique():
        worst = flagged[kind]
        result[kind] = {
            "columns": len(worst),
            "lowest": float(worst.min()),
            "below 90%": worst[worst < 0.9].to_dict(),
        }
    if "mean" in predictions:
        width = np.ptp(split.y)
        inside = predictions["mean"].between(split.y.min() - width, split.y.max() + width)
        finite = np.isfinite(predictions[["lower", "upper", "std"]]).all(axis=1)
        result["sane"] = bool((inside & finite).all())
    return result


def groups(x: pd.DataFrame, generator: np.random.Generator) -> list[tuple[str, str, Any]]:
    """One category, and the upper or lower end of one number; of a table without categories two numbers."""
    low, high = FRACTION
    categories, numbers = [], []
    for name in x:
        column = x[name]
        if is_categorical(column):
            share = column.value_counts(normalize=True)
            share = share[(share > low) & (share < high)]
            if len(share):
                categories.append((name, "=", share.index[int(generator.integers(len(share)))]))
        else:
            for sign, value in ((">", column.quantile(0.9)), ("<", column.quantile(0.1))):
                if low < (column > value if sign == ">" else column < value).mean() < high:
                    numbers.append((name, sign, float(value)))
    generator.shuffle(categories)
    generator.shuffle(numbers)
    return categories[:1] + numbers[: 1 if categories else 2]


def members(x: pd.DataFrame, group: tuple[str, str, Any]) -> np.ndarray:  # (rows,)
    name, sign, value = group
    column = x[name]
    return (column == value if sign == "=" else column > value if sign == ">" else column < value).to_numpy()


def held_out_group(name: str, split: Split, group: tuple[str, str, Any], drop: bool, epochs: int) -> dict:
    """AUROC of a group against ordinary test rows; with `drop` the column that defines it is removed."""
    cut = split.x.drop(columns=group[0]) if drop else split.x
    test = split.x_test[cut.columns]
    inside, test_inside = members(split.x, group), members(split.x_test, group)
    train = cut[~inside].reset_index(drop=True)
    model = fit(name, train, split.y[~inside], epochs)
    outliers = pd.concat([cut[inside], test[test_inside]]).iloc[:OUTLIERS]
    rows = pd.concat([test[~test_inside], outliers], ignore_index=True)
    label = np.arange(len(rows)) >= (~test_inside).sum()
    encoded = encode_table(model, rows)
    neighbours = NearestNeighbors(n_neighbors=5).fit(encode_table(model, train))
    near = neighbours.kneighbors(encoded)[0]
    score = model.ood_score(rows)
    scores = {
        "joint": score,
        "kNN": near.mean(1),
        "fifth": near[:, -1],
        "distance": model.ood_detector_.distance(encoded),
    }
    return {
        "group": " ".join(map(str, group)) + (", column dropped" if drop else ""),
        "rows": [int((~label).sum()), int(label.sum())],
        **{key: float(roc_auc_score(label, value)) for key, value in scores.items()},
        "error": difference_error(label, score, near.mean(1)),
        "flagged": float((score > model.threshold_)[label].mean()),
        "false alarms": float((score > model.threshold_)[~label].mean()),
    }


def difference_error(label: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """Standard error of the difference of two AUROCs on the same rows (DeLong 1988)."""
    parts = []
    for score in (a, b):
        ordinary, odd = np.sort(score[~label]), np.sort(score[label])
        below = [np.searchsorted(ordinary, score[label], side) / len(ordinary) for side in ("left", "right")]
        above = [1 - np.searchsorted(odd, score[~label], side) / len(odd) for side in ("left", "right")]
        parts.append((np.mean(below, 0), np.mean(above, 0)))
    return float(np.sqrt(sum(np.var(p - q) / len(p) for p, q in zip(*parts, strict=True))))


def measure(name: str, epochs: int, max_rows: int) -> dict[str, Any]:
    start = time.process_time()
    split = load(name, 0, max_rows=max_rows)
    model = fit(name, split.x, split.y, epochs)
    seconds = time.process_time() - start
    score = model.ood_score(split.x_test)
    result = {
        "table": name,
        "rows": len(split.x),
        "test rows": len(score),
        "encoded": model.encoder_.width,
        "false alarms": float((score > model.threshold_).mean()),
        "fit seconds": seconds,
        "changes": changes(model, split),
        "groups": [],
    }
    for group in groups(split.x, np.random.default_rng([1, len(split.x)])):
        for drop in (False, True):
            result["groups"].append(held_out_group(name, split, group, drop, epochs))
    return result


def page(results: list[dict[str, Any]]) -> str:
    kinds = ("unseen category", "half a width above", "half a width below", "gap", "1e6 deviations")
    lines = [
        f"| table | test rows | false alarms | {' | '.join(kinds)} | predictions sane |",
        "| --- " * (4 + len(kinds)) + "|",
    ]
    for r in results:
        cells = [
            f"{c['lowest']:.0%} of {c['columns']}" if (c := r["changes"].get(kind)) else "" for kind in kinds
        ]
        sane = {True: "yes", False: "no"}.get(r["changes"].get("sane"), "")
        lines.append(
            f"| {r['table']} | {r['test rows']} | {r['false alarms']:.2%} | {' | '.join(cells)} | {sane} |"
        )
    lines += [
        "",
        "| table, group | ordinary, outliers | `ood_score` | kNN, mean of 5 | kNN, 5th | whitened distance | "
        "joint - kNN mean | flagged | false alarms |",
        "| --- " * 9 + "|",
    ]
    for r in results:
        for g in r["groups"]:
            gain = f"{g['joint'] - g['kNN']:+.3f} ± {g['error']:.3f}"
            lines.append(
                f"| {r['table']}: {g['group']} | {g['rows'][0]}, {g['rows'][1]} | {g['joint']:.3f} | "
                f"{g['kNN']:.3f} | {g['fifth']:.3f} | {g['distance']:.3f} | {gain} | {g['flagged']:.0%} | "
                f"{g['false alarms']:.2%} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("tables", nargs="*", default=list(TABLES))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--max-rows", type=int, default=10_000)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    done = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    for table in options.tables:
        if table not in [r["table"] for r in done]:
            done.append(measure(table, options.epochs, options.max_rows))
            with options.out.open("a") as file:
                file.write(json.dumps(done[-1]) + "\n")
    print(page(done))
