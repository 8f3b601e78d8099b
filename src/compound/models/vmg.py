"""Variational matrix Gaussians: matrix-Gaussian posteriors of weights, with diagonal factors.

    q(W) = MN(M, diag(a), diag(b)),    p(W) = MN(0, p I, I)
    KL = 1/2 [ (sum a sum b + |M|²) / p - r c (1 - log p) - c sum log a - r sum log b ]
    [h; 1] W ~ N([h; 1] M, ([h; 1]² a) b)

(t a, b / t) is the same distribution for every t > 0; the bias is the last row of W. Louizos and Welling
(2016), without their pseudo-data.

A draw: n_samples * n_inner draws of all weights; all of it is epistemic.
"""

from dataclasses import dataclass

from torch import Tensor

from compound.models.variational import Variational, VariationalConfig
from compound.nn.matrix_gaussian import MatrixGaussianLinear


@dataclass(frozen=True)
class VMGConfig(VariationalConfig):
    """Options of `vmg`.

    Parameters
    ----------
    log_variance : float, default=-3.0
        Initial log a and log b.
    """

    log_variance: float = -3.0


class VMG(Variational):
    """A network with matrix-Gaussian weights."""

    method = "vmg"
    Config = VMGConfig
    reference = "Louizos and Welling (2016)"

    def _layer(self, mean: Tensor, prior_variance: float) -> MatrixGaussianLinear:
        return MatrixGaussianLinear(mean, (), self.config.log_variance, (prior_variance,))
