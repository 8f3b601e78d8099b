"""Trials of `compound tune` as tasks of a Ray cluster; the study is a file that all nodes share."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from compound.experiments.run_memory import PROCESS_BYTES
from compound.experiments.workers import torch_threads
from compound.ray.cluster import check_nodes, first_line
from compound.tables.tuning import TrialResult, TuneRequest, TuningRows, run_trial

ROW_BYTES = 100  # per value of the table, while a model is fitted
MAX_RETRIES = 3  # of a trial whose worker or node died


class RayRunner:
    """Performs trials on a cluster, as many at once as it has cores."""

    def __init__(self, ray: Any, rows: TuningRows, request: TuneRequest, study: Path):
        check_nodes(ray, (str(study.absolute().parent),))
        self.ray = ray
        self.room = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self.arguments = [ray.put(rows), request, study.absolute()]
        memory = PROCESS_BYTES + ROW_BYTES * rows.train.x.size
        self.task = ray.remote(num_cpus=1, memory=memory, max_retries=MAX_RETRIES)(_run_trial)
        self.running: dict[Any, int] = {}  # reference -> id of the trial

    def start(self, trial_id: int, values: dict[str, Any]) -> None:
        """Start a trial with these settings."""
        self.running[self.task.remote(*self.arguments, trial_id, values)] = trial_id

    def wait(self) -> Iterable[tuple[int, TrialResult]]:
        """Trials that have ended, at least one."""
        ready, _ = self.ray.wait(list(self.running), num_returns=1)
        for reference in ready:
            trial_id = self.running.pop(reference)
            try:
                yield trial_id, self.ray.get(reference)
            except self.ray.exceptions.RayError as error:
                yield trial_id, TrialResult("failed", reason=first_line(error))


def _run_trial(
    rows: TuningRows, request: TuneRequest, study: Path, trial_id: int, values: dict[str, Any]
) -> TrialResult:
    with torch_threads(1):
        return run_trial(rows, request, study, trial_id, values)
