"""Damaged models and checkpoints, thousands of them: each is refused in one sentence or answers soundly, fast and in little memory.

    python tests/fuzz_files.py            all of them, in two processes (`make fuzz`)
    python tests/fuzz_files.py --every 50 one in fifty

Children ask, the parent watches: a crash, a wait or a grab for memory ends a child and is counted, the next one goes on.
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
from fuzz_damages import Damage, copied, damages

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

SECONDS = 2.0  # of computing, for loading and answering
WAIT = 20.0  # seconds of the clock after which a child is taken to hang: others share this machine
MEMORY = 2**30  # bytes, beyond what the process needs by itself
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
    """Something whole on disk, and how it is asked."""

    name: str
    path: Path
    ask: Callable[
        [Path], None
    ]  # raises ValueError with a sentence, or AssertionError for an answer that is none


# What there is to damage


def table(rows: int, words: bool) -> Any:
    draw = np.random.default_rng(rows)
    numbers = draw.normal(size=(rows, 2))
    if not words:
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


def weights(path: Path) -> tuple[bytes, Any]:
    """What decides whether a model could be written beyond its end."""
    return (path / TENSORS).read_bytes(), json.loads((path / CONFIG).read_text())["config"].get("model")


def estimator(folder: Path, method: str, kind: str, words: bool) -> Subject:
    x, draw = table(40, words), np.random.default_rng(1)
    y = (
        draw.normal(size=(40, 2))
        if kind == "regression"
        else draw.choice(["a", "b", "c"] if words else [0, 1], 40)
    )
    made = CompoundRegressor if kind == "regression" else CompoundClassifier
    path = folder / f"{method} {kind} {'words' if words else 'numbers'}"
    made(Method(method, **SMALL[method]), max_epochs=1, random_state=0, warm_start=True).fit(x, y).save(path)
    asked = table(12, words)
    (asked.iloc if words else asked)[0, 0] = 1e6
    again, whole_weights = (x, y), weights(path)

    def ask(path: Path) -> None:
        found = compound.load(path)
        if isinstance(found, CompoundRegressor):
            numbers = [
                *found.predict(asked, return_std=True),
                *found.predict_interval(asked),
                *found.decompose(asked),
            ]
        else:
            probs = found.predict_proba(asked)
            assert np.abs(probs.sum(1) - 1).max() < 1e-6 and probs.min() >= 0, "probabilities that are none"
            assert found.predict(asked).shape == (12,) and found.predict_set(asked).shape == probs.shape
            numbers = [probs, *found.decompose(asked)]
        for values in (*numbers, found.ood_score(asked)):
            assert np.isfinite(values).all(), "not a number"
        if weights(path) != whole_weights and found.warm_start:
            found.set_params(max_epochs=1, batch_size=None).fit(
                *again
            )  # a tensor of another size would be written beyond its end

    return Subject(path.name, path, ask)


class Enough(Exception):
    pass


def trained(method: str, kind: str, checkpoint: Path | None = None, stop: int | None = None) -> Any:
    """A model after all steps, or after some of them, each in the checkpoint."""
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
    left, loss = [stop], model.loss

    def counted(batch: Any, generator: Any) -> Any:
        left[0] = None if left[0] is None else left[0] - 1
        if left[0] == -1:
            raise Enough
        return loss(batch, generator)

    model.loss = counted  # type: ignore[method-assign]
    with suppress(Enough):
        fit(model, data, STEPS, 0, checkpoint, save_every=1e9 if stop is None else 0.0)
    return model


def answers(model: Any) -> None:
    x = 3 * torch.randn(8, 3, generator=named_generator(1))
    wrong = predictive_defect(model.predict(torch.cat([x, 1e4 * x]), 10, named_generator(2)))
    assert wrong is None, wrong


def library_model(folder: Path, method: str, kind: str) -> Subject:
    path = folder / f"{method} {kind} model"
    compound.save_model(trained(method, kind), path)
    return Subject(path.name, path, lambda path: answers(compound.load_model(path)))


def checkpoint(folder: Path, method: str, kind: str, finished: bool) -> Subject:
    path = folder / f"{method} {kind} {'finished' if finished else 'running'}"
    trained(method, kind, path, None if finished else 4)
    return Subject(path.name, path, lambda path: answers(trained(method, kind, path)))


def subjects(folder: Path, few: bool = False) -> list[Subject]:
    """Whole models and checkpoints of every kind."""
    made = [
        estimator(folder, "ml-cdn", "regression", words=True),
        estimator(folder, "vb-cdn", "classification", words=False),
        library_model(folder, "mnf", "regression"),
        checkpoint(folder, "map", "regression", finished=False),
    ]
    if few:
        return made
    for k, method in enumerate(
        ("vb-cdn", "mnf", "laplace", "deep-ensemble", "dpn", "temperature", "bnn-lv", "noisy-adam")
    ):
        made.append(estimator(folder, method, ("regression", "classification")[k % 2], words=k % 3 == 0))
    made.append(estimator(folder, "ml-cdn", "classification", words=True))
    for k, method in enumerate(METHODS):
        made.append(library_model(folder, method, ("classification", "regression")[k % 2]))
    for method, kind, finished in (
        ("ml-cdn", "classification", False),
        ("vb-cdn", "regression", False),
        ("mnf", "classification", False),
        ("laplace", "regression", True),
        ("bnn-lv", "regression", False),
        ("noisy-kfac", "classification", False),
        ("ml-cdn", "regression", True),
    ):
        made.append(checkpoint(folder, method, kind, finished))
    return made


# The watch


class Outcome(NamedTuple):
    case: int
    words: str  # "refused", "answered", or what went wrong
    detail: str
    seconds: float  # of computing
    memory: int  # bytes at the peak so far, beyond the start


def judged(subject: Subject, damage: Damage, place: Path) -> tuple[str, str]:
    target = copied(subject.path, place / "it")
    damage.do(target)
    try:
        subject.ask(target)
        return "answered", ""
    except ValueError as error:
        sentence = str(error)
        if type(error) not in (ValueError, UnicodeError) or "\n" in sentence or not 20 < len(sentence) < 1500:
            return "no sentence", repr(sentence[:300])
        if "alloc" in sentence or "bad_alloc" in sentence:
            return "memory", sentence
        return "refused", sentence
    except AssertionError as error:
        return "invalid answer", str(error)
    except MemoryError as error:
        return "memory", repr(error)
    except BaseException as error:
        import traceback

        last = traceback.extract_tb(error.__traceback__)[-1]
        return "traceback", f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def child(cases: Sequence[tuple[int, Subject, Damage]], place: Path, results: Any) -> None:
    faulthandler.disable()  # the parent tells
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
            words, detail = judged(subject, damage, place)
        results.send(Outcome(number, words, detail, time.process_time() - begin, peak() - before))


def watched(cases: Sequence[tuple[int, Subject, Damage]], place: Path) -> Iterator[Outcome]:
    """The outcome of every case; a child that dies or waits is replaced."""
    context = multiprocessing.get_context("fork")  # compound is imported and compiled once
    left = list(cases)
    while left:
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=child, args=(left[:500], place, theirs), daemon=True)
        process.start()
        theirs.close()
        running, done = left[0][0], 0
        try:
            while done < min(500, len(left)):
                if not mine.poll(WAIT):
                    yield Outcome(running, "hang", "", WAIT, 0)
                    done += 1
                    break
                said = mine.recv()
                if isinstance(said, Outcome):
                    done += 1
                    late = said.words in ("refused", "answered") and said.seconds > SECONDS
                    grown = said.memory > MEMORY
                    yield said._replace(words="slow" if late else "memory") if late or grown else said
                else:
                    running = said
        except EOFError:
            process.join()
            yield Outcome(running, "crash", f"exit code {process.exitcode}", 0.0, 0)
            done += 1
        process.kill()
        process.join()
        left = left[done:]


def all_cases(made: Sequence[Subject]) -> list[tuple[int, Subject, Damage]]:
    pairs = [(subject, damage) for subject in made for damage in damages(subject.path)]
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
        (folder / "whole").mkdir()
        made = subjects(folder / "whole")
        for subject in made:
            subject.ask(copied(subject.path, folder / "it"))  # each works while it is whole
        cases = [case for case in all_cases(made) if options.subject in case[1].name]
        cases = cases[:: options.every][part::parts]
        by_number = {number: (subject, damage) for number, subject, damage in cases}
        counts: Counter[str] = Counter()
        begin, longest, most = time.monotonic(), 0.0, 0
        for outcome in watched(cases, folder):
            counts[outcome.words] += 1
            if sum(counts.values()) % 1000 == 0:
                print(f"{sum(counts.values())} of {len(cases)}: {dict(counts)}", file=sys.stderr, flush=True)
            longest, most = max(longest, outcome.seconds), max(most, outcome.memory)
            if outcome.words not in ("refused", "answered"):
                subject, damage = by_number[outcome.case]
                print(f"{outcome.words}: {subject.name}: {damage.label}: {outcome.detail}", flush=True)
        print(
            f"{sum(counts.values())} cases of {len(made)} subjects in {time.monotonic() - begin:.0f} s: {dict(counts)}; "
            f"longest {longest:.2f} s of computing, at most {most / 2**20:.0f} MiB more"
        )
    return int(any(word not in ("refused", "answered") for word in counts))


if __name__ == "__main__":
    sys.exit(main())
