"""Adam for parameters of single training rows, which have a gradient only in batches that hold the row."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class RowAdam(torch.optim.Adam):
    """Adam that updates, in groups with `size` = N, only the B rows with a gradient, at N / B times the rate.

    Every row has its own count of steps: its updates are Adam's, as if only batches with this row existed.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        groups = [group for group in self.param_groups if "size" in group]
        local = [(p, p.grad, g) for g in groups for p in g["params"] if p.grad is not None]
        for parameter, _, _ in local:
            parameter.grad = None  # so that the step of torch's Adam leaves it out
        loss = super().step(closure)
        for parameter, gradient, group in local:
            parameter.grad = gradient
            self._update_rows(parameter, gradient, group)
        return loss

    def _update_rows(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """One step of Adam for the rows of a parameter (rows, n) whose gradient is not 0."""
        state, (first, second) = self.state[parameter], group["betas"]
        if not state:
            state["step"] = torch.zeros(len(gradient), 1, dtype=torch.float32)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(gradient), torch.zeros_like(gradient)
        rows = gradient.any(1).nonzero().squeeze(1)
        g = gradient[rows]
        count = state["step"][rows].double() + 1
        mean = torch.lerp(state["exp_avg"][rows], g, 1 - first)
        square = torch.lerp(state["exp_avg_sq"][rows], g.square(), 1 - second)
        lr = group["lr"] * group["size"] / max(len(rows), 1)
        root = (square / (1 - second**count)).sqrt()
        parameter[rows] -= lr * mean / (1 - first**count) / (root + group["eps"])
        state["step"][rows], state["exp_avg"][rows], state["exp_avg_sq"][rows] = count.float(), mean, square
