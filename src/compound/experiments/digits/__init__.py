"""Out-of-distribution images for classifiers of scikit-learn's digits, a small and fast experiment.

A 64-100-10 network learns the digits and is evaluated on patches of photographs, noise and digits upside
down.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import torch

from compound import metrics
from compound.datasets import digits as datasets
from compound.experiments import ood
from compound.experiments.base import Experiment
from compound.experiments.digits.page import OOD_SETS, draw_page
from compound.experiments.identity import Run
from compound.experiments.runs import Outcome, Result, RunContext, fit_run
from compound.report.page import Claim, Page
from compound.train.config import default_train_config
from compound.train.holdout import holdout_weights
from compound.types import Task, make_dataset

STEPS = {"quick": 2000, "paper": 6000}
TASK = Task("classification", 10)
OPTIONS: dict[str, Any] = {"widths": (100,), "members": 1}
N_TRAIN = 1257
N_EXAMPLES = 8  # images of each data set on the page
N_UNCERTAIN = 16  # test digits of the largest entropy on the page


@dataclass(frozen=True, kw_only=True)
class DigitsExperiment(Experiment):
    """Each method learns the digits; its entropy on them is compared with that on other images."""

    def grid(self, preset: str, seeds: int, methods: Sequence[str]) -> list[Run]:
        settings = asdict(replace(default_train_config(TASK, N_TRAIN), steps=STEPS[preset]))
        pairs = product(range(seeds), methods)
        return [Run(self.name, method, "digits", seed, OPTIONS, settings) for seed, method in pairs]

    def work(self, run: Run, context: RunContext) -> Outcome:
        data = datasets.digits(run.seed)
        weight = holdout_weights(len(data.x_train), run.options["members"], 0.1, run.seed)
        model = fit_run(run, context, make_dataset(data.x_train, data.y_train, TASK, weight), TASK)
        rows = len(data.x_test)
        photographs, noise = datasets.photographs(rows, run.seed), datasets.noise(rows, run.seed)
        x_ood = {"photographs": photographs, "noise": noise, "mirrored": datasets.mirrored(data.x_test)}
        in_dist = ood.predict(model, data.x_test, run.seed)
        scores = {"accuracy": metrics.accuracy, "nll": metrics.nll, "ece": metrics.ece}
        numbers = {name: score(in_dist, data.y_test) for name, score in scores.items()}
        numbers["mmc"] = metrics.mmc(in_dist)
        plain = ood.predict(ood.without_far_noise(model), data.x_test, run.seed)
        numbers["accuracy_cost"] = metrics.accuracy(plain, data.y_test) - numbers["accuracy"]  # of far noise
        numbers["nll_cost"] = numbers["nll"] - metrics.nll(plain, data.y_test)
        entropy = in_dist.entropy()
        entropies = {"digits": entropy}
        for name in OOD_SETS:
            predictive = ood.predict(model, x_ood[name], run.seed)
            entropies[name] = predictive.entropy()
            numbers[f"mmc_{name}"] = metrics.mmc(predictive)
            numbers[f"auroc_{name}"] = metrics.auroc(entropy, entropies[name])
        uncertain = entropy.argsort(descending=True)[:N_UNCERTAIN]
        examples = torch.cat([x[:N_EXAMPLES] for x in (data.x_test, *x_ood.values())])
        shape = (datasets.SIDE, datasets.SIDE)
        arrays = {
            **{f"entropy_{name}": values.numpy() for name, values in entropies.items()},
            "doubtful": data.x_test[uncertain].unflatten(1, shape).numpy(),
            "doubtful_truth": data.y_test[uncertain].numpy(),
            "doubtful_guess": in_dist.label[uncertain].numpy(),
            "examples": examples.view(1 + len(x_ood), N_EXAMPLES, *shape).numpy(),
        }
        return Outcome(numbers, arrays)

    def fill_page(self, results: Sequence[Result], page: Page) -> list[Claim]:
        return draw_page(results, page)


EXPERIMENTS = {
    "digits": DigitsExperiment(
        name="digits",
        title="Digits: predictive entropy of out-of-distribution images",
        methods=("ml-cdn", "vb-cdn"),
        all_methods=("ml-cdn", "vb-cdn"),
        n_seeds=3,
    )
}
