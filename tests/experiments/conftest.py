"""Synthetic images, for experiments that would train for long on real ones."""

import pytest
import torch

from compound.datasets import images
from compound.datasets.images import Images
from compound.experiments import fgsm, ood
from compound.random import named_generator


@pytest.fixture
def few(monkeypatch):
    """Short training on 300 synthetic images: the position of a stripe is the label. Other sets are noise."""

    def load(name: str, part: str, data_dir=None) -> Images:
        g = named_generator(0, name, part)
        rows = 300 if part == "train" else 40
        y = torch.randint(10, (rows,), generator=g)
        x = 0.2 * torch.rand(rows, 784, generator=g)
        if name == "mnist":
            x.view(rows, 28, 28)[torch.arange(rows), 2 * y] += 0.8
        else:
            x[:, 400:] += 0.5
        return Images(x, y)

    monkeypatch.setattr(images, "load", load)
    monkeypatch.setattr(ood, "STEPS", {"quick": 150, "paper": 151})
    monkeypatch.setattr(ood, "HELD_OUT", 60)
    monkeypatch.setattr(fgsm, "IMAGES", {"quick": 20, "paper": 20})
    monkeypatch.setattr(fgsm, "DRAWS", {"quick": 3, "paper": 3})
