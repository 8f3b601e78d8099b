"""Sequences: recurrent networks with compound layers beside plain ones and ensembles of equal cost.

`vowels`: who of eight men speaks, from 7 to 29 steps of 12 numbers; the ninth, each in turn, is the outlier.
`demand`: electricity demand of the 48 half-hours of a day, from the seven days before, as 90% intervals.

A compound network takes 2 to 2.5 times the time of a plain one, and the ensemble has three members. All
train on the same rows. Held-out rows set temperature and far noise (`posthoc`) of the compound network, and
the first conformal intervals of all.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from compound import metrics
from compound.datasets import sequences as datasets
from compound.estimators.conformal_scores import z_score
from compound.experiments.base import Experiment
from compound.experiments.identity import Run
from compound.experiments.runs import Outcome, Result, RunContext
from compound.experiments.sequences import days
from compound.experiments.sequences.networks import Loss, Sequences, SequenceTraining, draws_of, trained
from compound.experiments.sequences.page import draw_page
from compound.network import posthoc
from compound.predictive import CategoricalPredictive, GaussianPredictive
from compound.random import named_generator
from compound.report.page import Claim, Page
from compound.train.progress import FitProgress
from compound.types import Task

FORMS = {"gru": 1, "gru-ensemble": 3, "compound-gru": 1}  # networks of each form
SPEAKERS = 9
HELD_OUT = 40  # utterances of the eight
N_SAMPLES = 20
LEVEL = 0.9
TRAINING = {
    "vowels": SequenceTraining(epochs=40, lr=5e-3, kl=1e-5),
    "demand": SequenceTraining(epochs=20, lr=3e-3, hidden=64, kl=1.0, bayes=True),
}
QUICK_EPOCHS = 3


@dataclass(frozen=True, kw_only=True)
class SequencesExperiment(Experiment):
    """Each form of network on both data sets."""

    def grid(self, preset: str, seeds: int, methods: Sequence[str]) -> list[Run]:
        quick = {"epochs": QUICK_EPOCHS} if preset == "quick" else {}
        return [
            Run(self.name, method, data, seed, {}, asdict(training) | quick)
            for data, training in TRAINING.items()
            for seed in range(seeds)
            for method in methods
        ]

    def work(self, run: Run, context: RunContext) -> Outcome:
        how = SequenceTraining(**run.settings)
        numbers = _vowels(run, how, context) if run.data == "vowels" else _demand(run, how, context)
        return Outcome(numbers, {})

    def fill_page(self, results: Sequence[Result], page: Page) -> list[Claim]:
        return draw_page(results, page)


def networks(
    run: Run, how: SequenceTraining, rows: datasets.Vowels | days.Days, outputs: int, loss: Loss, seed: int
) -> list[Sequences]:
    """The trained networks of a run."""
    form = "compound-gru" if run.method == "compound-gru" else "gru"
    data = rows.x, rows.lengths, rows.y
    return [trained(form, outputs, *data, loss, 10 * seed + k, how) for k in range(FORMS[run.method])]


def _vowels(run: Run, how: SequenceTraining, context: RunContext) -> dict[str, Any]:
    """Scores with each speaker left out in turn, and their means."""
    train, test = (datasets.vowels(part, context.data_dir) for part in ("train", "test"))
    values = torch.cat([row[:n] for row, n in zip(train.x, train.lengths, strict=True)])
    shift, scale = values.mean(0), values.std(0)
    rows: list[dict[str, float]] = []
    for speaker in range(SPEAKERS):
        known, new, strange = (
            _utterances(part, chosen, speaker, shift, scale)
            for part, chosen in (
                (train, train.y != speaker),
                (test, test.y != speaker),
                (test, test.y == speaker),
            )
        )
        order = torch.randperm(len(known.y), generator=named_generator(run.seed, "held out", speaker))
        fit, held_out = (
            datasets.Vowels(*(v[part] for v in known)) for part in (order[HELD_OUT:], order[:HELD_OUT])
        )
        seed = SPEAKERS * run.seed + speaker
        members = networks(run, how, fit, SPEAKERS - 1, functional.cross_entropy, seed)

        def predict(rows: datasets.Vowels, members: list[Sequences] = members) -> CategoricalPredictive:
            draws = draws_of(members, rows.x, rows.lengths, N_SAMPLES, run.seed)
            return CategoricalPredictive.from_draws(draws.log_softmax(-1).unsqueeze(1))

        scores = _scores(predict(new), new.y, predict(strange))
        if run.method == "compound-gru":
            last = cast(Callable[..., Tensor], members[0].last)
            model = posthoc(members[0], last, Task("classification", SPEAKERS - 1), seed=run.seed)
            model.fit([_batch(fit)], [_batch(held_out)])
            p, q = (cast(CategoricalPredictive, model.predict(_batch(part))) for part in (new, strange))
            scores |= {f"{name}, calibrated": value for name, value in _scores(p, new.y, q).items()}
        rows.append(scores)
        if context.callback is not None:
            context.callback(FitProgress(speaker + 1, SPEAKERS, math.nan, math.nan, math.nan))
    means = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
    return {**means, "auroc by speaker": [row["auroc"] for row in rows]}


def _utterances(
    part: datasets.Vowels, chosen: Tensor, speaker: int, shift: Tensor, scale: Tensor
) -> datasets.Vowels:
    """Chosen rows in standard units, with the speakers but `speaker` numbered from 0."""
    x, lengths, y = (v[chosen] for v in part)
    valid = torch.arange(x.shape[1]) < lengths.unsqueeze(1)
    return datasets.Vowels(
        torch.where(valid.unsqueeze(2), (x - shift) / scale, 0), lengths, y - (y > speaker).long()
    )


def _batch(rows: datasets.Vowels) -> dict[str, Tensor]:
    return {"x": rows.x, "lengths": rows.lengths, "labels": rows.y}


def _scores(p: CategoricalPredictive, y: Tensor, strange: CategoricalPredictive) -> dict[str, float]:
    return {
        "accuracy": metrics.accuracy(p, y),
        "nll": metrics.nll(p, y),
        "ece": metrics.ece(p, y),
        "auroc": metrics.auroc(p.entropy(), strange.entropy()),
    }


def _demand(run: Run, how: SequenceTraining, context: RunContext) -> dict[str, Any]:
    """CRPS, and coverage and width of 90% intervals that are conformal to the days before."""
    data = days.load(context.data_dir)
    members = networks(run, how, data.train, 2 * days.STEPS, days.gaussian_nll, run.seed)

    def predict(rows: days.Days) -> GaussianPredictive:
        draws = draws_of(members, rows.x, rows.lengths, N_SAMPLES, run.seed).double().unsqueeze(1)
        mean, log_variance = draws.chunk(2, -1)
        return GaussianPredictive.from_draws(mean, log_variance.exp(), torch.zeros_like(mean))

    p, held_out = predict(data.test), predict(data.held_out)
    z = torch.cat([z_score(predict(rows), rows.y) for rows in (data.held_out, data.test)])  # (days, 48)
    lower, upper = days.rolling_intervals(p, z, len(data.held_out.y), LEVEL)
    inside = (lower < data.test.y) & (data.test.y < upper)
    return {
        "crps": data.scale * metrics.crps(p, data.test.y),
        "crps, held out": data.scale * metrics.crps(held_out, data.held_out.y),
        "rmse": data.scale * metrics.rmse(p, data.test.y),
        "coverage": inside.double().mean().item(),
        "coverage, not conformal": metrics.coverage(p, data.test.y, LEVEL),
        "width": data.scale * (upper - lower).mean().item(),
        "interval score": data.scale * metrics.interval_score(lower, upper, data.test.y, LEVEL),
    }


EXPERIMENTS = {
    "sequences": SequencesExperiment(
        name="sequences",
        title="Sequences: compound recurrent networks",
        data=("sequences",),
        methods=tuple(FORMS),
        all_methods=tuple(FORMS),
        n_seeds=3,
    )
}
