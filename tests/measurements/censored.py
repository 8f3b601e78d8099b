"""Right-censored times on two real tables: compound's estimators beside a Cox model, on the same splits.

    pip download --no-deps scikit-survival==0.28.0 && pip install lifelines==0.30.0
    python tests/measurements/censored.py scikit_survival-0.28.0-*.whl [--tables gbsg2] [--kinds weibull]

The tables are read from the files in scikit-survival's wheel, which need not be installed. flchain is read
without `chapter`, the cause of death, known only afterwards. Five splits, a fifth of the rows to test.

concordance   Harrell's, by the predicted median (Cox: by the risk)
IBS           integrated Brier score, weighted for censoring, between the 10% and 90% quantiles of event times
quartiles     largest |mean predicted P(T > t) - Kaplan-Meier| at the quartiles of event times
D-calibration p-value of Haider et al. (2020): predicted P(T > t_i) of the events uniform in tenths
"""

import argparse
import io
import json
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.io.arff
import scipy.stats as stats
from lifelines import CoxPHFitter, KaplanMeierFitter
from lifelines.utils import concordance_index

from compound import CompoundRegressor

TABLES = {
    "flchain": ("flchain.arff", "futime", "death", "dead", ["chapter"]),
    "gbsg2": ("GBSG2.arff", "time", "cens", "1", []),
}
SPLITS = 5
BINS = 10  # of D-calibration


def read(wheel: Path, name: str) -> tuple[pd.DataFrame, Any, Any]:
    """Columns, times and events; times of 0 count as half a day."""
    file, time_column, event_column, happened, dropped = TABLES[name]
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"sksurv/datasets/data/{file}").decode()
    records, _ = scipy.io.arff.loadarff(io.StringIO(text))
    frame = pd.DataFrame(records).drop(columns=dropped)
    for column in frame.select_dtypes("object"):
        frame[column] = frame[column].str.decode("utf-8").str.strip("'").astype("category")
    times = np.maximum(frame.pop(time_column).to_numpy(np.float64), 0.5)
    event = (frame.pop(event_column) == happened).to_numpy()
    return frame, times, event


class Compound:
    def __init__(self, kind: str, seed: int):
        self.model = CompoundRegressor(target_kind=kind, random_state=seed)

    def fit(self, x: pd.DataFrame, times: Any, event: Any) -> "Compound":
        self.model.fit(x, times, event=event)
        return self

    def order(self, x: pd.DataFrame) -> Any:  # larger: later
        return self.model.predict_quantiles(x, 0.5)[:, 0]

    def survival(self, x: pd.DataFrame, points: Any) -> Any:  # (rows, points)
        return self.model.predict_survival(x, points)


class Cox:
    """Proportional hazards; categories as indicators, missing numbers as the median, all standardised."""

    def _columns(self, x: pd.DataFrame) -> pd.DataFrame:
        numbers = pd.get_dummies(x, drop_first=True, dtype=float)
        return (numbers[self.kept].fillna(self.median) - self.mean) / self.std

    def fit(self, x: pd.DataFrame, times: Any, event: Any) -> "Cox":
        numbers = pd.get_dummies(x, drop_first=True, dtype=float)
        self.kept = list(numbers.columns[numbers.std() > 0])
        numbers = numbers[self.kept]
        self.median, self.mean, self.std = numbers.median(), numbers.mean(), numbers.std()
        frame = self._columns(x).assign(_time=times, _event=event)
        steps = {"step_size": 0.5}  # whole steps diverge on one split of flchain
        self.model = CoxPHFitter(penalizer=1e-4).fit(frame, "_time", "_event", fit_options=steps)
        return self

    def order(self, x: pd.DataFrame) -> Any:
        return -self.model.predict_log_partial_hazard(self._columns(x)).to_numpy()

    def survival(self, x: pd.DataFrame, points: Any) -> Any:
        return self.model.predict_survival_function(self._columns(x), times=points).T.to_numpy()


def integrated_brier(survival: Any, points: Any, times: Any, event: Any, censoring: Any) -> float:
    """Graf et al. (1999), for survival (rows, points); `censoring` is the Kaplan-Meier curve of censoring."""
    at_points = np.maximum(censoring.predict(points).to_numpy(), 1e-3)
    at_times = np.maximum(censoring.predict(times - 1e-9).to_numpy(), 1e-3)
    dead = (times[:, None] <= points) & event[:, None]
    alive = times[:, None] > points
    scores = dead * survival**2 / at_times[:, None] + alive * (1 - survival) ** 2 / at_points
    return float(np.trapezoid(scores.mean(0), points) / (points[-1] - points[0]))


def d_calibration(own: Any, event: Any) -> float:
    """p-value of uniformity; `own` (rows,) is P(T > t_i), that of a censored row is spread over [0, own]."""
    edges = np.linspace(0, 1, BINS + 1)
    counts = np.histogram(own[event], edges)[0].astype(float)
    censored = np.maximum(own[~event], 1e-9)[:, None]
    counts += (np.clip(censored - edges[:-1], 0, 1 / BINS) / censored).sum(0)
    return float(stats.chisquare(counts).pvalue)


def judge(model: Any, x: pd.DataFrame, times: Any, event: Any, censoring: Any) -> dict[str, float]:
    quartiles = np.quantile(times[event], [0.25, 0.5, 0.75])
    points = np.linspace(*np.quantile(times[event], [0.1, 0.9]), 50)
    observed = KaplanMeierFitter().fit(times, event).predict(quartiles).to_numpy()
    unique, position = np.unique(times, return_inverse=True)
    own = np.concatenate(  # P(T > t_i) of each row at its own time
        [
            model.survival(x.iloc[part], unique)[np.arange(len(part)), position[part]]
            for part in np.array_split(np.arange(len(x)), 1 + len(x) * len(unique) // 1_000_000)
        ]
    )
    return {
        "concordance": float(concordance_index(times, model.order(x), event)),
        "IBS": integrated_brier(model.survival(x, points), points, times, event, censoring),
        "quartiles": float(np.abs(model.survival(x, quartiles).mean(0) - observed).max()),
        "D-calibration": d_calibration(own, event),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--tables", nargs="*", default=list(TABLES))
    parser.add_argument("--kinds", nargs="*", default=["weibull", "log-normal"])
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    out: dict[str, dict[str, list[dict[str, float]]]] = {}
    for name in given.tables:
        x, times, event = read(given.wheel, name)
        print(f"{name}: {len(x):,} rows, {x.shape[1]} columns, {event.mean():.0%} events", flush=True)
        for kind in ("cox", *given.kinds):
            begin, rows = time.process_time(), []
            for split in range(given.splits):
                order = np.random.default_rng(split).permutation(len(x))
                test, train = np.split(order, [len(x) // 5])
                censoring = KaplanMeierFitter().fit(times[train], ~event[train])
                model = Cox() if kind == "cox" else Compound(kind, split)
                model.fit(x.iloc[train], times[train], event[train])
                rows.append(judge(model, x.iloc[test], times[test], event[test], censoring))
            out.setdefault(name, {})[kind] = rows
            means = "   ".join(
                f"{key} {np.mean([r[key] for r in rows]):.4f} ({' '.join(f'{r[key]:.3f}' for r in rows)})"
                for key in rows[0]
            )
            print(f"  {kind:11s} {means}   {time.process_time() - begin:.0f} s", flush=True)
            if given.json:
                given.json.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
