"""Every private function of torch that this library calls, fetched here and nowhere else.

Private functions may go with any release of torch. One that is gone is named in one sentence, before any work.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

import torch

TESTED = "2.13"  # the release that all of it was tested with


def private(path: str) -> Any:
    """What torch has under a dotted name such as "torch._foreach_mul"."""
    found, done = torch, "torch"
    try:
        for word in path.split(".")[1:]:
            done = f"{done}.{word}"
            found = getattr(found, word) if hasattr(found, word) else import_module(done)
    except ImportError:
        raise ValueError(
            f"torch {torch.__version__} has no {path}, which compound calls: install torch {TESTED}"
        ) from None
    return found


# One call for a list of tensors: small tensors cost more in calls than in arithmetic. In place where the name ends in "_".
foreach_add_: Callable[..., None] = private("torch._foreach_add_")
foreach_clamp_max_: Callable[..., None] = private("torch._foreach_clamp_max_")
foreach_clamp_min_: Callable[..., None] = private("torch._foreach_clamp_min_")
foreach_lerp_: Callable[..., None] = private("torch._foreach_lerp_")
foreach_mul: Callable[..., tuple[torch.Tensor, ...]] = private("torch._foreach_mul")
foreach_mul_: Callable[..., None] = private("torch._foreach_mul_")
foreach_norm: Callable[..., tuple[torch.Tensor, ...]] = private("torch._foreach_norm")
fused_adam_: Callable[..., None] = private("torch._fused_adam_")  # what torch.optim.Adam(fused=True) ends in
adam_states: Callable[..., Any] = private(
    "torch.optim.Adam._init_group"
)  # starts the states of a group's parameters

# Derivatives torch has by name.
tanh_backward: Callable[..., torch.Tensor] = private("torch.ops.aten.tanh_backward")
threshold_backward: Callable[..., torch.Tensor] = private("torch.ops.aten.threshold_backward")
hardtanh_backward: Callable[..., torch.Tensor] = private("torch.ops.aten.hardtanh_backward")

# Who is looking on.
dispatch_modes: Callable[[], int] = private("torch._C._len_torch_dispatch_stack")  # traces, fake tensors
transforms: Callable[[], Any] = private(
    "torch._C._functorch.peek_interpreter_stack"
)  # torch.func: vmap, grad; None outside of them
graph_is_kept: Callable[[], bool] = private(
    "torch._C._autograd._get_current_graph_task_keep_graph"
)  # may this backward come again?


TRACING = "torch.fx.experimental.proxy_tensor"  # fetched when asked for: it takes half a second to import


def make_fx(function: Callable[..., Any], mode: str) -> Callable[..., torch.nn.Module]:
    """Called with an example, a trace of the function."""
    return private(f"{TRACING}.make_fx")(function, tracing_mode=mode)  # type: ignore[no-any-return]


def untraced() -> AbstractContextManager[None]:
    """Outside of such a trace."""
    return private(f"{TRACING}.disable_proxy_modes_tracing")()  # type: ignore[no-any-return]
