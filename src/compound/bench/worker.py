"""A process that times the cases of one checkout: python -P worker.py, with PYTHONPATH=<checkout>/src.

It imports only that checkout's `compound`. It writes lines of JSON to stdout: first the path of the package
and the names of its cases; then, for each line {"case": index, "repeats": n} on stdin, a line {"seconds":
processor time per call}. It exits at the end of stdin.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

Call = Callable[[], None]
MIN_CALLS = {"train noisy-kfac / plain": 50}  # its factors are decomposed only every 50 steps


def load_cases() -> dict[str, Call]:
    """The function to time of each benchmark case, by the name of the case; works for old checkouts too."""
    try:
        from compound.bench.cases import cases
    except ImportError:  # a checkout from before `bench.cases`
        return dict(_collect_from_compare())
    return {case.name: case.ours for case in cases()}


def _collect_from_compare() -> Iterator[tuple[str, Call]]:
    """Names and functions that `bench.speed` of an old checkout passes to `compare`."""
    from compound.bench import speed

    def compare(name: str, ours: Call, *_: Any) -> tuple[str, Call]:
        return name, ours

    speed.compare = compare  # type: ignore[attr-defined]
    yield from speed.measure(1)  # type: ignore[call-arg, arg-type, misc]


def main() -> None:
    """Answer timing requests on stdin until its end."""
    import torch

    import compound

    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to stderr
    torch.set_num_threads(1)
    calls = load_cases()

    def reply(content: Any) -> None:
        replies.write(json.dumps(content) + "\n")
        replies.flush()

    reply({"file": compound.__file__, "cases": list(calls)})
    for line in sys.stdin:
        request = json.loads(line)
        name = list(calls)[request["case"]]
        repeats = max(request["repeats"], MIN_CALLS.get(name, 1))
        start = time.process_time()
        for _ in range(repeats):
            calls[name]()
        reply({"seconds": (time.process_time() - start) / repeats})


if __name__ == "__main__":
    main()
