"""Selection of λ of ml-cdn as published: from five values, by accuracy on the 5,000 held-out rows.

λ is selected for the published form and for the default form, whose candidates are fitted with one member
instead of an ensemble, at less cost. The candidates are runs of experiments of their own; other experiments
reuse their fits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from compound import metrics
from compound.datasets import images
from compound.experiments import ood, perform_all, plan
from compound.experiments.base import Experiment
from compound.experiments.identity import ONE_MEMBER, Run
from compound.experiments.launch import Executor
from compound.experiments.published import paper_lambdas
from compound.experiments.runs import Outcome, Result, RunContext
from compound.models import Method, build
from compound.report.page import Cell, Claim, Page

LAMBDAS = paper_lambdas()
METHOD = "ml-cdn"


@dataclass(frozen=True, kw_only=True)
class SelectExperiment(Experiment):
    """The candidates for one data set: the runs of an out-of-distribution experiment with every λ."""

    source: ood.OodExperiment  # whose models are fitted
    methods: tuple[str, ...] = (METHOD,)
    all_methods: tuple[str, ...] = (METHOD,)

    def grid(self, preset: str, seeds: int, methods: Sequence[str]) -> list[Run]:
        runs = [replace(run, experiment=self.name) for run in self.source.grid(preset, seeds, methods)]
        return [with_lambda(run, lam) for run in runs if run.variant for lam in LAMBDAS]

    def work(self, run: Run, context: RunContext) -> Outcome:
        model, _ = self.source.fit(run, context)
        train = images.load(self.source.in_dist, "train", context.data_dir)
        predictive = ood.predict(model, train.x[: ood.HELD_OUT], run.seed, "validation")
        y = train.y[: ood.HELD_OUT]
        accuracy = metrics.accuracy(predictive, y)
        return Outcome({"lam": lambda_of(run), "accuracy": accuracy, "nll": metrics.nll(predictive, y)}, {})

    def fill_page(self, results: Sequence[Result], page: Page) -> list[Claim]:
        best = best_lambdas(results)
        page.text(
            f"Each form of {METHOD} was fitted with every λ below, with one seed, and evaluated on the "
            "held-out rows of the training set: the best accuracy counts, the NLL where accuracies are "
            "equal. No test row and no out-of-distribution image took part."
        )
        labels = {result.run.variant: result.run.data_label for result in results}
        page.bullets([f"{labels[variant]}: λ = {lam:g}" for variant, lam in best.items()])
        rows: list[list[Cell]] = []
        for run, numbers, *_ in results:
            lam = numbers["lam"]
            validation = (numbers["accuracy"], numbers["nll"])
            rows.append([run.data_label, f"{lam:g}", *validation, lam == best[run.variant]])
        columns = ("form", "λ", "validation accuracy", "validation NLL", "chosen")
        page.table(columns, rows)
        page.csv_data(self.name, columns, rows)
        return []


class Selection(NamedTuple):
    """What `select_lambda` returns."""

    runs: list[Run]  # those given, with the selected λ
    results: list[Result]  # of the candidates


def select_lambda(
    runs: Sequence[Run],
    preset: str,
    root: Path,
    data_dir: Path | None = None,
    jobs: int | None = None,
    executor: Executor | None = None,
) -> Selection:
    """Fit the candidates for λ, and set λ of the runs of ml-cdn to the best one of their form.

    ValueError if there is no such run, or no selection for its data set.
    """
    name = SELECTIONS.get(runs[0].data)
    if name is None or not any(run.method == METHOD for run in runs):
        raise ValueError(
            f"there is no λ of {METHOD} to select in this grid: leave --select out, "
            f"or run {METHOD} on {' or '.join(SELECTIONS)}"
        )
    results = perform_all(plan(name, preset, 1), root, data_dir, jobs, executor)
    return Selection(with_best_lambdas(runs, best_lambdas(results)), results)


def best_lambdas(results: Sequence[Result]) -> dict[str, float]:
    """Variant of the run -> λ of the highest held-out accuracy; among equals, of the lowest NLL."""
    best: dict[str, Result] = {}
    for result in results:
        best[result.run.variant] = max(best.get(result.run.variant, result), result, key=_sort_key)
    return {variant: result.metrics["lam"] for variant, result in best.items()}


def _sort_key(result: Result) -> tuple[float, float]:
    return result.metrics["accuracy"], -result.metrics["nll"]


def with_best_lambdas(runs: Sequence[Run], best: Mapping[str, float]) -> list[Run]:
    """The runs with the best λ of their variant; the default form takes that of the variant ONE_MEMBER."""

    def lam(run: Run) -> float | None:
        if run.method != METHOD:
            return None
        return best.get(run.variant, None if run.variant else best.get(ONE_MEMBER))

    return [run if (value := lam(run)) is None else with_lambda(run, value) for run in runs]


def with_lambda(run: Run, lam: float) -> Run:
    """The run with this λ; unchanged if it is the λ it has by default, so that its key stays the same."""
    return run if lambda_of(run) == lam else replace(run, options={**run.options, "lam": lam})


def lambda_of(run: Run) -> float:
    """λ of a run of ml-cdn, from its options or by default."""
    return build(Method(run.method, **run.options), 784, ood.TASK).config.lam  # type: ignore[union-attr, return-value]


EXPERIMENTS = {
    name: SelectExperiment(
        name=name,
        title=f"{title}: λ of ml-cdn, selected on held-out rows",
        data=(source.in_dist, source.outliers),
        source=source,
    )
    for name, title, source in (
        ("select-mnist", "MNIST", ood.MNIST),
        ("select-fashion", "Fashion-MNIST", ood.FASHION),
    )
}
SELECTIONS = {experiment.source.in_dist: name for name, experiment in EXPERIMENTS.items()}
