"""The KL between Gaussians against torch's."""

import torch
from kernel_checks import randn
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from compound.ops.gaussian_kl import compiled_gaussian_kl, gaussian_kl


def test_kl_is_that_of_dense_gaussians():
    roots = torch.tril(randn(2, 4, 4)) + 3 * torch.eye(4, dtype=torch.float64)
    mean, prior_mean = randn(2, 4)
    p, q = (MultivariateNormal(m, scale_tril=root) for m, root in zip((mean, prior_mean), roots, strict=True))
    shift = mean - prior_mean
    trace = (q.precision_matrix @ p.covariance_matrix).trace()
    log_det_ratio = p.covariance_matrix.logdet() - q.covariance_matrix.logdet()
    terms = trace, shift @ q.precision_matrix @ shift, 4, log_det_ratio
    assert_close(gaussian_kl(*terms), kl_divergence(p, q), rtol=1e-12, atol=1e-12)
    numbers = [float(term) for term in terms]
    assert abs(compiled_gaussian_kl(*numbers) - gaussian_kl(*numbers)) < 1e-12
