"""Out-of-distribution distance: fitted once, used by far noise and by `is_ood`."""

from compound.ood.noise import DistanceAwareNoise as DistanceAwareNoise
