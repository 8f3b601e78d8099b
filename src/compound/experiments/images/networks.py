"""Backbones: two convolutions for grey images (28 x 28), a small residual network for colour (32 x 32)."""

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

FEATURES = {"mnist": 128, "fashion-mnist": 128, "cifar10": 128}
WIDTHS = (32, 64, 128)  # channels of the three stages of the residual network


def backbone(data: str) -> nn.Module:
    """The untrained network for images of a data set, from the pixels to FEATURES numbers."""
    return residual_network() if data == "cifar10" else small_cnn(FEATURES[data])


def small_cnn(features: int) -> nn.Module:
    """Two convolutions with pooling and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 49, features),
        nn.ReLU(),
    )


class Block(nn.Module):
    """Two convolutions beside a connection that skips them; the first one may halve the resolution."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _ in range(2))
        same = inputs == outputs and stride == 1
        self.skip = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(self.norms[1](self.second(inner)) + self.skip(x))


def residual_network() -> nn.Module:
    """A convolution and three residual blocks, the mean over positions at the end."""
    first = nn.Sequential(
        nn.Conv2d(3, WIDTHS[0], 3, padding=1, bias=False), nn.BatchNorm2d(WIDTHS[0]), nn.ReLU()
    )
    blocks = [Block(a, b, 2) for a, b in pairwise((WIDTHS[0], *WIDTHS))]
    return nn.Sequential(first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
