"""The KL of blocks of matrix normals: compiled, reference, and from the distributions themselves."""

import torch
from kernel_checks import assert_matches_reference, randn
from torch.distributions import kl_divergence
from torch.testing import assert_close

from compound.distributions import MatrixNormal
from compound.ops.matrix_normal import matrix_normal_kl

BLOCKS, VARIANCES = (1, 2, 3), (0.5, 1.0, 2.0)
INPUTS = [randn(2, 4, 6), 0.5 * randn(2, 3, 4), 0.5 * randn(2, 6), randn(4, 6, seed=1)]


def kl(mean, log_row, log_col, prior_mean):
    return [matrix_normal_kl(mean, log_row, log_col, prior_mean.detach(), BLOCKS, VARIANCES)]


def by_distributions(mean, log_row, log_col, prior_mean):
    total = 0
    for k, (begin, end, variance) in enumerate(zip((0, 1, 3), (1, 3, 6), VARIANCES, strict=True)):
        row, col = (0.5 * log_row[:, k]).exp(), (0.5 * log_col[:, begin:end]).exp()
        prior = MatrixNormal(
            prior_mean.detach()[:, begin:end],
            torch.full((4,), variance**0.5, dtype=torch.float64),
            torch.ones(end - begin, dtype=torch.float64),
        )
        total = total + kl_divergence(MatrixNormal(mean[..., begin:end], row, col), prior)
    return [total]


def test_kl_of_blocks_is_the_sum_of_their_matrix_normals():
    assert_matches_reference(kl, by_distributions, INPUTS)


def test_gradient_of_the_reference():
    *inputs, prior_mean = (value.clone().requires_grad_() for value in INPUTS)
    torch.autograd.gradcheck(lambda *a: kl(*a, prior_mean), inputs)


def test_kl_is_zero_at_the_prior():
    for dtype in (torch.float32, torch.float64):
        mean = torch.ones(4, 5, dtype=dtype)
        zeros = torch.zeros(1, 4, dtype=dtype), torch.zeros(5, dtype=dtype)
        assert_close(matrix_normal_kl(mean, *zeros, mean, (5,), (1.0,)), torch.zeros((), dtype=dtype))
