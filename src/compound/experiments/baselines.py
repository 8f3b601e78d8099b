"""What people use instead, behind one function each: NGBoost, CatBoost, scikit-learn's Gaussian process.

Each learns from the rows of weight 1, may stop early by those of weight 0, and gives a function from inputs to the same kind of
answer that our methods give. All in standard units, as everywhere inside.
"""

import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compound.predictive import GaussianPredictive
from compound.types import Batch

Answer = Callable[[Tensor], GaussianPredictive]
STAGES = 2000  # trees at most, in both boosting libraries
PATIENCE = 50  # trees without a better held-out score
ENSEMBLE = 10  # virtual ensembles: parts of one sequence of trees
POSTERIOR_SAMPLING = (
    False  # CatBoost's Langevin noise: on boston it stopped too early and lost held-out likelihood
)
GP_ROWS = 2000  # an exact Gaussian process costs the cube of its rows: beyond these it learns from a sample


def ngboost(data: Batch, seed: int) -> Answer:
    """Natural-gradient boosting of a normal law. Duan et al. (2020)."""
    (x, y), (x_held, y_held) = _parts(data)
    with np.errstate(all="ignore"):  # its line search may overflow on the way
        model = import_module("ngboost").NGBRegressor(
            n_estimators=STAGES, learning_rate=0.01, verbose=False, random_state=seed
        )
        model.fit(x, y, x_held, y_held, early_stopping_rounds=PATIENCE)

    def answer(asked: Tensor) -> GaussianPredictive:
        law = model.pred_dist(asked.double().numpy(), max_iter=model.best_val_loss_itr)
        return _mixture(law.loc[None], law.scale[None] ** 2)

    return answer


def catboost(data: Batch, seed: int) -> Answer:
    """Boosting with a variance per row, its later trees as virtual ensembles. Malinin et al. (2021)."""
    (x, y), held = _parts(data)
    model = import_module("catboost").CatBoostRegressor(
        loss_function="RMSEWithUncertainty",
        iterations=STAGES,
        posterior_sampling=POSTERIOR_SAMPLING,
        random_seed=seed,
        thread_count=1,
        verbose=False,
        allow_writing_files=False,
    )
    model.fit(x, y, eval_set=held, early_stopping_rounds=PATIENCE)

    def answer(asked: Tensor) -> GaussianPredictive:
        parts = model.virtual_ensembles_predict(
            asked.double().numpy(),
            prediction_type="VirtEnsembles",
            virtual_ensembles_count=ENSEMBLE,
            thread_count=1,
        )  # (rows, ensemble, 2)
        return _mixture(parts[..., 0].T, parts[..., 1].T)

    return answer


def gp(data: Batch, seed: int) -> Answer:
    """An exact Gaussian process, squared exponential with a length per feature, noise learnt; nothing is held out."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:GP_ROWS]
    x, y = data.x[order].double().numpy(), data.y[order, 0].double().numpy()
    bounds = (1e-2, 1e3)
    kernel = ConstantKernel(1.0, (1e-3, 1e4)) * RBF(np.full(x.shape[1], 2.0), bounds) + WhiteKernel(
        0.1, (1e-6, 10.0)
    )
    model = GaussianProcessRegressor(kernel, alpha=1e-8, normalize_y=False, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a length at its bound means a feature without use
        model.fit(x, y)
    noise = float(model.kernel_.k2.noise_level)

    def answer(asked: Tensor) -> GaussianPredictive:
        mean, std = model.predict(asked.double().numpy(), return_std=True)
        total = np.maximum(std**2, noise)  # the kernel's noise is in it
        return _mixture(mean[None], total[None], known=np.full_like(mean, noise))

    return answer


PEERS: dict[str, Callable[[Batch, int], Answer]] = {"ngboost": ngboost, "catboost": catboost, "gp": gp}


def settings(name: str) -> dict[str, int | bool]:
    """All that decides a peer's result besides its data, for the description of a run."""
    boosted: dict[str, int | bool] = {"stages": STAGES, "patience": PATIENCE}
    virtual: dict[str, int | bool] = {"ensemble": ENSEMBLE, "posterior_sampling": POSTERIOR_SAMPLING}
    return {"ngboost": boosted, "catboost": boosted | virtual, "gp": {"rows": GP_ROWS}}[name]


def installed() -> tuple[str, ...]:
    """Those whose library is here."""
    return tuple(name for name in PEERS if name == "gp" or find_spec(name) is not None)


def _parts(data: Batch) -> Any:
    """(x, y) of the rows to learn from, and of the rows held out."""
    if data.weight is None or not bool((data.weight == 0).any()):
        raise ValueError("weight holds no row out: a peer stops early by held-out rows, give some weight 0")
    held = data.weight.reshape(-1, len(data))[0] == 0
    return tuple((data.x[rows].double().numpy(), data.y[rows, 0].double().numpy()) for rows in (~held, held))


def _mixture(means: Any, variances: Any, known: Any = None) -> GaussianPredictive:
    """An even mixture of normals (draws, rows); its noise is `known` (rows,), or the mean of the variances."""
    means, variances = (
        torch.from_numpy(np.ascontiguousarray(v)).float().unsqueeze(-1) for v in (means, variances)
    )
    variances = variances.clamp_min(1e-10)
    noise = variances.mean(0) if known is None else torch.from_numpy(known).float().unsqueeze(-1)
    total = variances.mean(0) + means.var(0, correction=0)
    return GaussianPredictive(noise, torch.zeros_like(noise), (total - noise).clamp_min(0), means, variances)
