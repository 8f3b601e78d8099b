"""Features of pictures: computed once, kept on disk, in standard units of the training rows.

runs/cache/features/<key>.npz holds one block of pictures. The key is made of the extractor's name and weights and of the block's
pixels, so that another extractor or other pictures are other files. Every block is whole or absent: what is interrupted goes on
with the next one, and several processes work on different blocks.
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

from compound.datasets.colour import pixels
from compound.experiments.runs import Busy, locked
from compound.io.atomic import write_atomic
from compound.io.bundle import digest
from compound.train.progress import FitProgress

BLOCK = 500  # pictures per file
ROWS = 25  # pictures per pass: more of them leave the processor's cache


@dataclass(frozen=True)
class FeatureExtractor:
    """From pixels to standard features, with gradients."""

    extractor: nn.Module
    mean: Tensor  # (features,)
    scale: Tensor  # (features,)

    @classmethod
    def fit(cls, extractor: nn.Module, features: Tensor) -> "FeatureExtractor":
        """In units of these rows; a feature that is constant stays 0."""
        mean, scale = features.double().mean(0), features.double().std(0, correction=0)
        scale = torch.where(scale > 1e-6 * mean.abs(), scale, 1.0)
        return cls(extractor, mean.float(), scale.float())

    def standard(self, features: Tensor) -> Tensor:
        return (features - self.mean) / self.scale

    def __call__(self, x: Tensor) -> Tensor:  # (rows, 3, 32, 32) in [0, 1] -> (rows, features)
        return self.standard(self.extractor(x))


@torch.no_grad()
def extracted(extractor: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:  # (rows, features)
    """Features of pixels (rows, 3, 32, 32) in [0, 1]."""
    return torch.cat([extractor(part) for part in x.split(ROWS)])


class FeatureCache:
    """Features of one extractor, kept in a folder."""

    def __init__(
        self,
        name: str,
        extractor: nn.Module,
        folder: Path,
        callback: Callable[[FitProgress], None] | None = None,
    ):
        self.extractor, self.folder, self.callback = extractor, folder, callback
        self.identity = digest(name, extractor.state_dict())

    def features(self, x: Tensor) -> Tensor:  # (rows, 3, 32, 32) bytes -> (rows, features)
        blocks = x.split(BLOCK)
        self.folder.mkdir(parents=True, exist_ok=True)
        found = {
            number: kept for number, block in enumerate(blocks) if (kept := self._kept(block)) is not None
        }
        begin, had = time.monotonic(), len(found)
        for wait in (False, True):  # first what nobody works on, then what others have not brought
            for number, block in enumerate(blocks):
                if number in found:
                    continue
                try:
                    with locked(self._path(block).with_suffix(".lock"), wait):
                        kept = self._kept(block)
                        found[number] = self._compute(block) if kept is None else kept
                except Busy:
                    continue
                self._tell(len(found), len(blocks), (len(found) - had) / (time.monotonic() - begin))
        return torch.cat([found[number] for number in range(len(blocks))])

    def _path(self, block: Tensor) -> Path:
        shape = f"{self.identity} {tuple(block.shape)}"
        return (
            self.folder / f"{hashlib.sha256(shape.encode() + block.numpy().tobytes()).hexdigest()[:32]}.npz"
        )

    def _kept(self, block: Tensor) -> Tensor | None:
        """What the folder has, if its first row is what the extractor gives today: code may change where weights do not."""
        try:
            with np.load(io.BytesIO(self._path(block).read_bytes()), allow_pickle=False) as file:
                kept = torch.from_numpy(file["features"])
        except (
            OSError,
            KeyError,
            ValueError,
            EOFError,
            zipfile.BadZipFile,
            zlib.error,
        ):  # absent, or damaged
            return None
        now = extracted(self.extractor, pixels(block[:1]))[0]
        alike = len(kept) == len(block) and kept.shape[1:] == now.shape
        return (
            kept
            if alike and torch.allclose(kept[0], now, rtol=1e-3, atol=1e-3 * float(now.abs().max()))
            else None
        )

    def _compute(self, block: Tensor) -> Tensor:
        features = extracted(self.extractor, pixels(block))
        buffer = io.BytesIO()
        np.savez(buffer, features=features.numpy())
        write_atomic(self._path(block), buffer.getvalue())
        return features

    def _tell(self, done: int, blocks: int, rate: float) -> None:
        if self.callback is not None:
            self.callback(FitProgress(done * BLOCK, blocks * BLOCK, float("nan"), float("nan"), rate * BLOCK))
