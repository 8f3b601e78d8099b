"""Families of distributions of a target beside the Gaussian, and mixtures of their members.

A family has no state: its functions take y and the parameters, stacked along the last axis of one tensor.
`FAMILIES` has them by name; poisson is the negative binomial with dispersion 0.
"""

from compound.families.base import Family as Family
from compound.families.log_normal import LogNormal as LogNormal
from compound.families.mixtures import log_tails as log_tails
from compound.families.mixtures import mixture_log_prob as mixture_log_prob
from compound.families.mixtures import z_quantile as z_quantile
from compound.families.negative_binomial import NegativeBinomial as NegativeBinomial
from compound.families.student_t import StudentT as StudentT
from compound.families.weibull import Weibull as Weibull

FAMILIES: dict[str, Family] = {
    "student-t": StudentT(),
    "log-normal": LogNormal(),
    "poisson": NegativeBinomial(),
    "negative-binomial": NegativeBinomial(),
    "weibull": Weibull(),
}
