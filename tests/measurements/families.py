"""NLL of fitted families on synthetic data of that family, minus the NLL of the truth.

    python tests/measurements/families.py [--kinds log-normal poisson] [--seeds 3] [--rows 5000] [--json OUT]
                                          [--option lam=1e-5]

Four standard normal columns. The location depends smoothly on three of them, one pair in interaction, and the
spread, where the family has one, on the fourth. Test rows are 20,000. Defaults of the estimators, but for the
kind of target.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.stats as stats

from compound import CompoundClassifier, CompoundRegressor, Method

COLUMNS, TEST_ROWS = 4, 20_000
CUTS = np.array([-1.0, 0.0, 1.2])  # of the latent number of ordered classes
BAR = 0.02  # nats


class Table(NamedTuple):
    """A table drawn from a family, with the truth's log-density of every y."""

    x: Any  # (rows, columns)
    y: Any  # (rows,)
    event: Any  # (rows,) or None
    log_prob: Any  # (rows,)


def location(x: Any) -> Any:
    return np.sin(1.5 * x[:, 0]) + 0.5 * x[:, 1] + 0.4 * x[:, 0] * x[:, 2]


def log_spread(x: Any) -> Any:
    return 0.5 * np.tanh(x[:, 3])


def draw(kind: str, rows: int, seed: int) -> Table:
    """A table of a kind: a family, or weibull-censored, ordinal, bernoulli, softmax."""
    rng = np.random.default_rng([seed, rows])
    x = rng.normal(size=(rows, COLUMNS))
    centre, spread = location(x), np.exp(log_spread(x))
    if kind in ("ordinal", "bernoulli", "softmax"):
        probs = class_probs(kind, x)
        y = (probs.cumsum(1) < rng.random((rows, 1))).sum(1)
        return Table(x, y, None, np.log(probs[np.arange(rows), y]))
    law = family(kind.removesuffix("-censored"), centre, spread)
    y = law.rvs(random_state=rng)
    if kind.endswith("-censored"):  # about a third of the rows
        end = family("weibull", centre + 0.7, 1.0).rvs(random_state=rng)
        event, time_seen = y <= end, np.minimum(y, end)
        return Table(x, time_seen, event, np.where(event, law.logpdf(time_seen), law.logsf(time_seen)))
    log_prob = law.logpmf(y) if kind in ("poisson", "negative-binomial") else law.logpdf(y)
    return Table(x, y, None, log_prob)


def family(kind: str, centre: Any, spread: Any) -> Any:
    """The true distributions of rows as scipy has them."""
    if kind == "gaussian":
        return stats.norm(centre, 0.5 * spread)
    if kind == "student-t":
        return stats.t(4.0, centre, 0.5 * spread)
    if kind == "log-normal":
        return stats.lognorm(0.5 * spread, scale=np.exp(centre))
    if kind == "weibull":
        return stats.weibull_min(1.5 / spread, scale=np.exp(centre))
    mean = np.exp(1 + 0.7 * centre)
    if kind == "poisson":
        return stats.poisson(mean)
    size = 2.0 / spread  # one over the dispersion
    return stats.nbinom(size, size / (size + mean))


def class_probs(kind: str, x: Any) -> Any:  # (rows, classes)
    centre = location(x)
    if kind == "ordinal":
        below = stats.norm.cdf(CUTS - centre[:, None])
        edges = np.column_stack([np.zeros(len(x)), below, np.ones(len(x))])
        return np.diff(edges, axis=1)
    logits = np.column_stack([np.zeros(len(x)), 1.5 * centre])
    if kind == "softmax":
        logits = np.column_stack([logits, 1.5 * x[:, 3]])
    probs = np.exp(logits - logits.max(1, keepdims=True))
    return probs / probs.sum(1, keepdims=True)


KINDS = (
    *("gaussian", "student-t", "log-normal", "weibull", "weibull-censored", "poisson", "negative-binomial"),
    *("ordinal", "bernoulli", "softmax"),
)


def excess(kind: str, rows: int, seed: int, method: Method) -> float:
    """NLL of new rows minus that of the truth, in nats."""
    train, test = draw(kind, rows, seed), draw(kind, TEST_ROWS, 1000 + seed)
    if kind in ("ordinal", "bernoulli", "softmax"):
        classifier = CompoundClassifier(method, ordinal=kind == "ordinal", random_state=seed)
        log_proba = classifier.fit(train.x, train.y).predict_log_proba(test.x)
        return float((test.log_prob - log_proba[np.arange(TEST_ROWS), test.y]).mean())
    model = CompoundRegressor(method, target_kind=kind.removesuffix("-censored"), random_state=seed)
    model.fit(train.x, train.y, event=train.event)
    y = model._truth(test.y, test.event)
    return float(test.log_prob.mean() - model.predict_dist(test.x).log_prob(y).mean())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--option", nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    options = {name: json.loads(value) for name, value in (each.split("=") for each in given.option)}
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    out: dict[str, list[float]] = {}
    for kind in given.kinds:
        begin = time.process_time()
        out[kind] = [
            excess(kind, given.rows, seed, Method("ml-cdn", **options)) for seed in range(given.seeds)
        ]
        seconds = (time.process_time() - begin) / given.seeds
        each = " ".join(f"{value:.4f}" for value in out[kind])
        verdict = "met" if max(out[kind]) < BAR else "missed"
        print(f"{kind:18s} mean {np.mean(out[kind]):.4f}   {each}   {verdict}   {seconds:.0f} s", flush=True)
        if given.json:
            given.json.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
