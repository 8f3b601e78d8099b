"""Types and shapes of named tensors, compared before the tensors are read or copied."""

import reprlib
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor


class TensorSpec(NamedTuple):
    """Type and shape of a tensor that need not be in memory."""

    dtype: torch.dtype
    shape: tuple[int, ...]


def specs_of(tensors: Mapping[str, Tensor]) -> dict[str, TensorSpec]:
    """The specs of named tensors."""
    return {name: TensorSpec(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def check_specs(specs: Mapping[str, TensorSpec], expected: Mapping[str, TensorSpec]) -> None:
    """Raise ValueError unless names, types and shapes agree. A size of 0 in `expected` matches any size."""
    for name in sorted(specs.keys() - expected.keys()):
        raise ValueError(f"there is an unexpected tensor {reprlib.repr(name)}")
    for name, (dtype, shape) in expected.items():
        if name not in specs:
            raise ValueError(f"the tensor {reprlib.repr(name)} is missing")
        actual = specs[name]
        if actual.dtype is not dtype:
            raise ValueError(f"the tensor {reprlib.repr(name)} is of {actual.dtype}, not {dtype}")
        if len(actual.shape) != len(shape) or any(
            a != b for a, b in zip(actual.shape, shape, strict=True) if b
        ):
            raise ValueError(
                f"the tensor {reprlib.repr(name)} has shape {actual.shape}, it does not fit {shape}"
            )


def check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError for a tensor that holds NaN or infinity."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"the tensor {reprlib.repr(name)} holds NaN or infinity")
