"""Hamiltonian Monte Carlo: chains side by side that sample from exp(-U(q)), with U and its gradient alone.

    H(q, p) = U(q) + 1/2 sum_i v_i p_i²,    p ~ N(0, diag(1 / v))
    leapfrog:  p <- p - ε/2 ∇U(q),  q <- q + ε v p,  p <- p - ε/2 ∇U(q);    accept with min(1, exp(H - H'))

Neal (2011). While warming up, every chain adapts its step ε to an acceptance of TARGET by dual averaging
(Hoffman and Gelman 2014), and v becomes the variances of the chains' positions, shrunk as in Stan.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Generator, Tensor

Energy = Callable[[Tensor], Tensor]  # positions (chains, d) -> U (chains,), differentiable

TARGET = 0.8  # acceptance
JITTER = 0.2  # steps vary by this fraction, so that no trajectory closes on itself
GAMMA, T0, KAPPA = 0.05, 10.0, 0.75  # of dual averaging, as published
DIVERGENT = 1000.0  # a trajectory whose energy rises by more has left the typical set


class Samples(NamedTuple):
    """Draws of all chains."""

    positions: Tensor  # (draws, chains, d)
    acceptance: Tensor  # (chains,) mean acceptance probability after warming up


class State(NamedTuple):
    """Positions of all chains with their energy and its gradient."""

    position: Tensor  # (chains, d)
    energy: Tensor  # (chains,)
    grad: Tensor  # (chains, d)

    @classmethod
    def at(cls, energy: Energy, position: Tensor) -> "State":
        with torch.enable_grad():
            q = position.detach().requires_grad_()
            value = energy(q)
            (grad,) = torch.autograd.grad(value.sum(), q)
        return cls(position, value.detach(), grad)

    def where(self, accepted: Tensor, other: "State") -> "State":
        """This state for chains (chains,) that accepted it, the other one for the rest."""
        one = accepted.unsqueeze(-1)
        return State(
            torch.where(one, self.position, other.position),
            torch.where(accepted, self.energy, other.energy),
            torch.where(one, self.grad, other.grad),
        )


def leapfrog(
    energy: Energy, state: State, momentum: Tensor, step: Tensor, variance: Tensor, count: int
) -> tuple[State, Tensor]:
    """`count` leapfrog steps of size `step` (chains, 1) with v = variance (d,): new state and momentum."""
    momentum = momentum - 0.5 * step * state.grad
    for k in range(count):
        state = State.at(energy, state.position + step * variance * momentum)
        momentum = momentum - (1.0 if k < count - 1 else 0.5) * step * state.grad
    return state, momentum


class DualAveraging:
    """The step size of every chain, such that TARGET of the proposals are accepted."""

    def __init__(self, step: Tensor):  # (chains,)
        self.centre = (10 * step).log()
        self.log_step = step.log()
        self.log_average = torch.zeros_like(step)
        self.error = torch.zeros_like(step)
        self.count = 0

    def update(self, acceptance: Tensor) -> None:  # (chains,)
        self.count += 1
        t = self.count
        self.error = torch.lerp(self.error, TARGET - acceptance, 1 / (t + T0))
        self.log_step = self.centre - math.sqrt(t) / GAMMA * self.error
        self.log_average = torch.lerp(self.log_average, self.log_step, t**-KAPPA)


@torch.no_grad()
def sample(
    energy: Energy, start: Tensor, draws: int, warmup: int, count: int, generator: Generator
) -> Samples:
    """`draws` positions of each chain after `warmup` iterations, each of `count` leapfrog steps.

    `start` is (chains, d). Chains are independent but for v, which they share.
    """
    chains, d = start.shape
    state = State.at(energy, start)
    variance = torch.ones(d, dtype=start.dtype)
    stages = [warmup // 2, warmup - warmup // 2]  # v is 1 in the first, and estimated from its second half
    step = start.new_full((chains,), 0.1 / d**0.25)
    for number, iterations in enumerate(stages):
        adaptation = DualAveraging(step)
        seen = []
        for i in range(iterations):
            state, acceptance = _iterate(energy, state, adaptation.log_step.exp(), variance, count, generator)
            adaptation.update(acceptance)
            if number == 0 and i >= iterations // 2:
                seen.append(state.position)
        if adaptation.count:
            step = adaptation.log_average.exp()
        if len(seen) > 1:
            variance = _variances(torch.stack(seen))
            step = step / variance.mean().sqrt()
    positions, accepted = [], torch.zeros_like(step)
    for _ in range(draws):
        state, acceptance = _iterate(energy, state, step, variance, count, generator)
        positions.append(state.position)
        accepted += acceptance / draws
    return Samples(torch.stack(positions), accepted)


def _iterate(
    energy: Energy, state: State, step: Tensor, variance: Tensor, count: int, generator: Generator
) -> tuple[State, Tensor]:
    """One proposal for every chain: the next state, and the probabilities of acceptance (chains,)."""
    like, dtype = state.position, state.position.dtype
    momentum = torch.randn(like.shape, generator=generator, dtype=dtype) * variance.rsqrt()
    jitter = 1 + JITTER * (2 * torch.rand(len(step), generator=generator, dtype=dtype) - 1)
    proposal, end = leapfrog(energy, state, momentum, (step * jitter).unsqueeze(-1), variance, count)
    kinetic = 0.5 * (variance * (momentum.square() - end.square())).sum(-1)
    difference = state.energy - proposal.energy + kinetic  # H - H'
    difference = torch.where(difference > -DIVERGENT, difference, -torch.inf)  # not a number: not accepted
    acceptance = difference.clamp_max(0.0).exp()
    accepted = torch.rand(len(step), generator=generator, dtype=dtype) < acceptance
    return proposal.where(accepted, state), acceptance


def _variances(positions: Tensor) -> Tensor:  # (d,)
    """Variances of positions (n, chains, d) around the mean of their chain, shrunk as Stan does."""
    n = positions.shape[0] * positions.shape[1]
    within = (positions - positions.mean(0)).square().mean((0, 1))
    return (n * within + 5e-3) / (n + 5)
