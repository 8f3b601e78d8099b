"""Training of a backbone with a head on augmented images, resumed from a checkpoint after every epoch."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from compound.io.checkpoint_file import load_checkpoint, pack, save_checkpoint, unpack
from compound.network import Head
from compound.random import named_generator
from compound.train.progress import FitProgress

CLIP_NORM = 5.0


@dataclass(frozen=True)
class ImageTraining:
    """How a network is trained: Adam, the learning rate falls to 0 along a half cosine."""

    epochs: int
    lr: float = 1e-3
    batch_size: int = 100
    shift: int = 2  # pixels that an image is moved by, at most, along both axes
    mirror: bool = False  # whether half of the images are mirrored left to right


def moved(x: Tensor, shift: int, mirror: bool, generator: torch.Generator) -> Tensor:
    """Images x (rows, channels, side, side), each moved by random whole pixels, 0 comes in; or mirrored."""
    rows, channels, side, _ = x.shape
    offsets = torch.randint(2 * shift + 1, (2, rows, 1), generator=generator) + torch.arange(side)
    if mirror:
        turned = torch.rand(rows, 1, generator=generator) < 0.5
        offsets[1] = torch.where(turned, offsets[1].flip(1), offsets[1])
    padded = functional.pad(x, (shift,) * 4).flatten(2)  # (rows, channels, pixels)
    pixel = offsets[0].unsqueeze(2) * (side + 2 * shift) + offsets[1].unsqueeze(1)  # (rows, side, side)
    return padded.gather(2, pixel.view(rows, 1, -1).expand(-1, channels, -1)).view_as(x)


def train(
    backbone: nn.Module,
    head: Head,
    x: Tensor,
    y: Tensor,
    training: ImageTraining,
    checkpoint: Path,
    callback: Callable[[FitProgress], None] | None = None,
) -> None:
    """Train backbone and head on images x (rows, channels, side, side) in [0, 1] with labels y (rows,).

    After each epoch all that the next one reads is saved in `checkpoint`, and read from it if it exists.
    """
    optimizer = torch.optim.Adam([*backbone.parameters(), *head.model.parameters()], lr=training.lr)
    parameters = optimizer.param_groups[0]["params"]
    head.start(y)
    first = _resume(checkpoint, backbone, head, optimizer)
    steps = math.ceil(len(x) / training.batch_size)
    for parameter in backbone.parameters():
        if parameter.ndim == 4:  # convolutions are faster so
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    backbone.train()
    head.train()
    began, done = time.monotonic(), first * steps
    for epoch in range(first, training.epochs):
        generator = named_generator(head.seed, "images", epoch)
        for rows in torch.randperm(len(x), generator=generator).split(training.batch_size):
            progress = done / (training.epochs * steps)
            optimizer.param_groups[0]["lr"] = training.lr * 0.5 * (1 + math.cos(math.pi * progress))
            images = moved(x[rows], training.shift, training.mirror, generator)
            features = backbone(images.contiguous(memory_format=torch.channels_last))
            loss = head(features, y[rows], progress=progress)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
            optimizer.step()
            done += 1
            if callback is not None and done % 20 == 0:
                rate = (done - first * steps) / (time.monotonic() - began)
                callback(FitProgress(done, training.epochs * steps, float(loss.detach()), math.nan, rate))
        state = {"backbone": backbone.state_dict(), "head": head.state_dict(), "epoch": epoch + 1}
        save_checkpoint(checkpoint, *pack({**state, "optimizer": optimizer.state_dict()}))
    backbone.eval()
    head.eval()


def _resume(checkpoint: Path, backbone: nn.Module, head: Head, optimizer: torch.optim.Optimizer) -> int:
    """Load a checkpoint, if there is one; the number of epochs that are done."""
    if not checkpoint.exists():
        return 0
    content = unpack(load_checkpoint(checkpoint))
    backbone.load_state_dict(content["backbone"])
    head.load_state_dict(content["head"])
    optimizer.load_state_dict(content["optimizer"])
    return int(content["epoch"])
