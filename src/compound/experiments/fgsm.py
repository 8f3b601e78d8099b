"""Attacks by the sign of the gradient: figures 3, 6 (all methods), 4 (samples in training) and 5 (stronger attacks).

Kristiadi et al. (2019), section 5.3. 1,000 test images, strengths 0 to 1, under the two protocols of `robust`.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from compound.experiments import ood, robust
from compound.experiments.fgsm_page import draw_page
from compound.experiments.robust import Curve
from compound.experiments.runs import Outcome, Result, Run, RunContext
from compound.models import METHODS as ALL
from compound.models import Model
from compound.models.distance_aware import DistanceAware
from compound.random import named_generator
from compound.report.page import Claim, Page

STRENGTHS = tuple(round(0.1 * k, 1) for k in range(11))
FEW = (0.1, 0.3, 1.0)  # strengths of attacks in many steps
IMAGES = {"quick": 200, "paper": 1000}
DRAWS = {"quick": 20, "paper": 100}  # of the published protocol
PASSES = {1: robust.ONE, 10: robust.TEN, 100: robust.HUNDRED}  # with as many draws of the sound attack
SAMPLES = {"quick": (1, 3), "paper": (1, 3, 5, 10)}


@dataclass(frozen=True)
class Fgsm:
    """One such experiment."""

    name: str
    TITLE: str
    in_dist: ood.Ood  # whose models are attacked
    kind: str = "methods"  # "methods", "samples" (several numbers of draws in training) or "strong" (stronger attacks)
    METHODS: tuple[str, ...] = tuple(ALL)
    ALL_METHODS: tuple[str, ...] = tuple(ALL)
    PRESETS: tuple[str, ...] = tuple(ood.STEPS)
    SEEDS: int = 1

    @property
    def DATA(self) -> tuple[str, ...]:
        return self.in_dist.in_dist, self.in_dist.outliers

    def grid(self, preset: str, seeds: int, methods: Sequence[str]) -> list[Run]:
        names = {self.in_dist.in_dist, f"{self.in_dist.in_dist}, as published"}
        runs = [run for run in self.in_dist.grid(preset, seeds, methods) if run.data in names]
        if self.kind == "samples":  # of a single network
            own = [
                replace(run, options={**run.options, "members": 1}) if run.method in ood.PUBLISHED else run
                for run in runs
            ]
            # one draw is every method's default: left unsaid, the model is that of the other experiments
            draws = [{"samples": samples} if samples > 1 else {} for samples in SAMPLES[preset]]
            runs = [replace(run, options={**run.options, **number}) for run in own for number in draws]
        if (
            self.kind == "strong"
        ):  # published forms also with the most draws in training, which the paper found hardest to fool
            most = {"samples": SAMPLES[preset][-1]}
            runs += [
                replace(run, options={**run.options, **most})
                for run in runs
                if run.data.endswith("published")
            ]
        return [replace(run, experiment=self.name) for run in runs]

    def work(self, run: Run, place: RunContext) -> Outcome:
        preset = ood.preset_of(run)
        model, test = self.in_dist.trained(run, place)
        model = (
            model.inner if isinstance(model, DistanceAware) else model
        )  # baselines as they are known, without far noise
        order = torch.randperm(len(test.x), generator=named_generator(run.seed, "attacked"))[: IMAGES[preset]]
        x, y, draws = test.x[order], test.y[order], DRAWS[preset]

        def stream(*words: str | int) -> torch.Generator:
            return named_generator(run.seed, *words)

        curves: dict[str, Curve] = {}
        if self.kind == "strong":
            curves |= self._strong(run, place, model, x, y, draws, stream)
        else:
            curves["published"] = robust.published(model, x, y, STRENGTHS, stream("published"), draws)
            curves["sound"] = robust.sound(
                model, robust.exact(ood.without_far_noise(model)), x, y, STRENGTHS, stream("sound")
            )
        metrics: dict[str, Any] = {name: curve._asdict() for name, curve in curves.items()}
        metrics["silent"] = robust.silent(model, x, y, stream("silent"))
        return Outcome(metrics, {})

    def _strong(
        self,
        run: Run,
        place: RunContext,
        model: Model,
        x: torch.Tensor,
        y: torch.Tensor,
        draws: int,
        stream: Callable[..., torch.Generator],
    ) -> dict[str, Curve]:
        settings = replace(ood.BASE, steps=ood.STEPS[ood.preset_of(run)])
        plain = replace(run, method="map", options=ood.OPTIONS["map"], settings=asdict(settings))
        other, _ = self.in_dist.trained(plain, place)
        curves, single = {}, ood.without_far_noise(model)
        aim = robust.exact(single)
        for passes, counts in PASSES.items():
            few = max(2, draws // passes)  # as many passes in all: the average of images is what is looked at
            curves[f"published, {passes} passes"] = robust.published(
                model, x, y, STRENGTHS, stream("published", passes), few, passes
            )
            curves[f"sound, {passes} draws"] = robust.sound(
                model, aim, x, y, STRENGTHS, stream("sound", passes), counts
            )
        curves["single precision"] = robust.sound(
            model, single, x, y, STRENGTHS, stream("sound", 10), loss=robust.surprise
        )
        curves["many steps"] = robust.multi_step(
            model, aim, x[:100], y[:100], FEW, stream("many steps"), draws=(5, 1), steps=20, restarts=2
        )
        curves["transferred"] = robust.transferred(
            model, robust.exact(ood.without_far_noise(other)), x, y, STRENGTHS, stream("transferred")
        )
        curves["random signs"] = robust.random_signs(model, x, y, STRENGTHS, stream("random signs"))
        return curves

    def draw(self, results: Sequence[Result], page: Page) -> list[Claim]:
        return draw_page(results, page, self.kind)
