"""Methods of other libraries, a function each: NGBoost, CatBoost, the Gaussian process of scikit-learn.

Each trains on the rows of weight 1, may use those of weight 0 for early stopping, and returns a function from
inputs (rows, features) to a `GaussianPredictive`. Inputs and targets are standardised.
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

Predict = Callable[[Tensor], GaussianPredictive]
STAGES = 2000  # trees at most, in both boosting libraries
PATIENCE = 50  # trees without a better held-out score, after which training stops
ENSEMBLE = 10  # members of CatBoost's virtual ensemble: truncations of one sequence of trees
# CatBoost's Langevin noise: on boston, training with it stopped too early and lost held-out likelihood
POSTERIOR_SAMPLING = False
GP_ROWS = 2000  # a Gaussian process trains on a random sample of larger tables: its cost is cubic in rows


def ngboost(data: Batch, seed: int) -> Predict:
    """Natural-gradient boosting of a normal distribution. Duan et al. (2020)."""
    (x, y), (x_held, y_held) = _split(data)
    with np.errstate(all="ignore"):  # its line search may overflow on the way
        model = import_module("ngboost").NGBRegressor(
            n_estimators=STAGES, learning_rate=0.01, verbose=False, random_state=seed
        )
        model.fit(x, y, x_held, y_held, early_stopping_rounds=PATIENCE)

    def predict(x: Tensor) -> GaussianPredictive:
        normal = model.pred_dist(x.double().numpy(), max_iter=model.best_val_loss_itr)
        return _mixture(normal.loc[None], normal.scale[None] ** 2)

    return predict


def catboost(data: Batch, seed: int) -> Predict:
    """Boosting of mean and variance, with a virtual ensemble of its later trees. Malinin et al. (2021)."""
    (x, y), held_out = _split(data)
    model = import_module("catboost").CatBoostRegressor(
        loss_function="RMSEWithUncertainty",
        iterations=STAGES,
        posterior_sampling=POSTERIOR_SAMPLING,
        random_seed=seed,
        thread_count=1,
        verbose=False,
        allow_writing_files=False,
    )
    model.fit(x, y, eval_set=held_out, early_stopping_rounds=PATIENCE)

    def predict(x: Tensor) -> GaussianPredictive:
        ensembles = model.virtual_ensembles_predict(
            x.double().numpy(),
            prediction_type="VirtEnsembles",
            virtual_ensembles_count=ENSEMBLE,
            thread_count=1,
        )  # (rows, ensemble, 2)
        return _mixture(ensembles[..., 0].T, ensembles[..., 1].T)

    return predict


def gp(data: Batch, seed: int) -> Predict:
    """An exact Gaussian process with a length scale per feature (RBF kernel); no row is held out."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    rows = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:GP_ROWS]
    x, y = data.x[rows].double().numpy(), data.y[rows, 0].double().numpy()
    signal = ConstantKernel(1.0, (1e-3, 1e4)) * RBF(np.full(x.shape[1], 2.0), (1e-2, 1e3))
    kernel = signal + WhiteKernel(0.1, (1e-6, 10.0))
    model = GaussianProcessRegressor(kernel, alpha=1e-8, normalize_y=False, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a length at its bound means an irrelevant feature
        model.fit(x, y)
    noise = float(model.kernel_.k2.noise_level)

    def predict(x: Tensor) -> GaussianPredictive:
        mean, std = model.predict(x.double().numpy(), return_std=True)
        total = np.maximum(std**2, noise)  # includes the noise of the kernel
        return _mixture(mean[None], total[None], noise=np.full_like(mean, noise))

    return predict


BASELINES: dict[str, Callable[[Batch, int], Predict]] = {"ngboost": ngboost, "catboost": catboost, "gp": gp}


def settings(name: str) -> dict[str, int | bool]:
    """The constants that determine a baseline's result, as settings of its `Run`."""
    boosting: dict[str, int | bool] = {"stages": STAGES, "patience": PATIENCE}
    virtual: dict[str, int | bool] = {"ensemble": ENSEMBLE, "posterior_sampling": POSTERIOR_SAMPLING}
    return {"ngboost": boosting, "catboost": boosting | virtual, "gp": {"rows": GP_ROWS}}[name]


def installed() -> tuple[str, ...]:
    """Names of the baselines whose library is installed; scikit-learn always is."""
    return tuple(name for name in BASELINES if name == "gp" or find_spec(name) is not None)


def _split(data: Batch) -> Any:
    """(x, y) of the training rows and of the held-out rows, as arrays; ValueError if no row is held out."""
    if data.weight is None or not bool((data.weight == 0).any()):
        raise ValueError(
            "weight holds no row out, but a baseline stops early by held-out rows: give some weight 0"
        )
    held_out = data.weight.reshape(-1, len(data))[0] == 0
    x, y = data.x.double().numpy(), data.y[:, 0].double().numpy()
    return tuple((x[rows], y[rows]) for rows in (~held_out, held_out))


def _mixture(means: Any, variances: Any, noise: Any = None) -> GaussianPredictive:
    """The predictive of an equal mixture of normals, `means` and `variances` (components, rows).

    Its aleatoric variance is `noise` (rows,), by default the mean of `variances`; the rest is epistemic.
    """
    arrays = map(np.ascontiguousarray, (means, variances))
    means, variances = (torch.from_numpy(array).float().unsqueeze(-1) for array in arrays)
    variances = variances.clamp_min(1e-10)
    component = variances.mean(0) if noise is None else torch.from_numpy(noise).float().unsqueeze(-1)
    total = variances.mean(0) + means.var(0, correction=0)
    posterior = (total - component).clamp_min(0)
    return GaussianPredictive(component, torch.zeros_like(component), posterior, means, variances)
