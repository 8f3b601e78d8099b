"""Features of images: computed once, kept on disk, standardised by the training rows.

runs/cache/features/<key>.npz holds one block of images. The key is a hash of the extractor's name and weights
and of the block's pixels. Files are written whole: after an interruption only missing blocks are
computed, and several processes compute different blocks.
"""

import hashlib
import io
import time
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from compound.datasets.colour import to_unit_range
from compound.experiments.locks import Busy, locked
from compound.io.atomic import write_atomic
from compound.io.bundle import digest
from compound.train.progress import FitProgress

BLOCK = 500  # images per file
BATCH_ROWS = 25  # images per forward pass: more of them leave the processor's cache
UNREADABLE = (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error)  # absent or damaged


@dataclass(frozen=True)
class FeatureExtractor:
    """A differentiable function from pixels to standardised features."""

    extractor: nn.Module
    mean: Tensor  # (features,)
    scale: Tensor  # (features,)

    @classmethod
    def fit(cls, extractor: nn.Module, features: Tensor, centred: bool = True) -> "FeatureExtractor":
        """Standardise by the mean and deviation of `features` (rows, features); a constant one becomes 0.

        With `centred` false the mean stays, so that directions are those of the network's own features.
        """
        mean, scale = features.double().mean(0), features.double().std(0, correction=0)
        scale = torch.where(scale > 1e-6 * mean.abs(), scale, 1.0)
        return cls(extractor, mean.float() if centred else torch.zeros_like(mean.float()), scale.float())

    def standardise(self, features: Tensor) -> Tensor:
        return (features - self.mean) / self.scale

    def __call__(self, x: Tensor) -> Tensor:  # (rows, 3, 32, 32) in [0, 1] -> (rows, features)
        return self.standardise(self.extractor(x))


@torch.no_grad()
def extract(extractor: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:  # (rows, features)
    """Features of pixels (rows, 3, 32, 32) in [0, 1], in batches."""
    return torch.cat([extractor(batch) for batch in x.split(BATCH_ROWS)])


class FeatureCache:
    """Computes features of images and saves them in a folder; saved ones are loaded.

    `name` is that of the extractor; `callback` gets the progress in images.
    """

    def __init__(
        self,
        name: str,
        extractor: nn.Module,
        folder: Path,
        callback: Callable[[FitProgress], None] | None = None,
    ):
        self.extractor = extractor
        self.folder = folder
        self.callback = callback
        self.identity = digest(name, extractor.state_dict())

    def features(self, x: Tensor) -> Tensor:  # (rows, 3, 32, 32) bytes -> (rows, features)
        """Features of images, not standardised."""
        blocks = x.split(BLOCK)
        self.folder.mkdir(parents=True, exist_ok=True)
        loaded = [self._load(block) for block in blocks]
        features = {number: block for number, block in enumerate(loaded) if block is not None}
        start = time.monotonic()
        n_loaded = len(features)
        # first the blocks that no other process computes, then wait for those that others do
        for wait in (False, True):
            for number, block in enumerate(blocks):
                if number in features:
                    continue
                try:
                    with locked(self._path(block).with_suffix(".lock"), wait):
                        cached = self._load(block)
                        features[number] = self._compute(block) if cached is None else cached
                except Busy:
                    continue
                rate = (len(features) - n_loaded) / (time.monotonic() - start)
                self._report(len(features), len(blocks), rate)
        return torch.cat([features[number] for number in range(len(blocks))])

    def _path(self, block: Tensor) -> Path:
        """The file for the features of a block of images."""
        shape = f"{self.identity} {tuple(block.shape)}"
        key = hashlib.sha256(shape.encode() + block.numpy().tobytes()).hexdigest()[:32]
        return self.folder / f"{key}.npz"

    def _load(self, block: Tensor) -> Tensor | None:
        """The saved features of a block of images; None if there are none.

        Also None if the extractor gives another first row, since its code may have changed.
        """
        try:
            with np.load(io.BytesIO(self._path(block).read_bytes()), allow_pickle=False) as file:
                cached = torch.from_numpy(file["features"])
        except UNREADABLE:
            return None
        first = extract(self.extractor, to_unit_range(block[:1]))[0]
        if len(cached) != len(block) or cached.shape[1:] != first.shape:
            return None
        close = torch.allclose(cached[0], first, rtol=1e-3, atol=1e-3 * float(first.abs().max()))
        return cached if close else None

    def _compute(self, block: Tensor) -> Tensor:
        """Compute the features of a block of images, and save them."""
        features = extract(self.extractor, to_unit_range(block))
        buffer = io.BytesIO()
        np.savez(buffer, features=features.numpy())
        write_atomic(self._path(block), buffer.getvalue())
        return features

    def _report(self, done: int, blocks: int, rate: float) -> None:
        """Call the callback with blocks done, blocks in all, and blocks per second, converted to images."""
        if self.callback is not None:
            self.callback(FitProgress(done * BLOCK, blocks * BLOCK, float("nan"), float("nan"), rate * BLOCK))
