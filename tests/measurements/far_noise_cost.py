"""What far noise costs on test rows: mean negative log-likelihood with it less that of the same weights without.

    python tests/measurements/far_noise_cost.py DATA [--method ml-cdn] [--splits 20] [--only yacht]

For every UCI set: the mean over splits in nats, its standard error, and the worst split.
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
    truth = torch.from_numpy(y[test]).unsqueeze(-1)
    noisy = model.predict_dist(x[test]).log_prob(truth).mean()
    model.model_.far.noise.set_ramp(*NO_NOISE)
    return float(model.predict_dist(x[test]).log_prob(truth).mean() - noisy)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--method", default="ml-cdn")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=list(SPLITS))
    options = parser.parse_args()
    for name in options.only:
        found = np.array(
            [
                cost(options.data, name, split, options.method)
                for split in range(min(options.splits, SPLITS[name]))
            ]
        )
        error = found.std(ddof=1) / np.sqrt(len(found)) if len(found) > 1 else np.nan
        print(
            f"{name:28s} {options.method} cost {found.mean():.4f} ± {error:.4f}, worst {found.max():.4f}, {len(found)} splits",
            flush=True,
        )
