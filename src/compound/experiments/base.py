"""The interface of an experiment."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from compound.experiments.identity import Run
from compound.experiments.run_memory import IMAGES, DataSize
from compound.experiments.runs import Outcome, Result, RunContext
from compound.models import METHODS
from compound.report.page import Claim, Page

PRESETS = ("quick", "paper")  # paper trains as long as the paper does, quick at most a tenth of that
# of any task and any number of rows
ALL_METHODS = tuple(n for n, method in METHODS.items() if method.max_rows is None and len(method.kinds) == 2)


@dataclass(frozen=True, kw_only=True)
class Experiment(ABC):
    """A grid of runs, the work of one run, and a page that shows the results."""

    name: str
    title: str
    data: tuple[str, ...] = ()  # data sets of the catalogue that it reads
    methods: tuple[str, ...] = ALL_METHODS  # by default
    quick_methods: tuple[str, ...] = ()  # by default with preset quick; (): those of methods
    all_methods: tuple[str, ...] = ALL_METHODS  # that can be chosen
    not_installed: tuple[str, ...] = ()  # of all_methods: their library is not on this machine
    n_seeds: int = 1  # by default

    @abstractmethod
    def grid(self, preset: str, seeds: int, methods: Sequence[str]) -> list[Run]:
        """The runs of these methods with seeds 0, 1, ..., seeds - 1."""

    @abstractmethod
    def work(self, run: Run, context: RunContext) -> Outcome:
        """Train the model of one run and evaluate it; the metrics and arrays to save."""

    def data_size(self, run: Run) -> DataSize:
        """The size of the data of a run, from which the memory that it needs is estimated."""
        return IMAGES

    @abstractmethod
    def fill_page(self, results: Sequence[Result], page: Page) -> list[Claim]:
        """Add figures, tables and claims about the results to the page; return the claims."""
