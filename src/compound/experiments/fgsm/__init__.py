"""Fast gradient sign attacks: figures 3 and 6 (all methods), 4 (samples in training), 5 (stronger attacks).

Kristiadi et al. (2019), section 5.3. 1,000 test images, strengths 0 to 1, under the two protocols of
protocols.py, on the models of the out-of-distribution experiments.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from compound.experiments import ood
from compound.experiments.base import ALL_METHODS, Experiment
from compound.experiments.fgsm import protocols
from compound.experiments.fgsm.page import draw_page
from compound.experiments.fgsm.protocols import Curve
from compound.experiments.identity import ONE_MEMBER, PUBLISHED, Run
from compound.experiments.runs import Outcome, Result, RunContext
from compound.models import Model
from compound.models.distance_aware import DistanceAware
from compound.random import named_generator
from compound.report.page import Claim, Page

STRENGTHS = tuple(round(0.1 * k, 1) for k in range(11))
PGD_STRENGTHS = (0.1, 0.3, 1.0)
PGD_IMAGES = 100
IMAGES = {"quick": 200, "paper": 1000}
DRAWS = {"quick": 20, "paper": 100}  # of the published protocol
# passes of a published attack -> draws of the sound attack shown with it
PASSES = {1: protocols.ONE, 10: protocols.TEN, 100: protocols.HUNDRED}
SAMPLES = {"quick": (1, 3), "paper": (1, 3, 5, 10)}  # per training step


@dataclass(frozen=True, kw_only=True)
class FgsmExperiment(Experiment):
    """Attacks on the models of an out-of-distribution experiment."""

    source: ood.OodExperiment  # whose models are attacked
    # compares methods, samples per training step, or attacks
    kind: Literal["methods", "samples", "strong"] = "methods"

    def grid(self, preset: str, seeds: int, methods: Sequence[str]) -> list[Run]:
        runs = [replace(run, experiment=self.name) for run in self.source.grid(preset, seeds, methods)]
        runs = [run for run in runs if run.variant != ONE_MEMBER]
        if self.kind == "samples":
            runs = [_single_network(run) for run in runs]
            return [_with_samples(run, samples) for run in runs for samples in SAMPLES[preset]]
        if self.kind == "strong":  # also published forms with the most samples: most robust in the paper
            published = [run for run in runs if run.variant == PUBLISHED]
            runs += [_with_samples(run, SAMPLES[preset][-1]) for run in published]
        return runs

    def work(self, run: Run, context: RunContext) -> Outcome:
        preset = ood.preset_of(run)
        model, test = self.source.fit(run, context)
        model = without_wrapper(model)
        rows = torch.randperm(len(test.x), generator=named_generator(run.seed, "attacked"))[: IMAGES[preset]]
        x, y, draws = test.x[rows], test.y[rows], DRAWS[preset]

        def generator_for(*names: str | int) -> Generator:
            return named_generator(run.seed, *names)

        if self.kind == "strong":
            curves = self._strong_attacks(run, context, model, x, y, draws, generator_for)
        else:
            surrogate = protocols.to_double(ood.without_far_noise(model))
            curves = {
                "published": protocols.published_protocol(
                    model, x, y, STRENGTHS, generator_for("published"), draws
                ),
                "sound": protocols.sound_protocol(model, surrogate, x, y, STRENGTHS, generator_for("sound")),
            }
        metrics: dict[str, Any] = {name: curve._asdict() for name, curve in curves.items()}
        metrics["silent"] = protocols.zero_gradient_fraction(model, x, y, generator_for("silent"))
        return Outcome(metrics, {})

    def _strong_attacks(
        self,
        run: Run,
        context: RunContext,
        model: Model,
        x: Tensor,
        y: Tensor,
        draws: int,
        generator_for: Callable[..., Generator],
    ) -> dict[str, Curve]:
        """Accuracy under stronger attacks, and under those that reveal masked gradients, by name.

        `generator_for(name, ...)` makes the generator of each attack.
        """
        config = replace(ood.TRAIN_CONFIG, steps=ood.STEPS[ood.preset_of(run)])
        map_run = replace(run, method="map", options=ood.OPTIONS["map"], settings=asdict(config))
        map_model, _ = self.source.fit(map_run, context)
        transfer_surrogate = protocols.to_double(ood.without_far_noise(map_model))
        single_precision = ood.without_far_noise(model)
        surrogate = protocols.to_double(single_precision)
        curves = {}
        for passes, counts in PASSES.items():
            n_draws = max(2, draws // passes)  # about the same number of passes in all
            curves[f"published, {passes} passes"] = protocols.published_protocol(
                model, x, y, STRENGTHS, generator_for("published", passes), n_draws, passes
            )
            curves[f"sound, {passes} draws"] = protocols.sound_protocol(
                model, surrogate, x, y, STRENGTHS, generator_for("sound", passes), counts
            )
        curves["single precision"] = protocols.sound_protocol(
            model, single_precision, x, y, STRENGTHS, generator_for("sound", 10), loss=protocols.nll_loss
        )
        first = slice(PGD_IMAGES)
        pgd = partial(protocols.pgd_attack, draws=(5, 1), steps=20, restarts=2)
        generator = generator_for("many steps")
        curves["many steps"] = pgd(model, surrogate, x[first], y[first], PGD_STRENGTHS, generator)
        curves["transferred"] = protocols.sound_protocol(
            model, transfer_surrogate, x, y, STRENGTHS, generator_for("transferred")
        )
        generator = generator_for("random signs")
        curves["random signs"] = protocols.random_sign_attack(model, x, y, STRENGTHS, generator)
        return curves

    def fill_page(self, results: Sequence[Result], page: Page) -> list[Claim]:
        return draw_page(results, page, self.kind)


def without_wrapper(model: Model) -> Model:
    """The model inside a `DistanceAware`, which adds far noise to a baseline; CDNs keep theirs."""
    return model.inner if isinstance(model, DistanceAware) else model


def _single_network(run: Run) -> Run:
    """A run of a CDN with one member; runs of other methods are unchanged."""
    return replace(run, options={**run.options, "members": 1}) if run.method in ood.PUBLISHED_OPTIONS else run


def _with_samples(run: Run, samples: int) -> Run:
    """The run with this many samples per training step.

    One is the default of the methods: the run is then unchanged, and shares its fit with other experiments.
    """
    return run if samples == 1 else replace(run, options={**run.options, "samples": samples})


SAMPLES_METHODS = ("ml-cdn", "vb-cdn", "noisy-kfac", "vmg")
STRONG_METHODS = ("ml-cdn", "vb-cdn", "map", "deep-ensemble", "mc-dropout", "vmg", "noisy-kfac")
EXPERIMENTS = {
    name: FgsmExperiment(
        name=name,
        title=title,
        data=(source.in_dist, source.outliers),
        source=source,
        kind=kind,  # type: ignore[arg-type]
        methods=methods,
        all_methods=SAMPLES_METHODS if kind == "samples" else ALL_METHODS,
    )
    for name, title, source, kind, methods in (
        ("fgsm-mnist", "MNIST under attack", ood.MNIST, "methods", ALL_METHODS),
        ("fgsm-fashion", "Fashion-MNIST under attack", ood.FASHION, "methods", ALL_METHODS),
        (
            "fgsm-samples",
            "Attacks and the number of samples in training",
            ood.MNIST,
            "samples",
            SAMPLES_METHODS,
        ),
        ("fgsm-strong", "Stronger attacks, and gradient masking", ood.MNIST, "strong", STRONG_METHODS),
    )
}
