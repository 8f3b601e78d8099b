"""Adam for small networks, where torch's Adam spends most of a step on looking up options and states."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from compound.compat import adam_states, add_param_group, foreach_add_, fused_adam_

ONE = torch.tensor(1.0, dtype=torch.float32)  # with alpha=1: torch converts numbers once per parameter


class Adam(torch.optim.Adam):
    """torch's fused Adam, but devices, dtypes, options and states are looked up once instead of every step.

    Results are bit-equal to torch's, and either class loads the state dict of the other.
    """

    _cached: dict[int, tuple[list[Tensor], ...]]  # by group: parameters, both moments and counts

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        add_param_group(self, param_group)

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        self._cached = {}

    def zero_grad(self, set_to_none: bool = True) -> None:
        if not set_to_none:
            return super().zero_grad(False)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for k, group in enumerate(self.param_groups):
            parameters, means, squares, counts = self._states(k, group)
            if parameters:
                foreach_add_(counts, ONE, alpha=1)
                fused_adam_(
                    parameters,
                    [p.grad for p in parameters],  # type: ignore[misc]
                    means,
                    squares,
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

    def _states(self, k: int, group: dict[str, Any]) -> tuple[list[Tensor], ...]:
        """Group k's parameters with a gradient, their first and second moments, and their step counts.

        States of new parameters are initialised. The lists are cached until other parameters have gradients.
        """
        if not hasattr(self, "_cached"):
            self._cached = {}
        parameters = [p for p in group["params"] if p.grad is not None]
        cached = self._cached.get(k)
        if (
            cached is None
            or len(cached[0]) != len(parameters)
            or any(a is not b for a, b in zip(cached[0], parameters, strict=True))
        ):
            if not all(self.state[p] for p in parameters):
                adam_states(self, group, [], [], [], [], [], [])
            states = [self.state[p] for p in parameters]
            names = ("exp_avg", "exp_avg_sq", "step")
            cached = (parameters, *([state[name] for state in states] for name in names))
            self._cached[k] = cached
        return cached
