"""`compound fit --ray`: the processes of a fit are workers of Ray Train, which meet as those of torchrun do.

A worker that dies ends the others; Ray Train starts all of them again, and they go on from the checkpoint of
the fit, to the same bits.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from compound.io.atomic import write_atomic
from compound.ray import cluster
from compound.tables.fit_command import FitCommand
from compound.train.processes import Processes

MAX_FAILURES = 5  # of workers, before the fit is given up


def fit_on_ray(address: str, workers: int, cores: int, command: FitCommand) -> list[tuple[str, str]]:
    """Fit on a Ray cluster; the table and the model's folder are in a folder that all nodes share.

    Parameters
    ----------
    address : str
        Of the cluster, see `compound.ray.cluster.connected`.
    workers : int
        Processes, each with a part of every batch.
    cores : int
        Of each worker.
    command : FitCommand

    Returns
    -------
    list of (str, str)
        The lines of the summary.

    Raises
    ------
    ValueError
        Before any work, for a method that `workers` cannot train together, or a table without a column that
        is asked for; and if the cluster does not answer, or too many workers die.
    """
    command.check(Processes(0, workers))
    table, out = command.table.absolute(), command.out.absolute()
    request = command.request
    checkpoint = (request.checkpoint or Path(f"{out}.checkpoint")).absolute()
    leftovers = tuple(
        {*(path.absolute() for path in command.leftovers), *([] if request.checkpoint else [checkpoint])}
    )
    work = request.work and request.work.absolute()
    request = replace(request, checkpoint=checkpoint, work=work, verbose=False)
    with cluster.connected(address, workers * cores) as ray:
        cluster.check_nodes(ray, (str(table), str(out.parent)))
        cluster.check_fits(ray, cores, 0)
        answer = _train(workers, cores, FitCommand(table, out, request, leftovers))
    if isinstance(answer, str):
        raise ValueError(answer)
    return answer


def _train(workers: int, cores: int, command: FitCommand) -> list[tuple[str, str]] | str:
    """The summary, or the sentence of a ValueError."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.train.v2.api.exceptions import TrainingFailedError

    storage = command.out.with_name(f".{command.out.name}.ray")
    storage.mkdir(exist_ok=True)
    answer = storage / "answer.json"
    answer.unlink(missing_ok=True)
    trainer = TorchTrainer(
        _work,
        train_loop_config={"command": command, "cores": cores, "answer": answer},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": cores}),
        run_config=RunConfig(
            name="fit", storage_path=str(storage), failure_config=FailureConfig(max_failures=MAX_FAILURES)
        ),
    )
    try:
        trainer.fit()
        content: dict[str, Any] = json.loads(answer.read_text())
    except TrainingFailedError as error:
        raise ValueError(
            f"the fit on Ray was given up ({cluster.first_line(error)}): the same command goes on from "
            f"{command.request.checkpoint}"
        ) from error
    finally:
        shutil.rmtree(storage, ignore_errors=True)
    return content["error"] or [(name, text) for name, text in content["summary"]]


def _work(config: dict[str, Any]) -> None:
    """What a worker does; Ray Train has set up torch.distributed."""
    torch.set_num_threads(config["cores"])
    processes = Processes.of(distributed=True)
    answer: dict[str, Any] = {"summary": [], "error": ""}
    try:
        answer["summary"] = config["command"].run(processes)
    except ValueError as error:  # would come again in every attempt
        answer["error"] = str(error)
        torch.distributed.destroy_process_group()  # the others need not wait
    if processes.is_first or answer["error"]:
        write_atomic(config["answer"], json.dumps(answer).encode())
