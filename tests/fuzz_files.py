"""Damaged models and checkpoints: each must be refused in one sentence or predict validly.

    python tests/fuzz_files.py            all of them, in two processes (`make fuzz`)
    python tests/fuzz_files.py --every 50 one in fifty

Child processes load and predict, the parent supervises: a crash, a hang or excessive memory ends a child and
is counted, and the next child continues.
"""

import argparse
import faulthandler
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from fuzz_damages import Damage, damages, fresh_copy

import compound
from compound import CompoundClassifier, CompoundRegressor, Method
from compound.io.model_directory import CONFIG, TENSORS
from compound.models import METHODS
from compound.models.sanity import predictive_defect
from compound.random import named_generator
from compound.train.config import TrainConfig
from compound.train.holdout import holdout_weights
from compound.train.loop import fit
from compound.types import Task, make_dataset

SECONDS = 2.0  # of processor time, for loading and predicting
WAIT = 20.0  # seconds of wall time after which a child counts as hanging
MEMORY = 2**30  # bytes, beyond those before the first case
SMALL: dict[str, dict[str, Any]] = {
    **{name: {"widths": (4,)} for name in METHODS},
    "ml-cdn": {"widths": (4,), "hyper": (3,), "members": 2},
    "vb-cdn": {"widths": (4, 3), "hyper": (3,), "basis": "vmg"},
    "mnf": {"widths": (4,), "flow_hidden": 3},
    "deep-ensemble": {"widths": (4,), "members": 2},
    "vib": {"widths": (4,), "latent": 3},
    "mdn": {"widths": (4,), "components": 2},
    "noisy-adam": {"widths": (4,), "far": 3.0},
}
STEPS = TrainConfig(steps=6, batch_size=10, n_evals=3, eval_samples=2)


class Subject(NamedTuple):
    """Something intact on disk, and how it is loaded and used."""

    name: str
    path: Path
    use: Callable[[Path], None]  # raises ValueError with a sentence, AssertionError for an invalid prediction


# What is damaged


