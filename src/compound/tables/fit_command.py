"""What `compound fit` does, whoever has started its processes: torchrun, Ray Train or nobody."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from compound.estimators.row_predictions import RowCallback, no_progress
from compound.io.paths import check_writable
from compound.models import METHODS
from compound.tables.fitting import FitRequest, check_fraction, check_model_path, request_method, save
from compound.tables.model_inputs import check_columns
from compound.tables.pages import fit_page, fit_summary
from compound.tables.parquet_rows import ParquetRows
from compound.tables.stream_fitting import Progress, fit_path, is_streamed, no_total
from compound.tables.table_files import column_names
from compound.train.processes import Processes


class FitCommand(NamedTuple):
    """A fit whose files are chosen and can be written."""

    table: Path
    out: Path  # of the model
    request: FitRequest
    leftovers: tuple[Path, ...]  # files that an interrupted fit goes on from; removed at the end

    def check(self, processes: Processes) -> None:
        """Raise ValueError for what needs no rows to be known: a method, a column, a damaged file."""
        request = self.request
        processes.check(METHODS[request_method(request).name], request.batch_size)
        check_fraction(request.test_fraction)
        names = ParquetRows.open(self.table).names if self.table.is_dir() else column_names(self.table)
        request.roles.check(self.table, names, request.target, request.drop)
        check_columns(
            self.table, names, request.target, request.drop, request.keep, request.roles.no_features
        )

    def run(
        self, processes: Processes, callback: RowCallback = no_progress, progress: Progress = no_total
    ) -> list[tuple[str, str]]:
        """Fit, and save the model in the first process; returns the lines of the summary, [] in others."""
        processes.check(METHODS[request_method(self.request).name], self.request.batch_size)
        verbose = self.request.verbose and processes.is_first
        request = replace(self.request, distributed=processes.size > 1, verbose=verbose)
        result = fit_path(self.table, request, callback, progress)
        if not processes.is_first:
            return []
        save(result, self.out, fit_page(result).html())
        for path in self.leftovers:
            path.unlink(missing_ok=True)
        report = self.out / "report.html"
        return [*fit_summary(result), ("model", str(self.out)), ("report", str(report))]


def prepare(table: Path, out: Path, request: FitRequest) -> FitCommand:
    """Choose the files of a fit; ValueError, before any work, if one cannot be written."""
    check_model_path(out)
    request = replace(request, stream=is_streamed(table, request.stream))
    leftovers: list[Path] = []
    if request.stream:
        request = replace(request, work=Path(f"{out}.rows.parquet"))
        leftovers.append(Path(f"{out}.rows.parquet"))
    if request.stream and not request.checkpoint:
        request = replace(request, checkpoint=Path(f"{out}.checkpoint"))
        leftovers.append(Path(f"{out}.checkpoint"))
    if request.checkpoint:
        check_writable(request.checkpoint)
    return FitCommand(table, out, request, tuple(leftovers))
