"""The optimizer of the noisy methods: each layer's gradient is divided by its own curvature.

Zhang, Sun, Duvenaud, Grosse (2018).
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

if TYPE_CHECKING:
    from compound.models.noisy import Noisy


class NaturalGradient(torch.optim.Optimizer):
    """Preconditioned gradient steps with momentum and a trust region; a learnt noise is updated by Adam.

    velocity "sum":  v <- β v + P^-1 D,  M <- M + lr v  (heavy ball).
    velocity "mean": D is replaced by its bias-corrected running mean, M <- M + lr P^-1 D.

    D is the gradient and P the damped curvature of a layer, M its means. The trust region bounds
    lr² <D, P^-1 D>, about twice the KL between the models before and after the step. It replaces clipping of
    gradients, which would slow training down where the noise of targets is small and gradients are large.
    """

    def __init__(self, model: "Noisy", lr: float):
        self.model = model
        factor = model.config.noise_rate
        groups: list[dict[str, Any]] = [{"params": [layer.mean for layer in model.layers], "lr": lr}]
        noise = [parameter for parameter in model.likelihood.parameters() if parameter.requires_grad]
        if noise:
            groups.append({"params": noise, "lr": lr * factor, "factor": factor})
        super().__init__(groups, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        model, config = self.model, self.model.config
        step = int(model.count)
        if model.due(step):
            model.refresh()
        means, *others = self.param_groups
        layers = [layer for layer in model.layers if layer.mean.grad is not None]
        gradients = [cast(Tensor, layer.mean.grad) for layer in layers]
        if config.velocity == "mean":
            momentum, pairs = config.momentum, zip(layers, gradients, strict=True)
            gradients = [self._mean(layer.mean, "velocity", g, momentum, step) for layer, g in pairs]
        damping = model.prior.damping + config.step_damping
        steps = [layer.precondition(g, damping) for layer, g in zip(layers, gradients, strict=True)]
        shrink = trust_region_scale(gradients, steps, means["lr"], config.kl_clip)
        for layer, change in zip(layers, steps, strict=True):
            if config.velocity == "sum":
                change = self._buffer(layer.mean, "velocity").mul_(config.momentum).add_(change, alpha=shrink)
            layer.mean.add_(change, alpha=-means["lr"] * (shrink if config.velocity == "mean" else 1.0))
        for group in others:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    first = self._mean(parameter, "first", parameter.grad, 0.9, step)
                    second = self._mean(parameter, "second", parameter.grad.square(), 0.999, step)
                    parameter.addcdiv_(first, second.sqrt().add_(1e-8), value=-group["lr"])
        model.count += 1

    def _buffer(self, parameter: Tensor, name: str) -> Tensor:
        """The parameter's state of this name, zeros at first."""
        return self.state[parameter].setdefault(name, torch.zeros_like(parameter))

    def _mean(self, parameter: Tensor, name: str, value: Tensor, decay: float, step: int) -> Tensor:
        """Update the running mean `name` of a parameter with `value`; return it without its bias to 0."""
        return self._buffer(parameter, name).lerp_(value, 1 - decay) / (1 - decay ** (step + 1))


def trust_region_scale(
    gradients: Sequence[Tensor], steps: Sequence[Tensor], lr: float, bound: float
) -> float:
    """The largest factor ν <= 1 with lr² ν² <D, P^-1 D> <= bound; 1 if bound is 0, which means no bound.

    `gradients` holds D of each layer, `steps` P^-1 D, of the same shapes.
    """
    square = lr**2 * sum(float((g * s).sum()) for g, s in zip(gradients, steps, strict=True))
    return min(1.0, math.sqrt(bound / square)) if bound and square > 0 else 1.0
