"""Adam for small networks, whose steps cost more in preparation than in arithmetic."""

from collections.abc import Callable

import torch

ONE = torch.tensor(1.0)


class Adam(torch.optim.Adam):
    """torch's fused Adam without what it looks up again at every step: devices, dtypes and options that never change.

    The same bits, and a state that either loads.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not all(self.state[p] for p in parameters):
                self._init_group(group, [], [], [], [], [], [])
            if parameters:
                states = [self.state[p] for p in parameters]
                counts = [state["step"] for state in states]
                torch._foreach_add_(counts, ONE)  # a number would be made a tensor for each of them
                torch._fused_adam_(
                    parameters,
                    [p.grad for p in parameters],  # type: ignore[misc]
                    [state["exp_avg"] for state in states],
                    [state["exp_avg_sq"] for state in states],
                    [],
                    counts,
                    lr=group["lr"],
                    beta1=group["betas"][0],
                    beta2=group["betas"][1],
                    weight_decay=0.0,
                    eps=group["eps"],
                    amsgrad=False,
                    maximize=False,
                )
        return loss
