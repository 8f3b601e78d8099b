"""Autocast stays outside: layers and models compute in the precision of their weights, whatever torch's own layers around them do."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

C = TypeVar("C", bound=Callable[..., Any])
SHORT = (torch.bfloat16, torch.float16)  # what autocast makes of float32


def full_precision(call: C) -> C:
    """The same function without autocast; what autocast has shortened on the way in becomes float32 again."""

    @wraps(call)
    def inside(*values: Any, **named: Any) -> Any:
        if not torch.is_autocast_enabled("cpu"):
            return call(*values, **named)
        with torch.autocast("cpu", enabled=False):
            return call(*map(_long, values), **{name: _long(value) for name, value in named.items()})

    return inside  # type: ignore[return-value]


def by_hand(backward: C) -> C:
    """A backward pass that is written by hand, in full precision. Its own gradient would be missing from a second derivative: refused."""

    @wraps(backward)
    def once(ctx: Any, *gradients: Tensor) -> Any:
        if torch.is_grad_enabled():  # create_graph=True
            raise ValueError("this layer has no second derivative: leave out create_graph=True")
        return backward(ctx, *gradients)

    return full_precision(once)  # type: ignore[return-value]


def _long(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in SHORT else value
