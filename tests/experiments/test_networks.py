"""The experiments on networks of one's own, images and sequences, tiny, from grid to page."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from compound import experiments
from compound.datasets import colour, images, sequences
from compound.datasets.images import Images
from compound.experiments import images as images_experiment
from compound.experiments.images.networks import backbone
from compound.experiments.images.training import ImageTraining, moved, train
from compound.experiments.mean_tables import claims_about, mean_of, mean_table
from compound.experiments.pages import publish
from compound.network import Head
from compound.random import named_generator
from compound.report.page import Page


@pytest.fixture
def stripes(monkeypatch):
    """240 images, whose label is the position of a stripe, and 60 for a test; letters are noise."""

    def load(name: str, part: str, data_dir=None) -> Images:
        g = named_generator(0, name, part)
        rows = 240 if part == "train" else 60
        y = torch.randint(10, (rows,), generator=g)
        x = 0.2 * torch.rand(rows, 784, generator=g)
        if name == "mnist":
            x.view(rows, 28, 28)[torch.arange(rows), 2 + 2 * y] += 0.8
        else:
            x[:, ::2] += 0.7
        return Images(x, y)

    monkeypatch.setattr(images, "load", load)
    monkeypatch.setattr(images_experiment, "TRAINING", {"mnist": ImageTraining(epochs=6, lr=5e-3, shift=0)})
    monkeypatch.setattr(images_experiment, "QUICK_ROWS", 240)
    monkeypatch.setattr(images_experiment, "QUICK_EPOCHS", 6)
    monkeypatch.setattr(images_experiment, "OOD_SETS", {"mnist": ("notmnist", "flipped")})


@pytest.mark.slow
def test_images_experiment(stripes, tmp_path):
    runs = experiments.plan("images", "quick", 1, ["map", "ml-cdn"])
    runs = [
        replace(run, options={**run.options, "members": 1}) if run.method == "ml-cdn" else run for run in runs
    ]
    results = experiments.perform_all(runs, tmp_path / "runs", None, 1)
    for result in results:
        assert result.metrics["calibrated"]["accuracy"] > 0.9
        letters = result.metrics["calibrated"]["notmnist"]
        assert letters["auroc"] > 0.95 and letters["auroc_score"] > 0.99
        assert "auroc_score" not in result.metrics["plain"]["notmnist"]
    claims = publish(results, tmp_path / "page")
    text = (tmp_path / "page" / "index.html").read_text()
    assert "AUROC notMNIST, score" in text and "ml-cdn, calibrated" in text
    (claim,) = [claim for claim in claims if "accuracy" in claim.claim]
    assert claim.value == results[1].metrics["calibrated"]["accuracy"]


def test_moved_images_are_cut_out_of_padded_ones():
    x = torch.rand(40, 2, 6, 6, generator=named_generator(0, "x"))
    out = moved(x, 2, True, named_generator(0, "moves"))
    padded = torch.nn.functional.pad(x, (2, 2, 2, 2))
    for row, image in enumerate(out):
        found = [
            torch.equal(image, piece) or torch.equal(image, piece.flip(2))
            for i in range(5)
            for j in range(5)
            for piece in [padded[row, :, i : i + 6, j : j + 6]]
        ]
        assert sum(found) == 1
    assert (moved(x, 0, False, named_generator(0)) == x).all()


def test_training_of_images_resumes_to_the_same_weights(tmp_path, monkeypatch):
    x, y = torch.rand(30, 1, 28, 28, generator=named_generator(0, "x")), torch.arange(30) % 10
    weights = []
    for stops in ((2,), (1, 2)):
        path = tmp_path / f"{len(stops)}.safetensors"
        for epochs in stops:
            torch.manual_seed(0)
            network = backbone("mnist")
            head = Head("map", features=128, task=images_experiment.TASK)
            monkeypatch.setattr("math.cos", lambda angle: 1.0)  # a rate that does not depend on the end
            train(network, head, x, y, ImageTraining(epochs=epochs, batch_size=15), path)
        weights.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
    assert weights[0].equal(weights[1])


@pytest.mark.parametrize("data", ["mnist", "cifar10"])
def test_backbones_give_the_features_that_heads_take(data):
    channels, side = images_experiment.SIDES[data]
    features = backbone(data)(torch.rand(2, channels, side, side))
    assert features.shape == (2, images_experiment.FEATURES[data]) and bool((features >= 0).all())


def test_colour_images_come_as_channels(monkeypatch):
    pixels = torch.randint(256, (4, 3, 32, 32), generator=named_generator(0), dtype=torch.uint8)
    monkeypatch.setattr(colour, "load", lambda *_: Images(pixels, torch.arange(4)))
    x, y = images_experiment.load("cifar10", "train", None)
    assert_close(x, pixels / 255)
    assert y.tolist() == [0, 1, 2, 3]


@pytest.mark.slow
def test_sequences_experiment(monkeypatch, tmp_path):
    """Speakers differ by the largest of twelve numbers, demand is a wave with noise."""
    g = named_generator(0, "sequences")

    def vowels(part: str, data_dir=None) -> sequences.Vowels:
        y = torch.arange(3).repeat_interleave(30 if part == "train" else 10)
        x = 0.3 * torch.randn(len(y), 5, 12, generator=named_generator(0, part)) + torch.eye(12)[y][:, None]
        return sequences.Vowels(x, torch.full((len(y),), 5), y)

    steps = torch.arange(365 * 48, dtype=torch.float32)
    wave = 3 + torch.sin(2 * torch.pi * steps / 48) + 0.1 * torch.randn(len(steps), generator=g)
    demand = sequences.Demand(wave, 0 * steps, torch.randn(len(steps), generator=g))
    monkeypatch.setattr(sequences, "vowels", vowels)
    monkeypatch.setattr(sequences, "demand", lambda data_dir=None: demand)
    monkeypatch.setattr("compound.experiments.sequences.HELD_OUT", 20)
    monkeypatch.setattr("compound.experiments.sequences.SPEAKERS", 3)
    monkeypatch.setattr("compound.experiments.sequences.days.STRIDE", 48)
    monkeypatch.setattr("compound.experiments.sequences.QUICK_EPOCHS", 6)
    runs = experiments.plan("sequences", "quick", 1, ["gru", "compound-gru"])
    assert {run.data for run in runs} == {"vowels", "demand"}
    results = experiments.perform_all(runs, tmp_path / "runs", None, 1)
    for result in results:
        numbers = result.metrics
        if result.run.data == "vowels":
            assert numbers["accuracy"] > 0.5 and len(numbers["auroc by speaker"]) == 3
        else:
            assert numbers["crps"] < 0.4  # that of the wave's mean and standard deviation
            assert 0.8 < numbers["coverage"] < 1.0
    claims = publish(results, tmp_path / "page")
    assert "compound-gru" in (tmp_path / "page" / "index.html").read_text()
    assert any("accuracy" in claim.claim for claim in claims)


def test_tables_of_means():
    runs = {"one": [{"a": 1.0, "b": 2.0}, {"a": 3.0}], "other": [{"a": 0.5}]}
    page = Page("title")
    mean_table(page, "form", {"a": "A", "b": "B"}, runs)
    text = page.html()
    assert "2.0000 ± 1.0000" in text and "0.5000" in text
    assert mean_of(runs["other"], "b") is None
    (claim,) = claims_about("a", mean_of(runs["one"], "a"), mean_of(runs["other"], "a"), at_most=True)
    assert (claim.value, claim.limit, claim.held) == (2.0, 0.5, False)
    assert claims_about("a", None, 1.0) == []
