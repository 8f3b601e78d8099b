"""Every number against a slow and obvious way to get it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from compound import metrics
from compound.predictive import CategoricalPredictive, GaussianPredictive
from compound.random import named_generator

NOTHING = torch.zeros(1)


def mixture(draws: int, rows: int, targets: int, seed: int = 0) -> GaussianPredictive:
    generator = named_generator(seed, "mixture")
    means = 2 * torch.randn((draws, rows, targets), generator=generator, dtype=torch.float64)
    variances = 0.05 + torch.rand((draws, rows, targets), generator=generator, dtype=torch.float64)
    return GaussianPredictive(NOTHING, NOTHING, NOTHING, means, variances)


def classes(rows: int, size: int, seed: int = 0) -> tuple[CategoricalPredictive, torch.Tensor]:
    generator = named_generator(seed, "classes")
    probs = torch.softmax(2 * torch.randn((rows, size), generator=generator, dtype=torch.float64), -1)
    y = torch.randint(size, (rows,), generator=generator)
    return CategoricalPredictive(NOTHING, NOTHING, NOTHING, probs), y


@pytest.mark.parametrize("even", [True, False])
def test_crps_matches_the_integral_of_the_squared_cdf_gap(even):
    answer, y = mixture(4, 3, 2), torch.tensor([[0.3, -1.0], [5.0, 0.0], [-3.0, 2.0]], dtype=torch.float64)
    shares = (
        torch.full((4, 3, 1), 0.25)
        if even
        else torch.softmax(torch.randn(4, 3, 1, generator=named_generator(1)), 0)
    )
    answer = answer if even else replace(answer, log_weights=shares.log())

    def slow(row: int, target: int) -> float:
        share = shares[:, row, 0].double().numpy()
        centre, scale = answer.means[:, row, target].numpy(), answer.variances[:, row, target].sqrt().numpy()
        truth = y[row, target].item()
        below = quad(lambda u: (share @ norm.cdf(u, centre, scale)) ** 2, -15, truth, limit=200)[0]
        above = quad(lambda u: (share @ norm.sf(u, centre, scale)) ** 2, truth, 15, limit=200)[0]
        return below + above

    expected = np.mean([slow(row, target) for row in range(3) for target in range(2)])
    assert metrics.crps(answer, y) == pytest.approx(expected, rel=1e-6)


def test_nll_and_rmse_of_one_gaussian_by_hand():
    answer = GaussianPredictive(
        NOTHING, NOTHING, NOTHING, torch.tensor([[[1.0], [2.0]]]), torch.tensor([[[4.0], [9.0]]])
    )
    y = torch.tensor([[3.0], [2.0]])
    assert metrics.rmse(answer, y) == pytest.approx(math.sqrt(2))  # errors 2 and 0
    assert metrics.nll(answer, y) == pytest.approx(
        -(norm.logpdf(3, 1, 2) + norm.logpdf(2, 2, 3)) / 2, rel=1e-6
    )


def test_coverage_counts_the_intervals_of_the_predictive():
    answer = mixture(5, 400, 1)
    y = answer.sample(1, named_generator(3))[0]
    for level in (0.5, 0.9):
        low, high = answer.interval(level)
        assert metrics.coverage(answer, y, level) == ((low <= y) & (y <= high)).double().mean().item()
        assert abs(metrics.coverage(answer, y, level) - level) < 4 * math.sqrt(level * (1 - level) / 400)
    with pytest.raises(ValueError, match="level is 90"):
        metrics.coverage(answer, y, 90)


def test_ece_matches_a_loop_over_bins():
    answer, y = classes(200, 4)
    total = 0.0
    for low in range(15):
        inside = [i for i in range(200) if low / 15 < answer.confidence[i].item() <= (low + 1) / 15]
        if inside:
            right = np.mean([answer.label[i].item() == y[i].item() for i in inside])
            total += len(inside) / 200 * abs(right - np.mean([answer.confidence[i].item() for i in inside]))
    assert metrics.ece(answer, y) == pytest.approx(total)


def test_ece_of_sure_answers_is_their_error():
    sure = CategoricalPredictive(NOTHING, NOTHING, NOTHING, torch.eye(2)[[0, 0, 0, 1]])
    assert metrics.ece(sure, torch.tensor([0, 0, 1, 1])) == pytest.approx(0.25)


def test_brier_accuracy_and_confidence_by_hand():
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]], dtype=torch.float64)
    answer, y = CategoricalPredictive(NOTHING, NOTHING, NOTHING, probs), torch.tensor([0, 1])
    assert metrics.brier(answer, y) == pytest.approx((0.09 + 0.04 + 0.01 + 0.01 + 0.49 + 0.36) / 2)
    assert metrics.accuracy(answer, y) == 0.5
    assert metrics.mmc(answer) == pytest.approx(0.65)


def scores(kind: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = named_generator(seed, "scores")
    in_dist, ood = torch.randn(150, generator=generator), torch.randn(90, generator=generator) + 1
    return (
        (in_dist, ood) if kind == "distinct" else (in_dist.round(), ood.round())
    )  # rounding makes many ties


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["distinct", "ties"])
def test_ranking_scores_match_scikit_learn_and_pair_counting(kind: str, seed: int):
    in_dist, ood = scores(kind, seed)
    label, score = np.r_[np.zeros(150), np.ones(90)], torch.cat([in_dist, ood]).numpy()
    pairs = [1.0 if s > o else 0.5 if s == o else 0.0 for o in in_dist.tolist() for s in ood.tolist()]
    assert metrics.auroc(in_dist, ood) == pytest.approx(np.mean(pairs))
    assert metrics.auroc(in_dist, ood) == pytest.approx(roc_auc_score(label, score))
    assert metrics.aupr(in_dist, ood) == pytest.approx(average_precision_score(label, score))
    flagged, caught, _ = roc_curve(label, score, drop_intermediate=False)
    assert metrics.fpr95(in_dist, ood) == pytest.approx(flagged[caught >= 0.95].min())


def test_ranking_scores_at_their_ends():
    low, high = torch.tensor([0.0, 1.0]), torch.tensor([2.0, 3.0])
    assert (metrics.auroc(low, high), metrics.auroc(high, low), metrics.auroc(low, low)) == (1.0, 0.0, 0.5)
    assert (metrics.aupr(low, high), metrics.fpr95(low, high), metrics.fpr95(high, low)) == (1.0, 0.0, 1.0)
    with pytest.raises(ValueError, match="NaN"):
        metrics.auroc(low, torch.tensor([math.nan]))


@pytest.mark.parametrize("seed", range(3))
def test_resampled_metrics_are_those_of_repeated_rows(seed: int):
    generator = named_generator(seed, "weights")
    predictive, y = classes(40, 3, seed)
    confidence, correct = predictive.confidence.double(), (predictive.label == y).double()
    counts = torch.randint(4, (5, 40), generator=generator)
    in_dist, ood = (torch.randn(40, generator=generator).mul(2).round() + shift for shift in (0.0, 1.0))
    ece = metrics.resampled_ece(confidence, correct, counts.double())
    pairs = [(count.double(), count.flip(0).double()) for count in counts]
    auroc = metrics.resampled_auroc(in_dist, ood, pairs)
    for i, count in enumerate(counts):
        rows, ood_rows = (torch.arange(40).repeat_interleave(n) for n in (count, count.flip(0)))
        repeated = replace(predictive, probs=predictive.probs[rows])
        assert ece[i].item() == pytest.approx(metrics.ece(repeated, y[rows]), abs=1e-14)
        assert auroc[i].item() == pytest.approx(metrics.auroc(in_dist[rows], ood[ood_rows]), abs=1e-14)


def test_running_metrics_are_those_of_all_rows_and_of_torchmetrics():
    predictive, y = classes(90, 4, 0)
    scores, is_outlier = predictive.entropy(), torch.arange(90) % 3 == 0
    batches = [slice(0, 7), slice(7, 50), slice(50, 90)]  # unequal: a mean of means would be wrong
    nll, ece = metrics.RunningMean(metrics.nll), metrics.RunningECE()
    areas = [metrics.RunningSeparation(score) for score in (metrics.auroc, metrics.fpr95)]
    for metric in (nll, ece, *areas):
        with pytest.raises(ValueError, match="update"):
            metric.compute()
    for epoch in range(2):
        for rows in batches:
            part, labels = predictive[rows], y[rows]
            for metric in (nll, ece):
                metric.update(part, labels)
            for metric in areas:
                metric.update(scores[rows], is_outlier[rows])
        values = [metric.compute() for metric in (nll, ece, *areas)]
        outliers = scores[~is_outlier], scores[is_outlier]
        assert values == pytest.approx(
            [
                metrics.nll(predictive, y),
                metrics.ece(predictive, y),
                metrics.auroc(*outliers),
                metrics.fpr95(*outliers),
            ]
        ), epoch
        for metric in (nll, ece, *areas):
            metric.reset()
    torchmetrics = pytest.importorskip("torchmetrics", reason="torchmetrics is not installed: an oracle")
    calibration = torchmetrics.classification.MulticlassCalibrationError(4, n_bins=15)
    assert values[1] == pytest.approx(calibration(predictive.probs, y).item(), abs=1e-6)
    area = torchmetrics.classification.BinaryAUROC()
    assert values[2] == pytest.approx(area(scores, is_outlier).item(), abs=1e-6)


def test_running_mean_of_crps():
    generator = named_generator(0, "crps")
    means = torch.randn(3, 1, 20, 1, generator=generator)
    predictive = GaussianPredictive.from_draws(means, torch.ones_like(means), torch.zeros_like(means))
    y = torch.randn(20, 1, generator=generator)
    running = metrics.RunningMean(metrics.crps)
    for rows in (slice(0, 3), slice(3, 20)):
        running.update(predictive[rows], y[rows])
    assert running.compute() == pytest.approx(metrics.crps(predictive, y))
