"""The compiled generator of normal numbers: its algorithm, its distribution, its streams."""

import math

import numpy as np
import scipy.stats
import torch
from torch.testing import assert_close

from compound.ops.gaussian_noise import normal_loop, standard_normal, stratified_normal
from compound.ops.jit import launch
from compound.random import named_generator


def philox(counter: list[int], key: list[int]) -> list[int]:
    for _ in range(7):
        high, low = (divmod(counter[k] * m, 2**32) for k, m in ((2, 0xCD9E8D57), (0, 0xD2511F53)))
        counter = [high[0] ^ counter[1] ^ key[0], high[1], low[0] ^ counter[3] ^ key[1], low[1]]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return counter


def test_noise_is_philox_through_box_and_muller():
    """The first two assertions are the authors' own test vectors."""
    assert philox([0] * 4, [0] * 2) == [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]
    assert philox([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2) == [0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662]
    key, out = 0x1234567_89ABCDEF, torch.empty(4000)
    launch(normal_loop, (out,), 1000, key)
    expected = torch.empty(4, 1000, dtype=torch.float64)
    for i in range(1000):
        bits = philox([i, 0, 0, 0], [key % 2**32, key >> 32])
        for k in (0, 2):
            radius = math.sqrt(-2 * math.log(((bits[k] >> 8) + 1) / 2**24))
            angle = math.pi * (((bits[k + 1] ^ 2**31) - 2**31) >> 8) / 2**23  # as a signed number
            expected[k, i], expected[k + 1, i] = radius * math.sin(angle), radius * math.cos(angle)
    assert_close(out.double(), expected.flatten(), rtol=1e-5, atol=2e-6)


def test_noise_is_normal_and_independent():
    from scipy.stats import kstest, kurtosis

    n = 2_000_000
    draws = standard_normal(named_generator(3), (n,), torch.empty(0)).double().numpy()
    assert kstest(draws, "norm").pvalue > 1e-4
    assert abs(draws.mean()) < 5 / math.sqrt(n) and abs(kurtosis(draws)) < 5 * math.sqrt(24 / n)
    for lag in (1, 2, n // 4, n // 2):
        for power in (1, 2):
            a, b = draws[lag:] ** power, draws[:-lag] ** power
            assert abs(np.corrcoef(a, b)[0, 1]) < 5 / math.sqrt(n - lag)


def test_a_stream_advances_and_can_be_repeated():
    stream, like = named_generator(1), torch.empty(0)
    first, second = (standard_normal(stream, (5, 3), like) for _ in range(2))
    assert torch.equal(first, standard_normal(named_generator(1), (5, 3), like))
    assert not torch.equal(first, second) and not torch.equal(first[0], first[1])
    both = standard_normal([named_generator(1), named_generator(2)], (2, 7), like)
    assert torch.equal(both[1], standard_normal(named_generator(2), (7,), like))


def test_stratified_noise_has_one_draw_per_stratum_and_is_standard_normal():
    like = torch.zeros((), dtype=torch.float32)
    noise = stratified_normal(named_generator(0, "strata"), (500, 6, 3), like)
    assert noise.dtype == torch.float32 and bool(torch.isfinite(noise).all())
    strata = (torch.special.ndtr(noise.double()) * 6).floor().sort(1).values
    assert torch.equal(strata, torch.arange(6.0, dtype=torch.float64).reshape(1, 6, 1).expand(500, 6, 3))
    assert torch.equal(noise[:, 1::2], -noise[:, ::2])
    one = noise[:, 0].flatten().double().numpy()  # a single draw: independent from sample to sample
    assert scipy.stats.kstest(one, "norm").pvalue > 1e-3
    correlations = torch.corrcoef(noise[:, ::2].flatten(0, 1).T)
    assert (correlations - torch.eye(3)).abs().max() < 5 / math.sqrt(1500)
