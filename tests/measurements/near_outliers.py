"""Near outliers: how far noise ranks digits (clothes) that are turned, shifted, overlaid or hidden in part.

    python tests/measurements/near_outliers.py DATA [--seeds 1] [--steps 6000] [--rows 2000] [--runs runs]

The default `ml-cdn` is trained on MNIST and on Fashion-MNIST; what it says of test images and of each kind of
outlier is kept in `--runs`. Then only the rule of far noise varies. With no outlier, each rule gives a score,
and the ramp from score to the weight of the uniform distribution is chosen on held-out rows as for distances.
p-values are those of held-out rows, e = -log p; H: the network's entropy, E: its epistemic part, d: distance.
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from compound import metrics
from compound.datasets import images
from compound.experiments import ood
from compound.models import Method, build
from compound.ood.noise import DistanceAwareNoise
from compound.ood.ramp import GRIDS, choose_ramp
from compound.ops.clamp import clamp_inputs
from compound.random import named_generator
from compound.train.loop import fit
from compound.types import make_dataset

Arrays = dict[str, Tensor]
OTHER = {"mnist": "fashion-mnist", "fashion-mnist": "mnist"}
CHOSEN_ON = ("upside down", "mirrored", "omniglot", "other set")  # the rule may be chosen on these kinds
HELD_OUT, DISTANCE_ROWS = 4000, 20_000
CUT = math.log(4)  # evidence of distance that a quarter of the held-out rows have counts as none


def turned(x: Tensor, degrees: float) -> Tensor:
    angle, pictures = math.radians(degrees), x.view(-1, 1, 28, 28)
    rotation = torch.tensor([[math.cos(angle), -math.sin(angle), 0], [math.sin(angle), math.cos(angle), 0]])
    grid = functional.affine_grid(rotation.expand(len(x), 2, 3), list(pictures.shape), align_corners=False)
    return functional.grid_sample(pictures, grid, align_corners=False).flatten(1)


def occluded(x: Tensor) -> Tensor:
    pictures = x.view(-1, 28, 28).clone()
    pictures[:, 7:21, 7:21] = 0
    return pictures.flatten(1)


def kinds(data: str, x: Tensor, seed: int, folder: Path) -> Arrays:
    """Outliers of every kind for test images x (rows, 784)."""
    g = named_generator(seed, "near outliers")

    def sample(name: str) -> Tensor:
        other = images.load(name, "test" if "test" in images.PARTS[name] else "all", folder).x
        return other[torch.randperm(len(other), generator=g)[: len(x)]]

    pictures = x.view(-1, 28, 28)
    return {
        "turned 45": turned(x, 45),
        "turned 90": turned(x, 90),
        "shifted": functional.pad(pictures, (6, 0, 6, 0))[:, :28, :28].flatten(1),
        "overlaid": torch.maximum(x, x[torch.randperm(len(x), generator=g)]),
        "occluded": occluded(x),
        "upside down": images.flipped(x),
        "mirrored": pictures.flip(2).flatten(1),
        "omniglot": sample("omniglot"),
        "letters": sample("notmnist"),
        "other set": sample(OTHER[data]),
    }


def measured(data: str, seed: int, steps: int, rows: int, folder: Path, runs: Path) -> Arrays:
    """Probabilities, H, E and d of held-out rows, test rows and outliers; kept in a file."""
    path = runs / f"near-{data}-{seed}-{steps}-{rows}.npz"
    if path.exists():
        return {name: torch.from_numpy(array) for name, array in np.load(path).items()}
    runs.mkdir(parents=True, exist_ok=True)
    train, test = (images.load(data, part, folder) for part in ("train", "test"))
    weight = torch.ones(len(train.x))
    weight[: ood.HELD_OUT] = 0
    model = build(Method("ml-cdn", widths=(100,), far=0.0), 784, ood.TASK, seed)
    batch = make_dataset(train.x, train.y, ood.TASK, weight)
    fit(model, batch, ood.train_config("ml-cdn", steps), seed, path.with_suffix(".safetensors"))
    noise = DistanceAwareNoise(784)
    noise.fit(clamp_inputs(train.x[ood.HELD_OUT :][:DISTANCE_ROWS]), named_generator(seed, "distance"))
    x = test.x[:rows]
    arrays = {"y": train.y[:HELD_OUT]}
    for name, inputs in {"held out": train.x[:HELD_OUT], "test": x, **kinds(data, x, seed, folder)}.items():
        p = ood.predict(model, inputs, seed)
        arrays |= {f"{name}, p": p.probs, f"{name}, H": p.entropy(), f"{name}, E": p.epistemic}
        arrays[f"{name}, d"] = noise.distance(clamp_inputs(inputs))
    np.savez(path, **{name: array.numpy() for name, array in arrays.items()})
    return arrays


def evidence(held_out: Tensor, values: Tensor) -> Tensor:
    """-log p of values by their rank among held-out rows; beyond these by an exponential tail."""
    top = held_out.double().sort().values
    above = len(top) - torch.searchsorted(top, values.double())
    start = top[int(0.95 * len(top))]
    slope = 1 / (top[top > start] - start).mean().clamp_min(1e-12)
    tail = math.log(20) + slope * (values.double() - start).clamp_min(0)
    return torch.where(values > start, tail, -((above + 1) / (len(top) + 1)).log()).float()


RULES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {  # of the evidences of H, E and d
    "E": lambda h, e, d: e,
    "E + d": lambda h, e, d: e + d,
    "H + E + d": lambda h, e, d: h + e + d,
    "E + d above its upper quartile": lambda h, e, d: e + (d - CUT).clamp_min(0),
    "H + E + d above its upper quartile": lambda h, e, d: h + e + (d - CUT).clamp_min(0),
    "E + half of d above its upper quartile": lambda h, e, d: e + 0.5 * (d - CUT).clamp_min(0),
}


def ramp(arrays: Arrays, score: Tensor) -> DistanceAwareNoise:
    """Far noise as a function of a score, chosen on held-out rows with these scores as for distances."""
    noise = DistanceAwareNoise(1)
    noise.distance.fit_quantiles(score)
    right = arrays["held out, p"].gather(1, arrays["y"].unsqueeze(1)).squeeze(1)

    def log_densities(t: Tensor | None) -> Tensor:  # (1, rows)
        weight = torch.zeros_like(right) if t is None else t.sigmoid()
        return ((1 - weight) * right + weight / 10).log().unsqueeze(0)

    choose_ramp(noise, GRIDS["classification"], score.unsqueeze(0), log_densities)
    return noise


def scores(arrays: Arrays) -> dict[str, dict[str, tuple[Tensor, Tensor]]]:
    """Rule -> set -> entropy and epistemic part with its noise."""
    names = [name.removesuffix(", d") for name in arrays if name.endswith(", d")]

    def with_noise(noise: DistanceAwareNoise, score: Tensor, name: str) -> tuple[Tensor, Tensor]:
        weight = noise.from_distance(score).sigmoid().unsqueeze(1)
        p = (1 - weight) * arrays[f"{name}, p"] + weight / 10
        entropy = -(p * p.clamp_min(1e-30).log()).sum(1)
        return entropy, entropy - (arrays[f"{name}, H"] - arrays[f"{name}, E"])

    out = {"no far noise": {name: (arrays[f"{name}, H"], arrays[f"{name}, E"]) for name in names}}
    noise = ramp(arrays, arrays["held out, d"])
    out["distance (today)"] = {name: with_noise(noise, arrays[f"{name}, d"], name) for name in names}
    for rule, join in RULES.items():

        def score(name: str, join: Callable[..., Tensor] = join) -> Tensor:
            parts = (evidence(arrays[f"held out, {k}"], arrays[f"{name}, {k}"]) for k in "HEd")
            return join(*parts)

        noise = ramp(arrays, score("held out"))
        out[rule] = {name: with_noise(noise, score(name), name) for name in names}
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--sets", nargs="*", default=list(OTHER))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for data in options.sets:
        aurocs: dict[str, dict[str, list[tuple[float, float]]]] = {}
        for seed in range(options.seeds):
            arrays = measured(data, seed, options.steps, options.rows, options.data, options.runs)
            for rule, sets in scores(arrays).items():
                for name, parts in sets.items():
                    if name not in ("held out", "test"):
                        pair = tuple(metrics.auroc(a, b) for a, b in zip(sets["test"], parts, strict=True))
                        aurocs.setdefault(rule, {}).setdefault(name, []).append(pair)  # type: ignore[arg-type]
        names = list(aurocs["no far noise"])
        print(f"{data}: AUROC by entropy / by epistemic part, {options.seeds} seeds\n")
        print("| rule | " + " | ".join(names) + " | mean: chosen on | mean: not chosen on |")
        print("|" + " --- |" * (len(names) + 3))
        for rule, sets in aurocs.items():
            means = {name: np.mean(pairs, 0) for name, pairs in sets.items()}
            chosen = np.mean([means[name] for name in names if name in CHOSEN_ON], 0)
            others = np.mean([means[name] for name in names if name not in CHOSEN_ON], 0)
            cells = [f"{a:.3f} / {b:.3f}" for a, b in (*means.values(), chosen, others)]
            print(f"| {rule} | {' | '.join(cells)} |", flush=True)
        print()


if __name__ == "__main__":
    main()
