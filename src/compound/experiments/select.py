"""λ of ml-cdn, chosen as published: from five, by accuracy on the 5,000 rows that are held out of training, with one seed.

Chosen for the published form and for the default one, there with a single member: several are the same network side by side, at
several times the cost. The fits are runs of an experiment of their own, kept like all others, and serve the one that follows.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple, cast

from compound import metrics
from compound.datasets import images
from compound.experiments import ood, perform_all, plan
from compound.experiments.runs import Outcome, Result, Run, RunContext
from compound.models import Method, build
from compound.predictive import CategoricalPredictive
from compound.random import named_generator
from compound.report.page import Cell, Claim, Page

LAMBDAS: tuple[float, ...] = tuple(
    json.loads(files("compound.experiments").joinpath("published.json").read_text())["paper"]["lambda_grid"]
)
METHOD = "ml-cdn"
SINGLE = ", one member"
NAMES = {"mnist": "select-mnist", "fashion-mnist": "select-fashion"}  # by the set that is learnt


@dataclass(frozen=True)
class Select:
    """One such choice."""

    name: str
    TITLE: str
    in_dist: ood.Ood  # whose models are fitted
    METHODS: tuple[str, ...] = (METHOD,)
    ALL_METHODS: tuple[str, ...] = (METHOD,)
    PRESETS: tuple[str, ...] = tuple(ood.STEPS)
    SEEDS: int = 1

    @property
    def DATA(self) -> tuple[str, ...]:
        return self.in_dist.in_dist, self.in_dist.outliers

    def grid(self, preset: str, seeds: int, methods: Sequence[str]) -> list[Run]:
        runs = [
            replace(run, experiment=self.name)
            for run in self.in_dist.grid(preset, seeds, methods)
            if run.data != self.in_dist.in_dist
        ]
        return [with_lambda(run, lam) for run in runs for lam in LAMBDAS]

    def work(self, run: Run, place: RunContext) -> Outcome:
        model, _ = self.in_dist.trained(run, place)
        train = images.load(self.in_dist.in_dist, "train", place.data_dir)
        x, y = train.x[-ood.HELD_OUT :], train.y[-ood.HELD_OUT :]
        answer = cast(CategoricalPredictive, model.predict(x, 100, named_generator(run.seed, "validation")))
        return Outcome(
            {"lam": lambda_of(run), "accuracy": metrics.accuracy(answer, y), "nll": metrics.nll(answer, y)},
            {},
        )

    def draw(self, results: Sequence[Result], page: Page) -> list[Claim]:
        best = best_of(results)
        page.text(
            f"Each form of {METHOD} was fitted with every λ below, with one seed, and judged on the held-out rows of the training set: "
            "the best accuracy counts, the NLL where accuracies are equal. No test row and no strange picture took part."
        )
        page.bullets([f"{data}: λ = {lam:g}" for data, lam in best.items()])
        rows: list[list[Cell]] = [
            [
                r.run.data,
                f"{r.metrics['lam']:g}",
                r.metrics["accuracy"],
                r.metrics["nll"],
                r.metrics["lam"] == best[r.run.data],
            ]
            for r in results
        ]
        page.table(columns := ("form", "λ", "validation accuracy", "validation NLL", "chosen"), rows)
        page.csv_data(self.name, columns, rows)
        return []


class Choice(NamedTuple):
    runs: list[Run]  # the grid with the chosen λ
    results: list[Result]  # what it was chosen from


def choose(
    runs: Sequence[Run], preset: str, root: Path, data_dir: Path | None = None, jobs: int | None = None
) -> Choice:
    """Fit what there is to choose from, and put the best λ of each form into the grid."""
    name = NAMES.get(runs[0].data.partition(",")[0])
    if name is None or not any(run.method == METHOD for run in runs):
        raise ValueError(
            f"there is no λ of {METHOD} to choose in this grid: leave --select out, or run {METHOD} on {' or '.join(NAMES)}"
        )
    results = perform_all(plan(name, preset, 1), root, data_dir, jobs)
    return Choice(chosen(runs, best_of(results)), results)


def best_of(results: Sequence[Result]) -> dict[str, float]:
    """Form -> its best λ."""
    best: dict[str, Result] = {}
    for result in results:
        former = best.setdefault(result.run.data, result)
        if (result.metrics["accuracy"], -result.metrics["nll"]) > (
            former.metrics["accuracy"],
            -former.metrics["nll"],
        ):
            best[result.run.data] = result
    return {data: result.metrics["lam"] for data, result in best.items()}


def chosen(runs: Sequence[Run], best: Mapping[str, float]) -> list[Run]:
    """The grid with the best λ of each form; the default one takes that of its single member."""

    def of(run: Run) -> float | None:
        return best.get(run.data, best.get(f"{run.data}{SINGLE}")) if run.method == METHOD else None

    return [run if (lam := of(run)) is None else with_lambda(run, lam) for run in runs]


def with_lambda(run: Run, lam: float) -> Run:
    """The run as it is where that is its λ already, so that what is finished stays found."""
    return run if lambda_of(run) == lam else replace(run, options={**run.options, "lam": lam})


def lambda_of(run: Run) -> float:
    return build(Method(run.method, **run.options), 784, ood.TASK).config.lam  # type: ignore[union-attr, return-value]
