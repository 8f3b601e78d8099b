"""Adversarial inputs: x' close to x, where a loss is large.

    fgsm   x' = clip(x + ε sign ∇ loss(x))                              Goodfellow, Shlens and Szegedy (2015)
    pgd    x' <- clip(P(x' + α sign ∇ loss(x'))),  P onto |x' - x| <= ε Madry et al. (2018)

A loss is any function of inputs (..., rows, features) with one value per row, such as -log p(y | x). The
value of a row must depend on that row alone, for gradients are those of the sum. ε is one number, or one per
feature. Only gradients with respect to x are computed: those of a model's parameters stay as they are.
"""

from collections.abc import Callable

import torch
from torch import Generator, Tensor
from torch.nn import functional

from compound.distributions import log_mean_exp

Function = Callable[[Tensor], Tensor]
Range = tuple[float, float]  # the smallest and the largest number an input may be


def label_loss(log_probs: Function, y: Tensor) -> Function:
    """The loss -log of the mean over draws of p(y | x), as a function of x, for labels y (rows,).

    `log_probs` maps x to log-probabilities (..., rows, classes), where leading axes are draws.
    """
    return lambda x: -_log_mean_prob(log_probs(x), y)


def odds_loss(log_probs: Function, y: Tensor) -> Function:
    """The loss log (1 - p) / p of the mean p over draws of p(y | x); arguments as for `label_loss`.

    It increases where `label_loss` does, and keeps its gradient where p(y | x) rounds to 1. The gradient of
    -log p(y | x) is zero there, or lacks the part of y's own logit: an attack that follows it fails even if
    the network is not robust.
    """

    def loss(x: Tensor) -> Tensor:  # (rows,)
        logs = log_probs(x)
        # (..., rows)
        others = logs.masked_fill(functional.one_hot(y, logs.shape[-1]).bool(), -torch.inf).logsumexp(-1)
        return log_mean_exp(others.reshape(-1, len(y)), 0) - _log_mean_prob(logs, y)

    return loss


def fgsm(loss: Function, x: Tensor, eps: float | Tensor, clip: Range | None = None) -> Tensor:
    """Fast gradient sign method: x + eps * sign of the gradient, clipped to the range `clip`."""
    _check_non_negative("eps", eps)
    return _clip(x + eps * direction(loss, x), clip)


def pgd(
    loss: Function,
    x: Tensor,
    eps: float | Tensor,
    generator: Generator | None,  # of the random point it starts from; None: from x itself
    steps: int = 40,
    step: float | Tensor | None = None,  # α; None: 2.5 ε / steps, enough to cross the box
    restarts: int = 1,  # runs from other random points; each row keeps the one of largest loss
    clip: Range | None = None,
) -> Tensor:
    """Projected gradient method: steps along gradient signs, each projected onto the box |x' - x| <= eps."""
    _check_non_negative("eps", eps)
    for name, count in (("steps", steps), ("restarts", restarts)):
        if count < 1:
            raise ValueError(f"{name} is {count}: give at least one")
    if generator is None and restarts > 1:
        raise ValueError(f"restarts is {restarts}: without a generator all of them start from x, give one")
    step = 2.5 * eps / steps if step is None else step
    _check_non_negative("step", step)
    low, high = x - eps, x + eps

    def attack() -> Tensor:
        point = x if generator is None else _clip(x + eps * _uniform(x, generator), clip)
        for _ in range(steps):
            point = _clip((point + step * direction(loss, point)).clamp(low, high), clip)
        return point

    best = attack()
    for _ in range(restarts - 1):
        other = attack()
        with torch.no_grad():
            better = loss(other) > loss(best)  # (..., rows)
        best = torch.where(better.unsqueeze(-1), other, best)
    return best


def _log_mean_prob(log_probs: Tensor, y: Tensor) -> Tensor:  # (rows,)
    """Log of the mean over draws of p(y | x), from log-probabilities (..., rows, classes)."""
    picked = log_probs.gather(-1, y.expand(log_probs.shape[:-1]).unsqueeze(-1)).squeeze(-1)  # (..., rows)
    return log_mean_exp(picked.reshape(-1, len(y)), 0)


def direction(loss: Function, x: Tensor) -> Tensor:
    """The sign of `gradient` (-1, 0 or 1), of the shape of x; 0 where the gradient is NaN."""
    return gradient(loss, x).sign().nan_to_num_(0.0)


def gradient(loss: Function, x: Tensor) -> Tensor:
    """The gradient of every row's loss with respect to that row, of the shape of x."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(loss(x).sum(), x)[0]


def _uniform(x: Tensor, generator: Generator) -> Tensor:
    """Random numbers, uniform in [-1, 1), of the shape of x."""
    uniform = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=generator.device)
    return 2 * uniform.to(x.device) - 1


def _clip(x: Tensor, clip: Range | None) -> Tensor:
    return x if clip is None else x.clamp(*clip)


def _check_non_negative(name: str, value: float | Tensor) -> None:
    if not bool(torch.as_tensor(value >= 0).all()):
        raise ValueError(f"{name} is {value}: give numbers >= 0")