def table(rows: int, text: bool) -> Any:
    draw = np.random.default_rng(rows)
    numbers = draw.normal(size=(rows, 2))
    if not text:
        return numbers
    frame = pd.DataFrame(
        {
            "size": numbers[:, 0],
            "weight": numbers[:, 1],
            "colour": draw.choice(["red", "blue", "green"], rows),
        }
    )
    frame.loc[rows // 2, "size"] = np.nan
    return frame


def model_files(path: Path) -> tuple[bytes, Any]:
    """Tensors and configuration of the model."""
    return (path / TENSORS).read_bytes(), json.loads((path / CONFIG).read_text())["config"].get("model")


def estimator(folder: Path, method: str, kind: str, text: bool) -> Subject:
    x, draw = table(40, text), np.random.default_rng(1)
    y = (
        draw.normal(size=(40, 2))
        if kind == "regression"
        else draw.choice(["a", "b", "c"] if text else [0, 1], 40)
    )
    Estimator = CompoundRegressor if kind == "regression" else CompoundClassifier
    path = folder / f"{method} {kind} {'text' if text else 'numbers'}"
    Estimator(Method(method, **SMALL[method]), max_epochs=1, random_state=0, warm_start=True).fit(x, y).save(
        path
    )
    x_new = table(12, text)
    (x_new.iloc if text else x_new)[0, 0] = 1e6
    intact = model_files(path)

    def use(path: Path) -> None:
        loaded = compound.load(path)
        if isinstance(loaded, CompoundRegressor):
            numbers = [
                *loaded.predict(x_new, return_std=True),
                *loaded.predict_interval(x_new),
                *loaded.decompose(x_new),
            ]
        else:
            probs = loaded.predict_proba(x_new)
            assert np.abs(probs.sum(1) - 1).max() < 1e-6 and probs.min() >= 0, "invalid probabilities"
            assert loaded.predict(x_new).shape == (12,) and loaded.predict_set(x_new).shape == probs.shape
            numbers = [probs, *loaded.decompose(x_new)]
        for values in (*numbers, loaded.ood_score(x_new)):
            assert np.isfinite(values).all(), "not a number"
        if model_files(path) != intact and loaded.warm_start:
            loaded.set_params(max_epochs=1, batch_size=None).fit(
                x, y
            )  # would write beyond the end of a tensor of another size

    return Subject(path.name, path, use)


class Stopped(Exception):
    """Ends a fit."""


def trained(method: str, kind: str, checkpoint: Path | None = None, stop: int | None = None) -> Any:
    """A model after all steps, or after `stop` steps, each saved in the checkpoint."""
    task = Task("regression", 2) if kind == "regression" else Task("classification", 3)
    model = Method(method, **SMALL[method]).build(3, task, 0)
    x = torch.randn(40, 3, generator=named_generator(0, "x"))
    y = (
        torch.randn(40, 2, generator=named_generator(0, "y"))
        if kind == "regression"
        else torch.randint(3, (40,), generator=named_generator(0, "y"))
    )
    weight = holdout_weights(40, model.members, 0.2, 0)
    data = make_dataset(
        x, y, task, weight if model.members > 1 else weight[0], 9 * x if method == "dpn" else None
    )
    remaining, loss = [stop], model.loss

    def counted(batch: Any, generator: Any) -> Any:
        remaining[0] = None if remaining[0] is None else remaining[0] - 1
        if remaining[0] == -1:
            raise Stopped
        return loss(batch, generator)

    model.loss = counted  # type: ignore[method-assign]
    with suppress(Stopped):
        fit(model, data, STEPS, 0, checkpoint, save_every=1e9 if stop is None else 0.0)
    return model


def check_predictions(model: Any) -> None:
    x = 3 * torch.randn(8, 3, generator=named_generator(1))
    defect = predictive_defect(model.predict(torch.cat([x, 1e4 * x]), named_generator(2), 2))
    assert defect is None, defect


def library_model(folder: Path, method: str, kind: str) -> Subject:
    path = folder / f"{method} {kind} model"
    compound.save_model(trained(method, kind), path)
    return Subject(path.name, path, lambda path: check_predictions(compound.load_model(path)))


def checkpoint(folder: Path, method: str, kind: str, finished: bool) -> Subject:
    path = folder / f"{method} {kind} {'finished' if finished else 'running'}"
    trained(method, kind, path, None if finished else 4)
    return Subject(path.name, path, lambda path: check_predictions(trained(method, kind, path)))


def subjects(folder: Path, few: bool = False) -> list[Subject]:
    """Intact models and checkpoints of every kind."""
    subjects = [
        estimator(folder, "ml-cdn", "regression", text=True),
        estimator(folder, "vb-cdn", "classification", text=False),
        library_model(folder, "mnf", "regression"),
        checkpoint(folder, "map", "regression", finished=False),
    ]
    if few:
        return subjects
    for k, method in enumerate(
        ("vb-cdn", "mnf", "laplace", "deep-ensemble", "dpn", "temperature", "bnn-lv", "noisy-adam")
    ):
        subjects.append(estimator(folder, method, ("regression", "classification")[k % 2], text=k % 3 == 0))
    subjects.append(estimator(folder, "ml-cdn", "classification", text=True))
    for k, method in enumerate(METHODS):
        subjects.append(
            library_model(folder, method, METHODS[method].kinds[(k + 1) % len(METHODS[method].kinds)])
        )
    for method, kind, finished in (
        ("ml-cdn", "classification", False),
        ("vb-cdn", "regression", False),
        ("mnf", "classification", False),
        ("laplace", "regression", True),
        ("bnn-lv", "regression", False),
        ("noisy-kfac", "classification", False),
        ("ml-cdn", "regression", True),
    ):
        subjects.append(checkpoint(folder, method, kind, finished))
    return subjects


# Supervision


class Outcome(NamedTuple):
    case: int
    result: str  # "refused", "predicted", or what went wrong
    detail: str
    seconds: float  # of processor time
    memory: int  # peak bytes so far, beyond those before the first case


def attempt(subject: Subject, damage: Damage, folder: Path) -> tuple[str, str]:
    """The result of using a damaged copy, and details."""
    target = fresh_copy(subject.path, folder / "it")
    damage.apply(target)
    try:
        subject.use(target)
        return "predicted", ""
    except ValueError as error:
        sentence = str(error)
        if type(error) not in (ValueError, UnicodeError) or "\n" in sentence or not 20 < len(sentence) < 1500:
            return "no sentence", repr(sentence[:300])
        if "alloc" in sentence or "bad_alloc" in sentence:
            return "memory", sentence
        return "refused", sentence
    except AssertionError as error:
        return "invalid prediction", str(error)
    except MemoryError as error:
        return "memory", repr(error)
    except BaseException as error:
        import traceback

        last = traceback.extract_tb(error.__traceback__)[-1]
        return "traceback", f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def child(cases: Sequence[tuple[int, Subject, Damage]], folder: Path, results: Any) -> None:
    """Run cases in a child process with bounded memory."""
    faulthandler.disable()  # the parent reports crashes
    torch.set_num_threads(1)
    size = (
        int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        if sys.platform == "linux"
        else None
    )
    if size is not None:
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    before = peak()
    for number, subject, damage in cases:
        results.send(number)
        begin = time.process_time()
        with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
            result, detail = attempt(subject, damage, folder)
        results.send(Outcome(number, result, detail, time.process_time() - begin, peak() - before))


def supervise(cases: Sequence[tuple[int, Subject, Damage]], folder: Path) -> Iterator[Outcome]:
    """The outcome of every case; a child that dies or hangs is replaced."""
    context = multiprocessing.get_context("fork")  # compound is imported and compiled once
    remaining = list(cases)
    while remaining:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=child, args=(remaining[:500], folder, sender), daemon=True)
        process.start()
        sender.close()
        running, done = remaining[0][0], 0
        try:
            while done < min(500, len(remaining)):
                if not receiver.poll(WAIT):
                    yield Outcome(running, "hang", "", WAIT, 0)
                    done += 1
                    break
                message = receiver.recv()
                if isinstance(message, Outcome):
                    done += 1
                    is_slow = message.result in ("refused", "predicted") and message.seconds > SECONDS
                    is_large = message.memory > MEMORY
                    result = "slow" if is_slow else "memory" if is_large else message.result
                    yield message._replace(result=result)
                else:
                    running = message
        except EOFError:
            process.join()
            yield Outcome(running, "crash", f"exit code {process.exitcode}", 0.0, 0)
            done += 1
        process.kill()
        process.join()
        remaining = remaining[done:]


