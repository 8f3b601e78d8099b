"""The predictive distribution of rows, with its uncertainty decomposed by source.

Three layers of randomness: the component p(y; φ), the mixing distribution (θ given ψ), the posterior (ψ).
Their parts of the uncertainty (variances for targets, entropies in nats for classes) add up to the total:

    total = component + mixing + posterior,    aleatoric = component + mixing,    epistemic = posterior

Parts are estimated from nested draws: all members, for each of them `n_samples` draws of what more data would
determine, and for each of those `n_inner` draws of the mixing distribution. `decomposition` has the
estimators and their errors.
"""

from compound.predictive.base import Predictive as Predictive
from compound.predictive.categorical import CategoricalPredictive as CategoricalPredictive
from compound.predictive.categorical import log_mixture as log_mixture
from compound.predictive.categorical import safe_log as safe_log
from compound.predictive.categorical import take_label as take_label
from compound.predictive.decomposition import entropy as entropy
from compound.predictive.decomposition import entropy_parts as entropy_parts
from compound.predictive.decomposition import variance_parts as variance_parts
from compound.predictive.family import FamilyPredictive as FamilyPredictive
from compound.predictive.gaussian import GaussianPredictive as GaussianPredictive
from compound.predictive.sets import OODScores as OODScores
from compound.predictive.sets import aps_score as aps_score
from compound.predictive.targets import TargetPredictive as TargetPredictive
