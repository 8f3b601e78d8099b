"""Uncertainty after training: three small CNNs for digits, `compound.posthoc` and laplace-torch beside them.

    python tests/measurements/posthoc.py DATA [--seeds 3] [--others]

Two convolutions of 16 and 32 channels with pooling, 64 features; 9,000 of the first 10,000 MNIST digits, the
other 1,000 held out; 3 epochs of Adam 1e-3; 2,000 test digits and 2,000 outliers of each kind. AUROC is that
of the predictive entropy. `--others` shows the kinds of outliers that the distance was chosen on.
"""

import argparse
from collections import defaultdict
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from compound import CategoricalPredictive, Task, metrics, posthoc
from compound.datasets import images
from compound.random import named_generator

DIGITS = Task("classification", 10)
FORMS = {
    "the default": {},
    "far noise on features alone": {"far_noise": ("features",)},
    "far noise on inputs alone": {"far_noise": ("inputs",)},
    "last-layer Laplace": {"method": "laplace"},
}


def square(x: Tensor) -> Tensor:
    return x.reshape(-1, 1, 28, 28)


def some(x: Tensor, count: int) -> Tensor:
    return x[torch.randperm(len(x), generator=named_generator(0, "some"))[:count]]


def outliers(data: Path, others: bool) -> dict[str, Tensor]:
    """The two reported kinds, or those that the distance was chosen on."""
    if not others:
        return {
            "Fashion": some(images.load("fashion-mnist", "test", data).x, 2000),
            "notMNIST": some(images.load("notmnist", "all", data).x, 2000),
        }
    new = images.load("mnist", "train", data).x[20_000:24_000]
    order = torch.randperm(784, generator=named_generator(0, "pixels"))
    return {
        "Omniglot": some(images.load("omniglot", "all", data).x, 2000),
        "upside down": images.flipped(new[:2000]),
        "turned": new[:2000].view(-1, 28, 28).rot90(1, (1, 2)).flatten(1),
        "shifted": new[:2000].view(-1, 28, 28).roll((7, 7), (1, 2)).flatten(1),
        "overlaid pairs": torch.maximum(new[:2000], new[2000:]),
        "tiles exchanged": new[:2000].view(-1, 4, 7, 4, 7).transpose(1, 3).flatten(1),
        "pixels exchanged": new[:2000][:, order],
        "uniform noise": torch.rand(1000, 784, generator=named_generator(0, "noise")),
    }


def trained(x: Tensor, y: Tensor, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 49, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(3):
        for rows in torch.randperm(len(x)).split(100):
            loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return net.eval()


def predictive(probs: Tensor) -> CategoricalPredictive:
    return CategoricalPredictive.from_draws(probs.clamp_min(1e-30).log()[None, None])


def predictors(net: nn.Sequential, train: DataLoader, val: DataLoader) -> dict:
    out = {"plain": lambda x: predictive(net(x).softmax(-1))}
    for name, options in FORMS.items():
        out[f"posthoc, {name}"] = posthoc(net, "8", DIGITS, **options).fit(train, val).predict
    try:
        from laplace import Laplace
    except ImportError:
        print("laplace-torch is not installed: no comparison")
        return out
    oracle = Laplace(net, "classification", subset_of_weights="last_layer", hessian_structure="kron")
    oracle.fit(train)
    oracle.optimize_prior_precision(method="marglik")
    out["laplace-torch, last layer"] = lambda x: predictive(oracle(x, link_approx="probit").detach())
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--others", action="store_true")
    options = parser.parse_args()
    known, test = (images.load("mnist", part, options.data) for part in ("train", "test"))
    order = torch.randperm(10_000, generator=named_generator(0, "split"))
    parts = [TensorDataset(square(known.x[rows]), known.y[rows]) for rows in (order[:9000], order[9000:])]
    loaders = [DataLoader(part, batch_size=500) for part in parts]
    x, y = square(test.x[:2000]), test.y[:2000]
    sets = {name: square(images) for name, images in outliers(options.data, options.others).items()}
    results: dict[str, list[list[float]]] = defaultdict(list)
    print("| | accuracy | NLL |", " | ".join(sets), "|")
    for seed in range(options.seeds):
        net = trained(*parts[0].tensors, seed)
        for name, predict in predictors(net, *loaders).items():
            with torch.no_grad():
                p = predict(x)
                scores = [metrics.auroc(p.entropy(), predict(outlier).entropy()) for outlier in sets.values()]
                results[name].append([metrics.accuracy(p, y), metrics.nll(p, y), *scores])
                print(seed, name, " ".join(f"{v:.4f}" for v in results[name][-1]), flush=True)
    for name, values in results.items():
        print(f"| {name} |", " | ".join(f"{v:.4f}" for v in torch.tensor(values).mean(0).tolist()), "|")


if __name__ == "__main__":
    main()
