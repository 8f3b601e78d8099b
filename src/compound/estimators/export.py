"""A fitted estimator as a program, for serving without this library.

The ending of the file says for what: .pt2 is a `torch.export` program, .onnx one for ONNX Runtime, .mar an
archive for TorchServe, which holds a .pt2 (`export_files`).

Input: `x` (rows, width) in float64, what `encoder_.numbers(table)` gives: missing values replaced, categories
as indicators (for a numeric table without missing values: the table itself, and a column of zeros, the
surprise). Outputs, by name, in float64: mean and std (regression) or probabilities (classification), then
total, aleatoric, epistemic, and ood_score.
All random draws are constants of the program, which takes a fixed number of rows at a time.

    program = torch.export.load("model.pt2").module()
    mean, std, total, aleatoric, epistemic, ood_score = program(x)
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from compound.compat import make_fx, untraced
from compound.estimators import export_files
from compound.estimators.encoder import LIMIT
from compound.estimators.memory import GB, available
from compound.estimators.prediction import n_draws, postprocess, score_block
from compound.io.atomic import write_atomic
from compound.models import Model
from compound.predictive import GaussianPredictive
from compound.random import named_generator

if TYPE_CHECKING:
    from compound.estimators.base import Estimator

ROWS = 128  # of a program, by default
MAX_ROWS = 4096  # of a program: more make it no faster
TRACE_FACTOR = 32  # times the memory of a prediction: a trace keeps intermediate results (measured: 1 to 26)
UNCERTAINTY_OUTPUTS = ("total", "aleatoric", "epistemic", "ood_score")


class _ConstantNoise(TorchFunctionMode):
    """Makes random numbers constants of a trace, and its branches independent of the data.

    Functions with a generator as argument are computed outside the trace. The method `dpn` clamps its outputs
    only where `aminmax` finds some out of bounds; here `aminmax` returns -∞ and ∞, so that it always clamps.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.aminmax:
            with untraced():
                low = torch.tensor(-torch.inf, dtype=torch.float32)
                return low, -low
        if "generator" in (kwargs or {}) or func is torch.empty:  # empty: to be filled with random bits
            with untraced():
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def export(estimator: "Estimator", path: str | Path, rows: int = ROWS) -> None:
    """Write a fitted estimator as a program to `path` (.pt2, .onnx or .mar).

    The program takes exactly `rows` rows at a time: pad the last block. ValueError for a model whose
    program gives other predictions than the model.
    """
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(estimator)
    path = Path(path)
    writer = export_files.writer(path)
    _check_rows(rows, estimator.model_)
    encoder = estimator.encoder_
    program = _program(estimator)
    noise = torch.randn(rows, encoder.width, generator=named_generator(0, "example"), dtype=torch.float64)
    shift = torch.from_numpy(encoder.shift)
    scale = torch.from_numpy(encoder.scale)
    example = shift + scale * noise
    with torch.no_grad():
        traced: nn.Module = make_fx(program, "real")(example)
        for name, value in [*vars(traced).items(), *traced._buffers.items()]:
            if isinstance(value, Tensor):  # slices of one draw share memory, which a file cannot
                setattr(traced, name, value.detach().clone(memory_format=torch.contiguous_format))
        exported = torch.export.export(traced, (example,))
        other = shift + 3 * scale * noise
        expected = program(other)
        if not export_files.equal(exported.module()(other), expected):
            raise ValueError(
                f"{estimator.model_.method} cannot be exported: "
                "its predictions depend on more than the inputs of the row"
            )
        data = writer(exported, _metadata(estimator, rows), path.stem, other, expected)
    write_atomic(path, data)


def _check_rows(rows: int, model: Model) -> None:
    """Raise ValueError where a program for `rows` rows is too large, or tracing it needs too much memory."""
    if not 1 <= rows <= MAX_ROWS:
        raise ValueError(
            f"rows is {rows:,}: a program takes between 1 and {MAX_ROWS:,} rows at a time, "
            "predict more in blocks"
        )
    row_bytes = TRACE_FACTOR * 4 * (model.floats_per_row(*n_draws(model)) + model.inputs)
    free = available()
    if free is not None and rows * row_bytes > free:
        advice = f"give at most {free // row_bytes:,} rows" if free >= row_bytes else "free some memory"
        raise ValueError(
            f"a program for {rows:,} rows needs about {rows * row_bytes / GB:.1f} GB to make, "
            f"{free / GB:.1f} GB are free: {advice}"
        )


def _program(estimator: "Estimator") -> Callable[[Tensor], tuple[Tensor, ...]]:
    """A function from encoded numbers (rows, width) to the program's outputs, in the order given above."""
    model = copy.deepcopy(estimator.model_).requires_grad_(False)
    shift = torch.from_numpy(estimator.encoder_.shift)
    scale = torch.from_numpy(estimator.encoder_.scale)

    def program(x: Tensor) -> tuple[Tensor, ...]:
        standardised = ((x - shift) / scale).clamp(-LIMIT, LIMIT).float()
        with _ConstantNoise(), torch.no_grad():
            generator = named_generator(estimator.seed_, "ask")
            block = model.predict_chunk(standardised, *n_draws(model), generator)
            predictive: Any = postprocess(estimator, block)
            first = predictive.epistemic.reshape(len(x), -1)[:, 0]
            score = score_block(estimator.ood_detector_, standardised, first)
        is_gaussian = isinstance(predictive, GaussianPredictive)
        outputs = (predictive.mean, predictive.std) if is_gaussian else (predictive.probs,)
        return (*outputs, predictive.total, predictive.aleatoric, predictive.epistemic, score)

    return program


def _metadata(estimator: Any, rows: int) -> dict[str, Any]:
    """What a user of the program must know: names of inputs, outputs and classes, and the OOD threshold."""
    is_regression = estimator.model_.task.kind == "regression"
    outputs = ["mean", "std"] if is_regression else ["probabilities"]
    numbers = [column.name for column in estimator.encoder_.columns if column.labels[:1] == [column.name]]
    metadata: dict[str, Any] = {
        "inputs": estimator.encoder_.names,
        "numbers": numbers,  # inputs that every row has; the others are indicators, and the surprise
        "rows": rows,
        "outputs": [*outputs, *UNCERTAINTY_OUTPUTS],
        "threshold": estimator.threshold_,
    }
    if not is_regression:
        metadata["classes"] = [str(label) for label in estimator.classes_]
    return metadata
