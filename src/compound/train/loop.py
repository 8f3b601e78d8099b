"""The training loop: mini-batches, clipping, averaged weights, early stopping, checkpoints.

All random numbers come from generators named by purpose and step, so a run that is killed and resumed ends
with the same bits.
"""

import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import Generator

from compound.compat import foreach_lerp_
from compound.models.base import Loss, Model
from compound.random import PartGenerator, derive_seed, member_seed, named_generator
from compound.train.batches import batch_sampler, training_rows
from compound.train.checkpoint import Checkpoint
from compound.train.config import TrainConfig
from compound.train.evaluation import (
    LinAlgError,
    check_not_diverged,
    held_out_batch,
    held_out_nll,
    swapped,
    update_best,
)
from compound.train.gradients import flush_denormals, make_clipper
from compound.train.history import History
from compound.train.processes import Processes
from compound.train.progress import FitCallback, ProgressReporter
from compound.train.state import TrainState, copy_tensors, model_tensors, trained_parameters
from compound.types import Batch, part_rows

FLUSH_EVERY = 50  # steps between calls of `flush_denormals`
DEFAULT_EVALS = 50  # entries of the history where `n_evals` is 0


def fit(
    model: Model,
    data: Batch,
    config: TrainConfig,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    save_every: float = 30.0,
    callback: FitCallback | None = None,
    distributed: bool = False,
    batches: Callable[[int], Batch] | None = None,
) -> History:
    """Train a model.

    Rows of weight 0 are held out (by that member); their NLL chooses the step whose weights are final.

    Parameters
    ----------
    model : Model
        A model of `build`; it is trained in place.
    data : Batch
        All rows, as `make_dataset` gives them.
    config : TrainConfig
        Steps, batch size, learning rate, early stopping.
    seed : int, default=0
        Seed of batches and noise; equal seeds give equal bits.
    checkpoint : str or Path, default=None
        A file from which an interrupted fit is resumed to the same bits, and to which progress is saved.
    save_every : float, default=30.0
        Seconds between saves of the checkpoint.
    callback : callable, default=None
        Called with a `FitProgress` about ten times a second.
    distributed : bool, default=False
        Whether the processes of torch.distributed fit one model: each computes a part of every batch, and
        all end with the same weights. Every process calls `fit` with the same arguments.
    batches : callable, default=None
        Maps a step to its batch, where the training rows do not fit in memory; `data` is then a sample of
        the rows, whose `size` is the weight of all rows. By default batches are drawn from `data`.

    Returns
    -------
    History
        The learning curve, and the step whose weights are final.

    Raises
    ------
    ValueError
        If the data cannot be trained on, the checkpoint is of another run, or training diverges.

    Examples
    --------
    >>> import torch
    >>> from compound import Task, TrainConfig, build, fit, make_dataset
    >>> x = torch.linspace(-3, 3, 100).unsqueeze(1)
    >>> task = Task("regression", 1)
    >>> model = build("map", 1, task)
    >>> history = fit(model, make_dataset(x, x.sin(), task), TrainConfig(steps=100))
    >>> history["nll"][-1] < history["nll"][0]
    True
    """
    processes = Processes.of(distributed)
    rows = training_rows(model, data)
    processes.check(model, min(config.batch_size, len(rows)))
    file = None if checkpoint is None else Checkpoint(checkpoint, model, data, config, seed)
    content = None if file is None else processes.from_first(file.load)
    if content is None or not content["finished"]:
        model.on_fit_start(data, named_generator(seed, "start"))  # also sets sizes that depend on the data
    if file is not None and content is not None:
        file.restore_model(content)
        if content["finished"]:
            return History(**content["history"])

    optimizer = model.optimizer(config)
    state = TrainState.initial(model, config, data.x.device)
    if file is not None and content is not None:
        state = file.restore_state(content, optimizer, state)
    batch_at = batches or batch_sampler(data, rows, config, seed)
    trainer = _Trainer(model, data, batch_at, config, seed, optimizer, state, processes)
    if processes.is_first:
        trainer.run(file, save_every, callback)
    else:
        trainer.run(None, save_every, None)
    trainer.restore_best()
    model.on_fit_end(data, named_generator(seed, "finish"))
    check_not_diverged(model, data, config, seed, state.step)
    history = state.history()
    if file is not None:
        if content is not None:
            file.check_result()
        processes.from_first(partial(file.save_finished, history))
    return history


