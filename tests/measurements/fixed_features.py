"""Far noise on features of a fixed network: CIFAR-10 against house numbers (SVHN) and traffic signs (GTSRB).

    python tests/measurements/fixed_features.py DATA FOLDER [--rows 10000] [--epochs 20] [--others]

Features of efficientnet-lite0 are extracted once and kept in FOLDER; heads are trained on them, and their
predictive is compared with and without far noise. `--others` shows the kinds of outliers that the distance
was chosen on instead: none of them is a house number or a traffic sign.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from compound import Head, Method, Task, metrics
from compound.datasets import colour, images
from compound.datasets.colour import to_unit_range
from compound.datasets.extractors import load_extractor
from compound.experiments.fgsm.features import extract
from compound.random import named_generator

METHODS = {
    "map": Method("map", widths=(100,)),
    "ml-cdn": Method("ml-cdn", widths=(100,)),
    "deep-ensemble": Method("deep-ensemble", widths=(100,)),
}


def some(x: Tensor, count: int) -> Tensor:
    return x[torch.randperm(len(x), generator=named_generator(0, "mixed"))[:count]]


def coloured(x: Tensor, name: str) -> Tensor:
    """Grey images (rows, 784) in two random colours each, 32 pixels wide."""
    g = named_generator(0, name)
    front, back = torch.rand(2, len(x), 3, 1, 1, generator=g)
    grey = nn.functional.pad(x.view(-1, 1, 28, 28), (2, 2, 2, 2))
    return front * grey + back * (1 - grey)


def outliers(data: Path, others: bool) -> dict[str, Tensor]:
    if not others:
        return {
            name: to_unit_range(some(colour.load(name, "all", data).x, 2500)) for name in ("svhn", "gtsrb")
        }
    new = to_unit_range(colour.load("cifar10", "test", data).x[6000:7000])
    parts = {"mnist": "test", "fashion-mnist": "test", "omniglot": "all", "notmnist": "all"}
    grey = {name: images.load(name, part, data).x for name, part in parts.items()}
    blobs = torch.rand(500, 3, 8, 8, generator=named_generator(0, "blobs"))
    return {
        **{name: coloured(some(x, 500), name) for name, x in grey.items()},
        "upside down": new.flip(2),
        "turned": new.rot90(1, (2, 3)),
        "tiles exchanged": new.unflatten(2, (4, 8))
        .unflatten(4, (4, 8))
        .transpose(2, 4)
        .flatten(2, 3)
        .flatten(3),
        "overlaid pairs": (new[:500] + new[500:]) / 2,
        "blobs": nn.functional.interpolate(blobs, size=(32, 32), mode="bicubic").clamp(0, 1),
        "noise": torch.rand(500, 3, 32, 32, generator=named_generator(0, "noise")),
    }


def features(name: str, x: Tensor, folder: Path) -> Tensor:
    path = folder / f"{name.replace(' ', '-')}-{len(x)}.npz"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(path, x=extract(load_extractor("efficientnet-lite0"), x).numpy())
    return torch.from_numpy(np.load(path)["x"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--others", action="store_true")
    options = parser.parse_args()
    known, test = (colour.load("cifar10", part, options.data) for part in ("train", "test"))
    x = features("train", to_unit_range(known.x[: options.rows]), options.folder)
    y = known.y[: options.rows].long()
    x_test, y_test = features("test", to_unit_range(test.x[:5000]), options.folder), test.y[:5000].long()
    strange = {
        name: features(name, rows, options.folder)
        for name, rows in outliers(options.data, options.others).items()
    }
    batches = list(zip(x.split(200), y.split(200), strict=True))
    held_out = max(1, len(batches) // 10)
    print("| | accuracy | NLL | calibration error |", " | ".join(strange), "|")
    for name, method in METHODS.items():
        head = Head(method, features=x.shape[1], task=Task("classification", 10))
        head.fit(nn.Identity(), batches[held_out:], batches[:held_out], epochs=options.epochs, frozen=True)
        for form, strength in (("without far noise", 0.0), ("with far noise", 3.0)):
            head.calibrator.strength = strength
            p = head.predict(x_test)
            numbers = [metrics.accuracy(p, y_test), metrics.nll(p, y_test), metrics.ece(p, y_test)]
            numbers += [metrics.auroc(p.entropy(), head.predict(rows).entropy()) for rows in strange.values()]
            print(f"| `{name}` {form} |", " | ".join(f"{v:.4f}" for v in numbers), "|", flush=True)


if __name__ == "__main__":
    main()
