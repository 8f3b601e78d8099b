"""Bayes by backprop: every weight, biases included, has a Gaussian posterior of its own.

    q(W) = prod N(W_ij; M_ij, S_ij²),    p(W) = prod N(W_ij; 0, p)
    KL = sum [ log(sqrt(p) / S) + (S² + M²) / (2 p) - 1/2 ]
    [h; 1] W ~ N([h; 1] M, [h; 1]² S²)

Blundell et al. (2015), with one Gaussian as prior.

A draw: n_samples * n_inner draws of all weights; all of it is epistemic.
"""

from dataclasses import dataclass

from torch import Tensor

from compound.models.variational import Variational, VariationalConfig
from compound.nn.mean_field import MeanFieldLinear


@dataclass(frozen=True)
class BBBConfig(VariationalConfig):
    """Options of `bbb`.

    Parameters
    ----------
    log_std : float, default=-5.0
        Initial log S.
    """

    log_std: float = -5.0


class BBB(Variational):
    """A network with independent Gaussian weights."""

    method = "bbb"
    Config = BBBConfig
    reference = "Blundell et al. (2015)"

    def _layer(self, mean: Tensor, prior_variance: float) -> MeanFieldLinear:
        return MeanFieldLinear(mean, self.config.log_std, prior_variance)