def all_cases(subjects: Sequence[Subject]) -> list[tuple[int, Subject, Damage]]:
    pairs = [(subject, damage) for subject in subjects for damage in damages(subject.path)]
    return [(number, *pair) for number, pair in enumerate(pairs)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--part", default="0/1", help="k/n: this part of the cases")
    parser.add_argument("--subject", default="", help="only subjects whose name has this in it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    part, parts = map(int, options.part.split("/"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "intact").mkdir()
        intact = subjects(folder / "intact")
        for subject in intact:
            subject.use(fresh_copy(subject.path, folder / "it"))  # each works while it is intact
        cases = [case for case in all_cases(intact) if options.subject in case[1].name]
        cases = cases[:: options.every][part::parts]
        by_number = {number: (subject, damage) for number, subject, damage in cases}
        counts: Counter[str] = Counter()
        begin, longest, most = time.monotonic(), 0.0, 0
        for outcome in supervise(cases, folder):
            counts[outcome.result] += 1
            if sum(counts.values()) % 1000 == 0:
                print(f"{sum(counts.values())} of {len(cases)}: {dict(counts)}", file=sys.stderr, flush=True)
            longest, most = max(longest, outcome.seconds), max(most, outcome.memory)
            if outcome.result not in ("refused", "predicted"):
                subject, damage = by_number[outcome.case]
                print(f"{outcome.result}: {subject.name}: {damage.label}: {outcome.detail}", flush=True)
        print(
            f"{sum(counts.values())} cases of {len(intact)} subjects in {time.monotonic() - begin:.0f} s: "
            f"{dict(counts)}; longest {longest:.2f} s of processor time, at most {most / 2**20:.0f} MiB more"
        )
    return int(any(result not in ("refused", "predicted") for result in counts))


if __name__ == "__main__":
    sys.exit(main())
