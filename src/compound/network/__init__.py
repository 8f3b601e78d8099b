"""Any PyTorch network: a method as a head on its features, and uncertainty after training."""

from compound.network.head import Head as Head
from compound.network.trained import PostHoc as PostHoc
from compound.network.trained import posthoc as posthoc
