"""Estimators of the mixing and posterior parts of uncertainty, from nested draws."""

import torch
from torch import Tensor


def entropy(probs: Tensor) -> Tensor:
    """Entropy of probabilities along the last axis; 0 log 0 = 0."""
    return -torch.xlogy(probs, probs).sum(-1)


def variance_parts(means: Tensor, paired: int = 1) -> tuple[Tensor, Tensor]:  # (rows, targets) each
    """Mixing and posterior variance of drawn means (members, n_samples, n_inner, rows, targets).

    Both are unbiased, and may be negative. The members are all there are, not a sample. With v the variance
    of inner draws and w the variance of the means of n_inner draws, both within a member:

        mixing = v
        posterior = w - v / n_inner + (variance between members' means) - (1 - 1 / members) (w / n_samples)

    With n_samples = 1, w cannot be estimated and is set to v / n_inner: only members' means differ. With
    n_inner = 1, v is set to 0: all is posterior, and the sum of both parts is still unbiased.

    Where groups of `paired` neighbouring inner draws depend on each other, such as antithetic pairs, a
    group's mean counts as one draw: of variance u, with v = u + (variance within groups), uncorrected, and
    u / groups in place of v / n_inner.
    """
    members, n_samples, n_inner = means.shape[:3]
    inner_means = means.mean(2)
    groups = means.unflatten(2, (-1, paired))  # (members, n_samples, n_inner / paired, paired, rows, targets)
    none = torch.zeros_like(means[0, 0, 0])
    u = groups.mean(3).var(2).mean((0, 1)) if n_inner > paired else none
    v = u + groups.var(3, correction=0).mean((0, 1, 2)) if paired > 1 else u
    inner = u / (n_inner // paired)  # the variance that the mean of inner draws has by chance
    w = inner_means.var(1).mean(0) if n_samples > 1 else inner  # of the mean of inner draws
    between = inner_means.mean(1).var(0, correction=0) - (1 - 1 / members) * w / n_samples
    return v, w - inner + between


def entropy_parts(probs: Tensor, component: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:  # (rows,) each
    """Mixing and posterior part of `total` from drawn probs (members, n_samples, n_inner, rows, classes).

    `component` (rows,) is the mean entropy of single draws, `total` (rows,) the entropy of the mean of all
    draws. Both parts may be negative. The entropy of a mean of K draws is too low by about 1 / K of its
    difference from the mean entropy of the draws. The jackknife over inner draws leaves an error of order
    1 / n_inner² in the mixing part. `total` is not corrected: it is too low by about (posterior within
    members + mixing / n_inner) / (members n_samples), and so is the posterior part.
    """
    n_inner = probs.shape[2]
    mean = probs.mean(2, keepdim=True)  # (members, n_samples, 1, rows, classes)
    conditional = entropy(mean).mean((0, 1, 2))  # of y given ψ
    if n_inner > 1:
        # (n_inner - 1) (H(mean) - H(mean of all but one)) is on average a divergence between the two,
        # computed without cancellation
        tiny = torch.finfo(mean.dtype).tiny
        change = ((mean - probs) / ((n_inner - 1) * mean.clamp_min(tiny))).clamp_min(-1)
        divergence = (mean * (torch.special.xlog1py(1 + change, change) - change)).sum(-1).mean((0, 1, 2))
        conditional = conditional + (n_inner - 1) * divergence
    return conditional - component, total - conditional
