"""Every private function of torch that this library calls, looked up here and nowhere else.

Private functions may disappear with any release of torch. A missing one is reported by name when the library
is imported.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from importlib import import_module
from typing import Any

import torch

TESTED = "2.13"  # the release of torch that these functions were tested with


def private(path: str) -> Any:
    """The attribute of torch at a dotted path such as "torch._foreach_mul_"; ValueError if missing."""
    value: Any = torch
    prefix = "torch"
    try:
        for name in path.split(".")[1:]:
            prefix = f"{prefix}.{name}"
            value = getattr(value, name) if hasattr(value, name) else import_module(prefix)
    except ImportError:
        raise ValueError(
            f"torch {torch.__version__} has no {path}, which compound calls: install torch {TESTED}"
        ) from None
    return value


# One call for a list of tensors: small tensors cost more in calls than in arithmetic. In place if the name
# ends in "_".
foreach_add_: Callable[..., None] = private("torch._foreach_add_")
foreach_clamp_max_: Callable[..., None] = private("torch._foreach_clamp_max_")
foreach_clamp_min_: Callable[..., None] = private("torch._foreach_clamp_min_")
foreach_lerp_: Callable[..., None] = private("torch._foreach_lerp_")
foreach_mul_: Callable[..., None] = private("torch._foreach_mul_")

# The kernel of torch.optim.Adam(fused=True), and the function that creates a parameter group's state.
fused_adam_: Callable[..., None] = private("torch._fused_adam_")
adam_states: Callable[..., Any] = private("torch.optim.Adam._init_group")
# Without the decorator that keeps torch.compile out: it imports the compiler, which takes more than a second.
add_param_group: Callable[..., None] = private("torch.optim.Optimizer.add_param_group.__wrapped__")

# The number of active dispatch modes: traces and fake tensors.
dispatch_modes: Callable[[], int] = private("torch._C._len_torch_dispatch_stack")
# The innermost transform of torch.func (vmap, grad); None outside of them.
transforms: Callable[[], Any] = private("torch._C._functorch.peek_interpreter_stack")
# Whether the current backward pass keeps its graph, so that another one may follow.
retains_graph: Callable[[], bool] = private("torch._C._autograd._get_current_graph_task_keep_graph")

# Operations in exported programs that ONNX does not have.
ndtri: Callable[..., torch.Tensor] = private("torch.ops.aten.special_ndtri.default")
searchsorted: Callable[..., torch.Tensor] = private("torch.ops.aten.searchsorted.Tensor")
repeat_interleave: Callable[..., torch.Tensor] = private("torch.ops.aten.repeat_interleave.Tensor")

# Decorator: torch.compile leaves the function alone. The public one imports the compiler at once: a second.
uncompiled: Callable[..., Any] = private("torch._disable_dynamo")


@cache
def onednn() -> Callable[..., torch.Tensor]:
    """oneDNN's x (rows, in) times the transpose of weight (out, in); there are builds of torch without it."""
    return private("torch.ops.mkldnn._linear_pointwise.default")  # type: ignore[no-any-return]


def onednn_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # (rows, out)
    """x (rows, in) times the transpose of weight (out, in) by oneDNN, in float32, without a gradient."""
    return onednn()(x, weight, None, "none", [], "")


TRACING = "torch.fx.experimental.proxy_tensor"  # looked up on first use: importing it takes half a second


def make_fx(function: Callable[..., Any], mode: str) -> Callable[..., torch.nn.Module]:
    """A tracer: called with example inputs, it returns the traced graph of `function`.

    `mode` is torch's `tracing_mode`.
    """
    return private(f"{TRACING}.make_fx")(function, tracing_mode=mode)  # type: ignore[no-any-return]


def untraced() -> AbstractContextManager[None]:
    """A context in which a running trace records nothing."""
    return private(f"{TRACING}.disable_proxy_modes_tracing")()  # type: ignore[no-any-return]
