"""The score that joins distances, epistemic part and surprise: p-values by hand, rates, rankings."""

import numpy as np
import pytest
import torch

from compound import named_generator
from compound.metrics import auroc
from compound.ood import CombinedDetector, Distance
from compound.ood.evidence import SIGNIFICANT, SURPRISE, TAIL, WEIGHTS, log_p_value, p_value_table
from compound.ood.neighbours import NEIGHBOURS, leave_one_out, neighbour_distance


def p_by_hand(ordinary: np.ndarray, value: float) -> float:
    """(1 + those above it + its own ties) over n + 1, less one: the value itself is among the ordinary."""
    return (ordinary >= value).sum() / (len(ordinary) + 1)


@pytest.mark.parametrize("ties", [False, True])
def test_p_values_of_ordinary_rows_are_their_ranks(ties):
    ordinary = np.random.default_rng(0).lognormal(size=200)
    if ties:
        ordinary = np.round(ordinary)  # many zeros
    table = p_value_table(torch.from_numpy(ordinary))
    actual = 10 ** -log_p_value(torch.from_numpy(ordinary), *table).numpy()
    expected = np.array([p_by_hand(ordinary, value) for value in ordinary])
    # of 200 knots in log p some fall on one rank: between knots p is interpolated, by 3% at most
    np.testing.assert_allclose(actual, expected, rtol=0.03)
    assert actual.min() == pytest.approx(expected.min())


def test_p_values_of_many_rows_are_theirs_within_a_knot():
    ordinary = torch.randn(20_000, generator=named_generator(0), dtype=torch.float64).abs()
    table = p_value_table(ordinary)
    new = torch.linspace(0.01, 2.7, 300, dtype=torch.float64)
    expected = torch.log10((ordinary >= new[:, None]).sum(1) / 20_001).neg().double()
    torch.testing.assert_close(
        log_p_value(new, *table), expected, rtol=0, atol=0.02
    )  # a knot: log10(20,001) / 255


def test_farther_is_always_more_and_p_falls_with_the_square_beyond_all_rows():
    table = p_value_table(torch.arange(1.0, 101.0))
    far = torch.tensor([100.0, 200.0, 2e10, 1e300], dtype=torch.float64)
    logs = log_p_value(far, *table)
    assert logs[0] == pytest.approx(np.log10(101))
    torch.testing.assert_close(logs - logs[0], TAIL * torch.log10(far / 100))
    none = p_value_table(torch.zeros(50))  # a method without epistemic part
    assert log_p_value(torch.zeros(1, dtype=torch.float64), *none) == pytest.approx(np.log10(51 / 50))
    assert 100 < log_p_value(torch.ones(1, dtype=torch.float64), *none) < torch.inf


def test_only_significant_witnesses_change_the_ranking_of_neighbours():
    detector = fitted(torch.randn(1000, 3, generator=named_generator(0)), 0.01)
    near = torch.linspace(0.1, 3.0, 50).double()
    quiet = torch.zeros(50, dtype=torch.float64)
    for j in (1, 2):
        sure = detector.values[j, -1] * torch.ones(50, dtype=torch.float64)
        witnesses = [near, quiet, quiet]
        alone = detector.combine(torch.stack(witnesses, -1))
        witnesses[j] = detector.values[j, detector.logs[j] < 1.0][-1] * torch.ones(50, dtype=torch.float64)
        torch.testing.assert_close(detector.combine(torch.stack(witnesses, -1)), alone, rtol=0, atol=0)
        witnesses[j] = 1e3 * sure
        assert bool((detector.combine(torch.stack(witnesses, -1)) > alone).any())


@pytest.mark.parametrize("rows", [1, 2, 4, 300])
def test_distances_from_neighbours_are_those_of_loops(rows):
    g = named_generator(rows)
    sample, new = (
        torch.randn(count, 3, generator=g, dtype=torch.float64) * 100 + 1000 for count in (rows, 20)
    )
    for i, actual in enumerate(neighbour_distance(new, sample)):
        nearest = sorted(float((new[i] - row).norm()) for row in sample)[:NEIGHBOURS]
        assert float(actual) == pytest.approx(np.mean(nearest))
    for i, actual in enumerate(leave_one_out(sample, min(rows, 10))):
        nearest = sorted(float((sample[i] - sample[j]).norm()) for j in range(rows) if j != i)[:NEIGHBOURS]
        assert float(actual) == pytest.approx(np.mean(nearest or [0.0]))


