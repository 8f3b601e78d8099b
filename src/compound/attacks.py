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
    """-log of the mean over draws of p(y | x), from log-probabilities (..., rows, classes).

    Leading axes are draws.
    """
    return lambda x: -_log_mean(log_probs(x), y)


def odds_loss(log_probs: Function, y: Tensor) -> Function:
    """Log-odds against y, of the mean over draws: they increase where `label_loss` does.

    Where p(y | x) rounds to 1 they keep their gradient. That of -log p(y | x) is zero there, or lacks the
    part of y's own logit, and an attack that follows it fails for no merit of the network.
    """

    def loss(x: Tensor) -> Tensor:  # (rows,)
        logs = log_probs(x)
        others = logs.masked_fill(functional.one_hot(y, logs.shape[-1]).bool(), -torch.inf).logsumexp(
            -1
        )  # (..., rows)
        return log_mean_exp(others.reshape(-1, len(y)), 0) - _log_mean(logs, y)

    return loss


def fgsm(loss: Function, x: Tensor, eps: float | Tensor, clip: Range | None = None) -> Tensor:
    """One step to a corner of the box around x, where a linear loss would be largest."""
    _check("eps", eps)
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
    """Steps along the signs of gradients from a point of the box, each brought back into it."""
    _check("eps", eps)
    for name, count in (("steps", steps), ("restarts", restarts)):
        if count < 1:
            raise ValueError(f"{name} is {count}: give at least one")
    if generator is None and restarts > 1:
        raise ValueError(f"restarts is {restarts}: without a generator all of them start from x, give one")
    step = 2.5 * eps / steps if step is None else step
    _check("step", step)
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


def _log_mean(log_probs: Tensor, y: Tensor) -> Tensor:  # (rows,)
    """Log of the mean over draws of p(y | x)."""
    picked = log_probs.gather(-1, y.expand(log_probs.shape[:-1]).unsqueeze(-1)).squeeze(-1)  # (..., rows)
    return log_mean_exp(picked.reshape(-1, len(y)), 0)


def direction(loss: Function, x: Tensor) -> Tensor:
    """The sign of the gradient with respect to each input, -1, 0 or 1; 0 where it is not a number."""
    return gradient(loss, x).sign().nan_to_num_(0.0)


def gradient(loss: Function, x: Tensor) -> Tensor:
    """The gradient of every row's loss with respect to that row."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(loss(x).sum(), x)[0]


def _uniform(x: Tensor, generator: Generator) -> Tensor:
    """Uniform in -1..1, of the shape of x."""
    return (
        2 * torch.rand(x.shape, generator=generator, dtype=x.dtype, device=generator.device).to(x.device) - 1
    )


def _clip(x: Tensor, clip: Range | None) -> Tensor:
    return x if clip is None else x.clamp(*clip)


def _check(name: str, value: float | Tensor) -> None:
    if not bool(torch.as_tensor(value >= 0).all()):
        raise ValueError(f"{name} is {value}: give numbers >= 0")
