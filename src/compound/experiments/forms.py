"""A method in one of its forms: default or variant, with or without far noise, samples per training step."""

from typing import Any, NamedTuple

from compound.experiments.identity import PUBLISHED, Run
from compound.models import METHODS
from compound.report.plot_styles import CDNS, family

LABELS = {PUBLISHED: "published"}  # of variants, on pages


class ModelForm(NamedTuple):
    """One method in one form. Its runs differ only by seed and are averaged; str() labels rows and curves."""

    method: str
    variant: str = ""  # of the run
    far_noise: bool = False
    n_samples: int | None = None  # per training step, where runs differ in it

    @classmethod
    def from_run(cls, run: Run, far_noise: bool = False, n_samples: int | None = None) -> "ModelForm":
        """The form of a run; `far_noise` and `n_samples` are not read from its options."""
        return cls(run.method, run.variant, far_noise, n_samples)

    def __str__(self) -> str:
        variant = f", {LABELS.get(self.variant, self.variant)}" if self.variant else ""
        far_noise = " + far noise" if self.far_noise else ""
        samples = "" if self.n_samples is None else f", S={self.n_samples}"
        return f"{self.method}{variant}{far_noise}{samples}"

    @property
    def is_published(self) -> bool:
        """Whether options and training are those of the paper."""
        return self.variant == PUBLISHED

    @property
    def is_cdn(self) -> bool:
        return family(self.method) == CDNS

    @property
    def saw_outliers(self) -> bool:
        """Whether the method was trained on out-of-distribution rows."""
        return METHODS[self.method].needs_ood_rows


Groups = dict[ModelForm, list[dict[str, Any]]]  # form -> metrics of each of its seeds
