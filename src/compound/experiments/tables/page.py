"""The page of the tables experiment: claims, and a table per score, with ratios to the baselines."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from compound.datasets.tables import TABLES
from compound.experiments.means import Mean
from compound.experiments.runs import Result
from compound.experiments.tables.baselines import BASELINES
from compound.report.page import Bold, Cell, Claim, Page

DEFAULT = "ml-cdn"
CATBOOST = "catboost"
LINEAR = "linear"


Best = Callable[[Sequence[float]], float]  # min or max


class Score(NamedTuple):
    """A column of numbers of a run."""

    title: str
    best: Best | None = min  # None: neither high nor low is better
    ratio: bool = True  # False: its sign may change, or it has no best: no ratios


SCORES = {
    "regression": {
        "crps": Score("CRPS, in the unit of the target"),
        "rmse": Score("RMSE, in the unit of the target"),
        "nll": Score("NLL in nats", ratio=False),
        "coverage": Score("Coverage of the 90% interval, calibrated on held-out rows", None, ratio=False),
        "width": Score("Mean width of the 90% interval", None, ratio=False),
        "interval_score": Score("Interval score of the 90% interval"),
    },
    "classification": {
        "log_loss": Score("Log loss in nats"),
        "accuracy": Score("Accuracy", max),
        "brier": Score("Brier score"),
        "ece": Score("Expected calibration error"),
    },
}
SECONDS = {
    "fit_seconds": Score("Processor seconds of the fit"),
    "predict_seconds": Score("Processor seconds to predict the test rows"),
}
Numbers = dict[tuple[str, str], dict[int, dict[str, Any]]]  # (table, method) -> split -> metrics


class Scores(NamedTuple):
    """Numbers of all runs. Of each table only the splits count that all methods with runs on it share."""

    numbers: Numbers

    @classmethod
    def from_results(cls, results: Sequence[Result]) -> "Scores":
        """From finished runs: their metrics, by table, method and split."""
        numbers: Numbers = {}
        for run, metrics, *_ in results:
            numbers.setdefault((run.data, run.method), {})[run.seed] = metrics
        common = {
            data: set.intersection(*(set(splits) for (d, _), splits in numbers.items() if d == data))
            for data, _ in numbers
        }
        return cls({key: {s: splits[s] for s in sorted(common[key[0]])} for key, splits in numbers.items()})

    def values(self, data: str, method: str, key: str) -> list[float] | None:
        """A score on every split; None without runs, or where a split lacks it."""
        values = [metrics.get(key) for metrics in self.numbers.get((data, method), {}).values()]
        return None if not values or None in values else values  # type: ignore[return-value]

    def mean(self, data: str, method: str, key: str) -> float | None:
        """The mean of `values` over splits, or None."""
        values = self.values(data, method, key)
        return None if values is None else fmean(values)

    def best_baseline(self, data: str, key: str, best: Best = min) -> float | None:
        """The best mean of a baseline on a table."""
        means = [mean for name in BASELINES if (mean := self.mean(data, name, key)) is not None]
        return best(means) if means else None

    def pairs(self, kind: str, key: str, other: str = "") -> list[tuple[float, float]]:
        """Means of the default method and of `other` (default: the best baseline), a pair per table."""
        tables = [data for data, table in TABLES.items() if table.kind == kind]
        ours = (self.mean(data, DEFAULT, key) for data in tables)
        theirs = (self.mean(d, other, key) if other else self.best_baseline(d, key) for d in tables)
        both = zip(ours, theirs, strict=True)
        return [(ours, theirs) for ours, theirs in both if ours is not None and theirs is not None]


def claims(scores: Scores) -> list[Claim]:
    """Claims that a score of the default method is within a bound; tables without runs do not count."""
    regression, classes = "regression", "classification"

    def below(title: str, pairs: Sequence[tuple[float, float]], limit: float) -> Claim:
        count = float(sum(ours < theirs for ours, theirs in pairs))
        return Claim(f"tables with {title}", count if pairs else None, limit)

    def ratio(title: str, pairs: Sequence[tuple[float, float]], limit: float) -> Claim:
        highest = max((ours / theirs for ours, theirs in pairs if theirs > 0), default=None)
        return Claim(f"highest ratio of {title}", highest, limit, "at most")

    coverage = [mean for data in TABLES if (mean := scores.mean(data, DEFAULT, "coverage")) is not None]
    crps = scores.pairs(regression, "crps", CATBOOST)
    log_loss = scores.pairs(classes, "log_loss")
    return [
        below("CRPS below CatBoost's (of 8)", crps, 7),
        ratio("CRPS to CatBoost's", crps, 1.03),
        ratio("RMSE to the best baseline's", scores.pairs(regression, "rmse"), 1.03),
        below("NLL below every baseline's (of 8)", scores.pairs(regression, "nll"), 7),
        Claim("lowest coverage of the 90% interval", min(coverage, default=None), 0.88),
        Claim("highest coverage of the 90% interval", max(coverage, default=None), 0.92, "at most"),
        below("interval score below every baseline's (of 8)", scores.pairs(regression, "interval_score"), 6),
        ratio("log loss to the best baseline's", log_loss, 1.01),
        below("log loss below CatBoost's (of 6)", scores.pairs(classes, "log_loss", CATBOOST), 5),
        Claim(
            "tables with log loss above that of logistic regression by more than a standard error",
            _above_linear(scores),
            0,
            "at most",
        ),
    ]


def _above_linear(scores: Scores) -> float | None:
    """The number of tables where log loss exceeds the linear model's by more than a standard error.

    The standard error is that of the mean difference over splits; None without such runs.
    """
    counted = []
    for data in TABLES:
        ours, linear = (scores.values(data, method, "log_loss") for method in (DEFAULT, LINEAR))
        if ours is not None and linear is not None:
            mean, error = Mean.from_values(a - b for a, b in zip(ours, linear, strict=True))
            counted.append(mean > (error or 0.0))
    return float(sum(counted)) if counted else None


def draw_page(results: Sequence[Result], page: Page, not_installed: Sequence[str] = ()) -> list[Claim]:
    """Fill the page; return its claims. `not_installed` are baselines without a library on this machine."""
    scores = Scores.from_results(results)
    methods = list(dict.fromkeys(result.run.method for result in results))
    page.text(
        "Random splits, a fifth of the rows for testing, the same for every method; the estimators with "
        "their defaults. Every number is a mean over the splits that all methods of the table have run. "
        "Baselines hold a tenth of the training rows out: by these they stop early, by these their intervals "
        "are calibrated (conformal, from |y - mean| / std), and a baseline without a variance takes the mean "
        "square of their residuals. Best numbers are bold; the best baseline is that of the row. Means "
        "of seconds are of one core."
    )
    _explain_absent(methods, not_installed, page)
    all_claims = claims(scores)
    page.claims(all_claims, f"{DEFAULT} against the limits; a table that was not run does not count")
    for kind, of_kind in SCORES.items():
        tables = [data for data, table in TABLES.items() if table.kind == kind and _has_runs(scores, data)]
        if not tables:
            continue
        page.heading(f"Tables with a {'number' if kind == 'regression' else 'class'} to predict")
        for key, score in {**of_kind, **SECONDS}.items():
            page.table(*_score_table(scores, tables, methods, key, score), score.title)
    keys = [*SCORES["regression"], *SCORES["classification"], *SECONDS, "rows", "test_rows", "columns"]
    csv_rows: list[list[Cell]] = [
        [run.data, run.method, run.seed, *(metrics.get(key) for key in keys)] for run, metrics, *_ in results
    ]
    page.csv_data("tables", ("table", "method", "split", *keys), csv_rows)
    return all_claims


def _has_runs(scores: Scores, data: str) -> bool:
    """Whether any method has a finished run on the table `data`."""
    return any(d == data and splits for (d, _), splits in scores.numbers.items())


def _explain_absent(methods: Sequence[str], not_installed: Sequence[str], page: Page) -> None:
    """Say which baselines have no runs, and why."""
    absent = [name for name in BASELINES if name not in methods]
    why = dict.fromkeys(not_installed, "its library is not installed")
    reasons = [f"{name}: {why.get(name, 'it was not asked for')}" for name in absent]
    if reasons:
        page.text("Baselines without runs, which no number counts:")
        page.bullets(reasons)
    page.text(
        "TabM and RealMLP were not run: they need further packages, with requirements on torch of their own, "
        "and a choice of settings that was not made here."
    )


def _score_table(
    scores: Scores, tables: Sequence[str], methods: Sequence[str], key: str, score: Score
) -> tuple[list[str], list[list[Cell]]]:
    """Header and rows of the table of one score: a row per data set, a column per method.

    The last columns hold the ratios of the default method to CatBoost and to the best baseline.
    """
    shown = [m for m in methods if any(scores.mean(data, m, key) is not None for data in tables)]
    ratios = score.ratio and DEFAULT in shown
    columns = ["table (splits, rows, columns)", *shown]
    columns += [f"{DEFAULT} / {CATBOOST}", f"{DEFAULT} / best baseline"] if ratios else []
    rows = []
    for data in tables:
        splits = next(s for (d, _), s in scores.numbers.items() if d == data and s)
        sizes = next(iter(splits.values()))
        means = {m: mean for m in shown if (mean := scores.mean(data, m, key)) is not None}
        best = score.best(list(means.values())) if score.best and len(means) > 1 else None
        row: list[Cell] = [f"{data} ({len(splits)}, {sizes['rows']:,}, {sizes['columns']})"]
        for method in shown:
            values = scores.values(data, method, key)
            text = None if values is None else Mean.from_values(values).text_by_error()
            row.append(Bold(text) if text is not None and means[method] == best else text)
        if ratios:
            others = scores.mean(data, CATBOOST, key), scores.best_baseline(data, key, score.best or min)
            row += [means[DEFAULT] / other if DEFAULT in means and other else None for other in others]
        rows.append(row)
    return columns, rows
