"""The Kullback-Leibler divergence between Gaussians: the one definition behind every layer's KL."""

from typing import Any

from compound.ops.jit import FASTMATH, kernel


def gaussian_kl(trace: Any, mahalanobis: Any, n: int, log_det_ratio: Any) -> Any:
    """KL[N(m, Σ) || N(m₀, Σ₀)] in n dimensions, for tensors and floats; `compiled_gaussian_kl` is for loops.

    trace is tr(Σ₀⁻¹ Σ), mahalanobis is (m - m₀)ᵀ Σ₀⁻¹ (m - m₀), and log_det_ratio is log det Σ - log det Σ₀.
    """
    return 0.5 * (trace + mahalanobis - n - log_det_ratio)


compiled_gaussian_kl = kernel(FASTMATH)(gaussian_kl)
