"""Known digits, unknown pictures: does the network doubt what it has never seen?

A 64-100-10 net learns scikit-learn's digits and is then shown photographs, noise and digits upside down.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any, cast

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from compound import metrics
from compound.datasets import digits as source
from compound.experiments.ood import without_far_noise
from compound.experiments.runs import Outcome, Result, Run, RunContext, fitted
from compound.predictive import CategoricalPredictive
from compound.random import named_generator
from compound.report.page import Cell, Claim, Page
from compound.train.config import default_train_config
from compound.train.holdout import holdout_weights
from compound.types import Task, make_dataset

TITLE = "Digits: doubt about pictures never seen"
METHODS = ALL_METHODS = ("ml-cdn", "vb-cdn")
STEPS = {"quick": 2000, "paper": 6000}
PRESETS = tuple(STEPS)
SEEDS = 3
DATA: tuple[str, ...] = ()  # scikit-learn brings them
TASK = Task("classification", 10)
OPTIONS: dict[str, Any] = {"widths": (100,), "members": 1}  # the rest as the methods have it
STRANGE = {
    "photographs": "patches of photographs",
    "noise": "uniform noise",
    "mirrored": "digits upside down",
}
DOUBTFUL = 16  # digits in the gallery


def grid(preset: str, seeds: int, methods: Sequence[str]) -> list[Run]:
    settings = asdict(replace(default_train_config(TASK, 1257), steps=STEPS[preset]))
    return [
        Run("digits", method, "digits", seed, OPTIONS, settings)
        for seed in range(seeds)
        for method in methods
    ]


def work(run: Run, place: RunContext) -> Outcome:
    data = source.digits(run.seed)
    weight = holdout_weights(len(data.x_train), run.options["members"], 0.1, run.seed)
    model = fitted(run, place, make_dataset(data.x_train, data.y_train, TASK, weight), TASK)

    def asked(x: Tensor) -> CategoricalPredictive:
        return cast(CategoricalPredictive, model.predict(x, 100, named_generator(run.seed, "predict")))

    known = asked(data.x_test)
    rows = len(data.x_test)
    pictures = (
        source.photographs(rows, run.seed),
        source.noise(rows, run.seed),
        source.mirrored(data.x_test),
    )
    strange = {name: asked(x) for name, x in zip(STRANGE, pictures, strict=True)}
    numbers = {
        "accuracy": metrics.accuracy(known, data.y_test),
        "nll": metrics.nll(known, data.y_test),
        "ece": metrics.ece(known, data.y_test),
        "mmc": metrics.mmc(known),
    }
    silent = without_far_noise(model)  # what does far noise cost?
    plain = cast(
        CategoricalPredictive, silent.predict(data.x_test, 100, named_generator(run.seed, "predict"))
    )
    numbers["accuracy_cost"] = metrics.accuracy(plain, data.y_test) - numbers["accuracy"]
    numbers["nll_cost"] = numbers["nll"] - metrics.nll(plain, data.y_test)
    for name, answer in strange.items():
        numbers[f"mmc_{name}"] = metrics.mmc(answer)
        numbers[f"auroc_{name}"] = metrics.auroc(known.entropy(), answer.entropy())
    doubt = known.entropy()
    most = doubt.argsort(descending=True)[:DOUBTFUL]
    arrays = {
        "entropy_digits": doubt.numpy(),
        **{f"entropy_{name}": answer.entropy().numpy() for name, answer in strange.items()},
        "doubtful": data.x_test[most].view(-1, source.SIDE, source.SIDE).numpy(),
        "doubtful_truth": data.y_test[most].numpy(),
        "doubtful_guess": known.label[most].numpy(),
        "examples": torch.stack([x[:8] for x in (data.x_test, *pictures)])
        .view(4, 8, source.SIDE, source.SIDE)
        .numpy(),
    }
    return Outcome(numbers, arrays)


# The page


def draw(results: Sequence[Result], page: Page) -> list[Claim]:
    page.text(
        "A good classifier knows its digits and doubts everything else. Doubt is the entropy of the mean probabilities; "
        "AUROC is the probability that a strange picture is doubted more than a test digit."
    )
    first = [result for result in results if result.run.seed == min(r.run.seed for r in results)]
    page.figure(
        _examples(first[0]),
        "What is asked about, row by row: test digits, " + ", ".join(STRANGE.values()) + ".",
    )
    words = "Share of pictures with at most this much doubt: early for digits, late for the rest. Largest possible: 2.303 nats."
    page.figure_with_data(
        "digits", _curves(first), words, ("method", "pictures", "entropy", "share"), _data(first)
    )
    bars = [bar for method in dict.fromkeys(r.run.method for r in results) for bar in _bars(method, results)]
    page.claims(bars, "Means over seeds against the bars")
    page.table(("method", "seed", *(_words(key) for key in first[0].metrics)), _rows(results), "Every run")
    page.figure(
        _gallery(first),
        "The test digits with the greatest doubt, with guess and (true label): red where the guess is wrong.",
    )
    return bars


def _words(key: str) -> str:
    return (
        key.replace("_", ", ")
        .replace("mmc", "MMC")
        .replace("auroc", "AUROC")
        .replace("nll", "NLL")
        .replace("ece", "ECE")
    )


def _rows(results: Sequence[Result]) -> list[list[Cell]]:
    return [[r.run.method, r.run.seed, *r.metrics.values()] for r in results]


def _bars(method: str, results: Sequence[Result]) -> list[Claim]:
    own = [result.metrics for result in results if result.run.method == method]
    limits = {"accuracy": 0.97, "auroc_photographs": 0.99, "auroc_noise": 0.99}
    bars = [
        Claim(f"{method}: {_words(key)}", fmean(m[key] for m in own), limit) for key, limit in limits.items()
    ]
    return [
        *bars,
        Claim(
            f"{method}: accuracy that far noise costs",
            fmean(m["accuracy_cost"] for m in own),
            0.002,
            "at most",
        ),
    ]


def _data(results: Sequence[Result]) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for result in results:
        for name in ("digits", *STRANGE):
            values = np.sort(result.arrays[f"entropy_{name}"]).tolist()
            rows += [
                [result.run.method, name, value, (place + 1) / len(values)]
                for place, value in enumerate(values)
            ]
    return rows


def _curves(results: Sequence[Result]) -> Figure:
    figure = Figure(figsize=(4.2 * len(results), 3.2), layout="constrained")
    axes = figure.subplots(1, len(results), squeeze=False, sharey=True)[0]
    for panel, result in zip(axes, results, strict=True):
        lines = ("-", "--", "-.", ":")
        for line, (name, words) in zip(lines, {"digits": "test digits", **STRANGE}.items(), strict=True):
            values = np.sort(result.arrays[f"entropy_{name}"])
            panel.plot(values, np.arange(1, len(values) + 1) / len(values), line, label=words)
        panel.set(title=result.run.method, xlabel="entropy (nats)", xlim=(0, 2.35))
    axes[0].set_ylabel("share of pictures")
    axes[-1].legend(fontsize=8)
    return figure


def _examples(result: Result) -> Figure:
    return _tiles(result.arrays["examples"].reshape(-1, source.SIDE, source.SIDE), 8, [("", "black")] * 32)


def _gallery(results: Sequence[Result]) -> Figure:
    pictures = np.concatenate([r.arrays["doubtful"] for r in results])
    guesses = np.concatenate([r.arrays["doubtful_guess"] for r in results])
    truths = np.concatenate([r.arrays["doubtful_truth"] for r in results])
    words = [
        (f"{guess} ({true})", "black" if guess == true else "tab:red")
        for guess, true in zip(guesses, truths, strict=True)
    ]
    return _tiles(pictures, DOUBTFUL, words)


def _tiles(pictures: np.ndarray[Any, Any], columns: int, words: Sequence[tuple[str, str]]) -> Figure:
    rows = -(-len(pictures) // columns)
    figure = Figure(figsize=(0.62 * columns, 0.8 * rows), layout="constrained")
    for panel, picture, (title, colour) in zip(
        figure.subplots(rows, columns).flat, pictures, words, strict=True
    ):
        panel.imshow(picture, cmap="gray_r", vmin=0, vmax=1)
        panel.set_title(title, fontsize=7, color=colour, pad=2)
        panel.axis("off")
    return figure