class _Trainer:
    """A fit in progress: model, optimizer and state, and the methods that change them.

    `batch_at` maps a step to its batch.
    """

    def __init__(
        self,
        model: Model,
        data: Batch,
        batch_at: Callable[[int], Batch],
        config: TrainConfig,
        seed: int,
        optimizer: torch.optim.Optimizer,
        state: TrainState,
        processes: Processes,
    ):
        self.model = model
        self.data = data
        self.config = config
        self.seed = seed
        self.optimizer = optimizer
        self.state = state
        self.parameters = trained_parameters(model)
        self.tensors = model_tensors(model)
        self.batch_at = batch_at
        self.processes = processes
        limits = (config.clip_value, config.clip_norm) if model.clips_gradients else (None, None)
        self.clip = make_clipper(self.parameters, model.members, *limits)
        self.eval_batch = held_out_batch(data, config, seed)
        self.eval_every = max(1, config.steps // (config.n_evals or DEFAULT_EVALS))
        self.seeds = [member_seed(seed, k) for k in range(model.members)]
        # seeded at every step: cheaper than new ones
        self.generators = tuple(Generator() if processes.size == 1 else PartGenerator() for _ in self.seeds)
        self.nll_sum, self.kl_sum = state.sums.unbind()  # views, (members,) each

    def run(self, file: Checkpoint | None, save_every: float, callback: FitCallback | None) -> None:
        """Train until the last step, early stopping or divergence.

        The checkpoint `file` is saved every `save_every` seconds.
        """
        state = self.state
        reporter = None if callback is None else ProgressReporter(callback, self.config.steps, state.step)
        last_save = time.monotonic()
        while not self.is_complete():
            try:
                loss = self.train_step()
            except LinAlgError:  # weights with NaN
                return
            if state.step % self.eval_every == 0 or state.step == self.config.steps:
                self.evaluate()
                if not all(bool(parameter.isfinite().all()) for parameter in self.parameters):
                    return  # no further step would make them finite
            now = time.monotonic()
            if file is not None and now - last_save >= save_every:
                file.save_running(self.optimizer, state)
                last_save = time.monotonic()
            if reporter is not None and reporter.is_due(now, state.step):
                reporter.report(now, state.step, float(loss.nll.detach().mean()), state.held_out)

    def is_complete(self) -> bool:
        """Whether all steps are done, or early stopping applies."""
        return self.state.step >= self.config.steps or self.state.out_of_patience(self.config)

    def train_step(self) -> Loss:
        """Do one optimizer step, and return the loss of its batch before the step."""
        state = self.state
        step = state.step
        lr = self.config.lr_at(step / self.config.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("factor", 1.0)
        for generator, seed in zip(self.generators, self.seeds, strict=True):
            generator.manual_seed(derive_seed(seed, "noise", step))
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.gradients(self.batch_at(step))
        state.skipped += self.clip()
        self.optimizer.step()
        if state.ema:
            decay = min(self.config.ema_decay, (1 + step) / (10 + step))
            with torch.no_grad():
                foreach_lerp_(state.ema, self.parameters, 1 - decay)
        self.nll_sum.add_(loss.nll.detach())
        self.kl_sum.add_(loss.kl.detach())
        state.step += 1
        if state.step % FLUSH_EVERY == 0:
            flush_denormals(self.parameters, self.optimizer, state.ema)
        return loss

    def gradients(self, batch: Batch) -> Loss:
        """Compute the gradients of a batch's loss, and return the loss, of all processes together."""
        size = self.processes.size
        if size == 1:
            loss = self.model.loss(batch, self.generators)
            loss.total.backward()  # type: ignore[no-untyped-call]
            return loss
        for generator in self.generators:
            cast(PartGenerator, generator).take(part_rows(len(batch), self.processes.rank, size), len(batch))
        failed = False
        try:
            loss = self.model.loss(
                batch.part(self.processes.rank, size, self.processes.average), self.generators
            )
            loss.total.backward()  # type: ignore[no-untyped-call]
        except LinAlgError:
            failed = True
            loss = Loss(
                *[torch.zeros(n, dtype=batch.x.dtype) for n in ((), self.model.members, self.model.members)]
            )
        total, nll, kl = (value.detach().clone() for value in loss)
        if self.processes.mean_gradients(self.parameters, (total, nll, kl), failed):
            raise LinAlgError("a process cannot factorise a matrix")
        return Loss(total, nll, kl)

    def evaluate(self) -> None:
        """Evaluate the averaged weights on the held-out rows, if there are any, and extend the history."""
        if self.eval_batch is not None:
            with swapped(self.parameters, self.state.ema):
                nll = held_out_nll(self.model, self.eval_batch, self.config, self.seed, self.processes)
                update_best(self.state, self.tensors, nll)
        self.state.record(self.config.lr_at((self.state.step - 1) / self.config.steps))

    def restore_best(self) -> None:
        """Set the model to its final weights: those of the best evaluation, or else the last averaged ones.

        Raises ValueError if there is no finite evaluation and the last weights have diverged.
        """
        state = self.state
        self.optimizer.zero_grad(set_to_none=True)
        if state.best:
            if not self.is_complete():
                warnings.warn(
                    f"training diverged by step {state.step}: the weights of step {state.best_step} are kept",
                    stacklevel=3,
                )
            copy_tensors(self.tensors, state.best)
            return
        if state.ema:
            copy_tensors(self.parameters, state.ema)
        check_not_diverged(self.model, self.data, self.config, self.seed, state.step)
