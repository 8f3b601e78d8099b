"""Layers and models compute in the precision of their weights, also under autocast."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

C = TypeVar("C", bound=Callable[..., Any])
REDUCED = (torch.bfloat16, torch.float16)  # the dtypes of autocast


def full_precision(function: C) -> C:
    """Decorator: run without autocast, and cast arguments that autocast has reduced back to float32."""

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_autocast_enabled("cpu"):
            return function(*args, **kwargs)
        with torch.autocast("cpu", enabled=False):
            named = {name: _to_float32(value) for name, value in kwargs.items()}
            return function(*map(_to_float32, args), **named)

    return wrapper  # type: ignore[return-value]


def once_differentiable(backward: C) -> C:
    """Decorator of a hand-written backward pass: full precision, and ValueError for create_graph=True.

    torch's decorator of this name raises in the second pass; this one raises in the first.
    """

    @wraps(backward)
    def wrapper(ctx: Any, *gradients: Tensor) -> Any:
        if torch.is_grad_enabled():  # create_graph=True
            raise ValueError("this layer has no second derivative: leave out create_graph=True")
        return backward(ctx, *gradients)

    return full_precision(wrapper)  # type: ignore[return-value]


def _to_float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in REDUCED else value
