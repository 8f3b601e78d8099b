"""A fitted estimator as a `torch.export` program, for serving without this library.

Input: `x` (rows, numbers) in float64, what `encoder_.numbers(table)` gives: the table's own numbers, gaps filled, words spelt out
(for a table of numbers without gaps: the table itself). Outputs, by name, in float64: mean and std (targets) or probabilities
(classes), then total, aleatoric, epistemic, and distance, the score of strangeness. All draws are fixed inside the program.

    program = torch.export.load("model.pt2").module()
    mean, std, total, aleatoric, epistemic, distance = program(x)
"""

import copy
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from compound.compat import make_fx, untraced
from compound.estimators.encoder import LIMIT
from compound.estimators.memory import GB, available
from compound.estimators.prediction import BLOCK, N_INNER, N_SAMPLES
from compound.io.persist import write_atomic
from compound.models import Model
from compound.predictive import GaussianPredictive
from compound.random import named_generator

if TYPE_CHECKING:
    from compound.estimators.base import Estimator

MOST = 4096  # rows of a program: more of them make it no faster
TRACED = 32  # times what answering takes: a trace keeps what is in between (measured: 1 to 26 times)
AFTER = ("total", "aleatoric", "epistemic", "distance")


class _Fixed(TorchFunctionMode):
    """Nothing in the program depends on chance or on values.

    Whatever takes a generator is computed outside the trace and becomes a constant. `dpn` bounds its outputs only where some are
    out of bounds: a range without bounds makes it do so always.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.aminmax:
            with untraced():
                return torch.tensor(-torch.inf, dtype=torch.float32), torch.tensor(
                    torch.inf, dtype=torch.float32
                )
        if (
            "generator" not in (kwargs or {}) and func is not torch.empty
        ):  # empty: about to be filled with random bits
            return func(*args, **(kwargs or {}))
        with untraced():
            return func(*args, **(kwargs or {}))


def _check_rows(rows: int, model: Model) -> None:
    """Before any work: a trace runs with as many rows as its program will take."""
    if not 1 <= rows <= MOST:
        raise ValueError(
            f"rows is {rows:,}: a program takes between 1 and {MOST:,} rows at a time, ask about more in blocks"
        )
    row = TRACED * 4 * (model.floats_per_row(N_SAMPLES[model.task.kind], N_INNER) + model.inputs)
    free = available()
    if free is not None and rows * row > free:
        fitting = f"give at most {free // row:,} rows" if free >= row else "free some memory"
        raise ValueError(
            f"a program for {rows:,} rows needs about {rows * row / GB:.1f} GB to make, {free / GB:.1f} GB are free: {fitting}"
        )


def export(estimator: "Estimator", path: str | Path, rows: int = BLOCK) -> None:
    """Write the program to `path` (.pt2). It takes exactly `rows` rows at a time: pad the last block."""
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(estimator)
    _check_rows(rows, estimator.model_)
    encoder, model = estimator.encoder_, copy.deepcopy(estimator.model_).requires_grad_(False)
    shift, scale = torch.from_numpy(encoder.shift), torch.from_numpy(encoder.scale)
    targets = model.task.kind == "regression"

    def program(x: Tensor) -> tuple[Tensor, ...]:
        standard = ((x - shift) / scale).clamp(-LIMIT, LIMIT).float()
        with _Fixed(), torch.no_grad():
            generator = named_generator(estimator.seed_, "ask")
            plain = model.predict_chunk(standard, N_SAMPLES[model.task.kind], N_INNER, generator)
            distance = estimator.ood_detector_.scores(standard).double()
        answer = estimator._postprocess(plain)
        first = (answer.mean, answer.std) if isinstance(answer, GaussianPredictive) else (answer.probs,)  # type: ignore[attr-defined]
        return (*first, answer.total, answer.aleatoric, answer.epistemic, distance)

    around = torch.randn(rows, encoder.width, generator=named_generator(0, "example"), dtype=torch.float64)
    example, other = shift + scale * around, shift + 3 * scale * around
    with torch.no_grad():
        traced: nn.Module = make_fx(program, "real")(example)
        for name, value in [*vars(traced).items(), *traced._buffers.items()]:
            if isinstance(value, Tensor):  # parts of one draw share memory, which a file cannot
                setattr(traced, name, value.detach().clone(memory_format=torch.contiguous_format))
        exported = torch.export.export(traced, (example,))
        for mine, asked in zip(exported.module()(other), program(other), strict=True):
            if not torch.allclose(mine, asked, rtol=1e-5, atol=1e-7):
                raise ValueError(
                    f"{model.method} cannot be exported: its answers depend on more than the row that is asked about"
                )
    names = ["mean", "std"] if targets else ["probabilities"]
    words: dict[str, Any] = {
        "inputs": encoder.names,
        "rows": rows,
        "outputs": [*names, *AFTER],
        "threshold": estimator.threshold_,
    }
    if not targets:
        words["classes"] = [str(value) for value in estimator.classes_]  # type: ignore[attr-defined]
    buffer = io.BytesIO()
    torch.export.save(exported, buffer, extra_files={"compound.json": json.dumps(words)})
    write_atomic(path, buffer.getvalue())
