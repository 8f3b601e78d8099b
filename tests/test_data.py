import pytest
import torch
from sklearn.datasets import load_digits

from compound.datasets.digits import digits, mirrored, noise, photographs
from compound.datasets.toy import cubic


def residuals(name: str, side: int, seeds: int = 200) -> torch.Tensor:
    """Noise of many sets, on one side of zero."""
    sets = [cubic(name, seed) for seed in range(seeds)]
    x, y = torch.cat([toy.x for toy in sets]), torch.cat([toy.y for toy in sets])
    return (y - x**3)[x.sign() == side]


@pytest.mark.parametrize("name,rows,left,right", [("set 1", 20, 3.0, 3.0), ("set 2", 100, 15.0, 3.0)])
def test_toy_sets_have_the_noise_of_the_paper(name: str, rows: int, left: float, right: float):
    assert cubic(name, 0).x.shape == cubic(name, 0).y.shape == (rows, 1)
    for side, std in ((-1, left), (1, right)):
        noise_there = residuals(name, side)
        error = 4 * std / (2 * len(noise_there)) ** 0.5  # four standard errors of a standard deviation
        assert abs(noise_there.std().item() - std) < error
        assert abs(noise_there.mean().item()) < 4 * std / len(noise_there) ** 0.5


def test_toy_inputs_fill_the_interval():
    x = torch.cat([cubic("set 2", seed).x for seed in range(50)])
    assert x.abs().max() <= 4
    assert abs(x.std().item() - 8 / 12**0.5) < 0.05


def test_toy_set_follows_its_seed_and_nothing_else():
    before = torch.get_rng_state()
    first = cubic("set 1", 5)
    torch.rand(3)
    assert torch.equal(first.y, cubic("set 1", 5).y)
    assert not torch.equal(first.y, cubic("set 1", 6).y)
    torch.set_rng_state(before)
    cubic("set 1", 5)
    assert torch.equal(before, torch.get_rng_state())
    with pytest.raises(ValueError, match="choose set 1 or set 2"):
        cubic("set 3", 0)


def test_digits_split_keeps_every_digit_once_and_the_classes_in_proportion():
    parts = digits(0)
    ours = torch.cat([parts.x_train, parts.x_test]) * 16
    theirs, labels = load_digits(return_X_y=True)
    assert sorted(map(tuple, ours.tolist())) == sorted(map(tuple, theirs.tolist()))
    fraction = len(parts.y_test) / 1797
    assert abs(fraction - 0.3) < 1e-3
    for label in range(10):
        assert abs((parts.y_test == label).sum().item() - fraction * (labels == label).sum()) <= 1
    label_of = {tuple(row): label for row, label in zip(theirs.tolist(), labels.tolist(), strict=True)}
    assert all(
        label_of[tuple(row)] == label
        for row, label in zip((parts.x_test * 16).tolist(), parts.y_test.tolist(), strict=True)
    )
    assert torch.equal(parts.x_test, digits(0).x_test)
    assert not torch.equal(parts.x_test, digits(1).x_test)


def test_photographs_are_patches_of_the_downsampled_images():
    from sklearn.datasets import load_sample_images

    grey = torch.tensor(load_sample_images().images[0]).double().mean(-1) / 255
    tile = torch.stack(
        [grey[4 * r : 4 * r + 4, 4 * c : 4 * c + 4].mean() for r in range(106) for c in range(160)]
    ).view(106, 160)
    patch = photographs(3, 0)[2].view(8, 8).double()  # the third one is of the first image again
    patches = tile.unfold(0, 8, 1).unfold(1, 8, 1)  # (99, 153, 8, 8)
    assert (patches - patch).abs().amax((2, 3)).min() < 1e-6
    assert not torch.equal(photographs(3, 0), photographs(3, 1))


def test_mirrored_images_are_upside_down():
    x = torch.arange(128.0).view(2, 64)
    flipped = mirrored(x)
    assert flipped[0, :8].tolist() == x[0, 56:].tolist()
    assert torch.equal(mirrored(flipped), x)


def test_noise_is_uniform():
    x = noise(500, 0)
    assert x.shape == (500, 64)
    assert abs(x.mean().item() - 0.5) < 4 * (1 / 12 / x.numel()) ** 0.5
    assert abs(x.var().item() - 1 / 12) < 2e-3
