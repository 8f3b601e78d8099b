"""Cost of far noise: test NLL with it minus that of the same weights without it.

    python tests/measurements/far_noise_cost.py DATA [--method ml-cdn] [--splits 20] [--only yacht]

For every UCI table: the mean over splits in nats, its standard error, and the worst split.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from compound import CompoundRegressor
from compound.datasets.uci import SPLITS

NO_NOISE = (-20.0, 0.0, -20.0)  # a ramp that adds nothing


def cost(folder: Path, name: str, split: int, method: str) -> float:
    with np.load(folder / f"uci/{name}.npz") as file:
        x, y = file["data"][:, file["index_features"]], file["data"][:, file["index_target"]][:, 0]
        train, test = file[f"index_train_{split}"], file[f"index_test_{split}"]
    model = CompoundRegressor(method, random_state=split).fit(x[train], y[train])
    target = torch.from_numpy(y[test]).unsqueeze(-1)
    with_noise = model.predict_dist(x[test]).log_prob(target).mean()
    model.model_.far.noise.set_ramp(*NO_NOISE)
    return float(model.predict_dist(x[test]).log_prob(target).mean() - with_noise)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--method", default="ml-cdn")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=list(SPLITS))
    options = parser.parse_args()
    for name in options.only:
        splits = range(min(options.splits, SPLITS[name]))
        costs = np.array([cost(options.data, name, split, options.method) for split in splits])
        error = costs.std(ddof=1) / np.sqrt(len(costs)) if len(costs) > 1 else np.nan
        text = f"cost {costs.mean():.4f} ± {error:.4f}, worst {costs.max():.4f}, {len(costs)} splits"
        print(f"{name:28s} {options.method} {text}", flush=True)
