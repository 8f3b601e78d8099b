"""Out-of-distribution distance, used by far noise and by `is_ood`, which joins it with other evidence."""

from compound.ood.combined import CombinedNoise as CombinedNoise
from compound.ood.detector import OODDetector as OODDetector
from compound.ood.distance import Distance as Distance
from compound.ood.evidence import CombinedDetector as CombinedDetector
from compound.ood.noise import DistanceAwareNoise as DistanceAwareNoise
from compound.ood.normalized import NormalizedDistance as NormalizedDistance
