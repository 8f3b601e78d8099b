"""The files that an exported program is written to: .pt2, .onnx and .mar, each with compound.json inside.

compound.json names inputs and outputs, the classes, and the threshold of is_ood.
"""

import inspect
import io
import json
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from compound.estimators import onnx_operations

METADATA = "compound.json"
# program, metadata, name, and inputs with the outputs that they must give -> bytes of the file
Writer = Callable[[Any, dict[str, Any], str, Tensor, Sequence[Tensor]], bytes]


def writer(path: Path) -> Writer:
    """What makes files with the ending of `path`; ValueError for another ending, or a missing package."""
    if path.suffix not in WRITERS:
        raise ValueError(
            f"{path} has an unknown format: end it in .pt2 (torch.export), .onnx (ONNX Runtime) "
            "or .mar (TorchServe)"
        )
    if path.suffix == ".onnx":
        _require_onnx()
    return WRITERS[path.suffix]


def equal(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether outputs agree, up to the rounding of float32 in the units of each output."""
    return all(
        torch.allclose(a, b, rtol=1e-5, atol=1e-6 * float(b.abs().max()))
        for a, b in zip(actual, expected, strict=True)
    )


def write_program(
    program: Any, metadata: dict[str, Any], name: str, x: Tensor, expected: Sequence[Tensor]
) -> bytes:
    """A .pt2 file; `torch.export.load` reads it."""
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={METADATA: json.dumps(metadata)})
    return buffer.getvalue()


def write_onnx(
    program: Any, metadata: dict[str, Any], name: str, x: Tensor, expected: Sequence[Tensor]
) -> bytes:
    """An .onnx file, whose outputs ONNX Runtime has computed and compared; metadata under compound.json."""
    runtime = _require_onnx()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter uses what torch deprecates
        decomposed = program.run_decompositions(onnx_operations.DECOMPOSITIONS)
        exported: Any = torch.onnx.export(decomposed, dynamo=True, verbose=False, input_names=["x"])
    model = _name_outputs(exported.model_proto, metadata["outputs"])
    entry = model.metadata_props.add()
    entry.key, entry.value = METADATA, json.dumps(metadata)
    data: bytes = model.SerializeToString()
    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    outputs = [torch.from_numpy(output) for output in session.run(None, {"x": x.numpy()})]
    if not equal(outputs, expected):
        raise ValueError(
            f"{name} cannot be exported to ONNX: its program rounds in another way, write a .pt2"
        )
    return data


def _name_outputs(model: Any, names: Sequence[str]) -> Any:
    """Call the outputs of a model so, whatever its other values are called."""
    import onnx

    model = onnx.compose.add_prefix(model, "_", rename_inputs=False)
    for output, name in zip(model.graph.output, names, strict=True):
        model.graph.node.append(onnx.helper.make_node("Identity", [output.name], [name]))
        output.name = name
    return model


def write_archive(
    program: Any, metadata: dict[str, Any], name: str, x: Tensor, expected: Sequence[Tensor]
) -> bytes:
    """A .mar file: the program, and the handler with which TorchServe answers requests."""
    from compound.estimators import torchserve_handler

    manifest = {
        "runtime": "python",
        "model": {
            "modelName": name,
            "serializedFile": torchserve_handler.PROGRAM,
            "handler": "torchserve_handler.py",
            "modelVersion": "1.0",
        },
        "modelServerVersion": "1.0",
        "implementationVersion": "1.0",
        "specificationVersion": "1.0",
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest, indent=2))
        archive.writestr("torchserve_handler.py", inspect.getsource(torchserve_handler))
        archive.writestr(torchserve_handler.PROGRAM, write_program(program, metadata, name, x, expected))
    return buffer.getvalue()


WRITERS: dict[str, Writer] = {".pt2": write_program, ".onnx": write_onnx, ".mar": write_archive}


def _require_onnx() -> Any:
    """The module `onnxruntime`; ValueError where a package for ONNX is missing."""
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401  used by torch.onnx
    except ImportError as error:
        raise ValueError("ONNX is not installed: pip install 'compound-torch[onnx]'") from error
    return onnxruntime