def spread(x: torch.Tensor) -> torch.Tensor:
    """Something like an epistemic part, with heavy tails."""
    return x[:, 0].mul(2).exp()


def fitted(x: torch.Tensor, rate: float, epistemic=spread) -> CombinedDetector:
    distance = Distance(x.shape[1])
    distances = distance.fit(x, named_generator(0, "distance"))
    return CombinedDetector(distance).fit(x, distances, epistemic, rate, named_generator(0, "fit"))


def scores(detector: CombinedDetector, x: torch.Tensor, epistemic=spread) -> torch.Tensor:
    return detector.scores(x, epistemic(x), torch.zeros(len(x)))


def test_score_is_the_largest_of_its_witnesses():
    x = torch.randn(300, 3, generator=named_generator(0))
    detector = fitted(x, 0.05)
    new = 2 * torch.randn(100, 3, generator=named_generator(1))
    witnesses = [neighbour_distance(new, detector.sample), detector.distance(new), spread(new)]
    expected = torch.zeros(100, dtype=torch.float64)
    raised = 0
    for j, (weight, witness) in enumerate(zip(WEIGHTS, witnesses, strict=True)):
        score = log_p_value(witness.double(), detector.values[j], detector.logs[j]) + np.log10(weight)
        counts = score >= (SIGNIFICANT if j else 0)  # neighbours always, the others where they are sure
        raised += int((counts & (score > expected)).sum()) if j else 0
        expected = torch.where(counts, torch.maximum(expected, score), expected)
    assert 0 < raised < 100
    torch.testing.assert_close(scores(detector, new), expected, rtol=1e-5, atol=1e-6)
    sure = detector.scores(new[:1] * 0, torch.zeros(1), torch.ones(1))
    assert sure == SURPRISE and detector.threshold < SURPRISE


class Norm(torch.nn.Module):
    """A distance that is not learnt."""

    shift = torch.zeros(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.norm(dim=1)


@pytest.mark.parametrize("rows,rate", [(100, 0.05), (1000, 0.01), (40, 0.01)])
def test_all_witnesses_together_have_one_rate_of_false_alarms(rows, rate):
    rates = []
    for seed in range(20):
        x, new = (torch.randn(n, 4, generator=named_generator(seed, n)) for n in (rows, 2000))
        detector = CombinedDetector(Norm())  # type: ignore[arg-type]
        detector.fit(x, x.norm(dim=1), spread, rate, named_generator(seed))
        assert detector.promised == (rows * rate >= 5)
        rates.append(float((scores(detector, new) > detector.threshold).float().mean()))
    error = np.std(rates) / np.sqrt(20)
    if rows * rate >= 5:
        assert abs(np.mean(rates) - rate) < 4 * error
    assert np.mean(rates) < rate + 4 * error


def test_rows_between_clusters_are_less_ordinary_than_ordinary_rows():
    """Half of one pattern and half of another: ordinary to the whitened distance, not to the joint score."""
    g = named_generator(0)
    patterns = (torch.rand(4, 80, generator=g) < 0.3).float()

    def draw(count: int) -> torch.Tensor:
        size = 1 + 0.2 * torch.randn(count, 1, generator=g)
        return size * patterns[torch.arange(count) % 4] + 0.2 * torch.randn(count, 80, generator=g)

    ordinary = draw(400)
    overlaid = 0.5 * (draw(400) + draw(401)[1:])
    detector = fitted(draw(2000), 0.01, lambda x: torch.zeros(len(x)))
    zero = torch.zeros(400)
    distance, joint = (
        auroc(function(ordinary), function(overlaid))
        for function in (detector.distance, lambda x: detector.scores(x, zero, zero))
    )
    uncertain = detector.scores(overlaid, zero + 1, zero)
    assert distance < 0.5 < 0.9 < joint and bool((uncertain > detector.threshold).all())
