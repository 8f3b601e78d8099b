"""Methods of other libraries for tables of mixed columns: boosted trees and linear models.

Each is trained on some rows, may stop early by held-out rows, and returns a function from a data frame to
predictions. Targets are standardised, labels are 0, 1, .... Text is categorical: CatBoost, LightGBM and
scikit-learn's trees take it as it is, for the others it becomes indicator columns.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from compound.datasets.tables import Array

STAGES = 1000  # trees at most (of every class or parameter), in all boosting libraries
PATIENCE = 50  # trees without a better held-out score, after which training stops
LEARNING_RATE = 0.05  # of LightGBM and of scikit-learn's trees, whose default is for 100 trees
NGBOOST_LEARNING_RATE = 0.03  # its default, 0.01, needs more trees
MAX_INDICATORS = 50  # of one column; the rarer categories share the last
MAX_CATEGORIES = 254  # of one column in scikit-learn's trees, which allow 255; the rarer share the last
RIDGE_PENALTIES = tuple(10.0**k for k in range(-3, 5))
MISSING = "missing"  # as a category of CatBoost


class Rows(NamedTuple):
    """Rows to train on, or to stop early by."""

    x: pd.DataFrame
    y: Array


class Moments(NamedTuple):
    """Means and variances (rows,) of standardised targets; None if the method predicts no variance."""

    mean: Array
    variance: Array | None = None


Regress = Callable[[pd.DataFrame], Moments]  # a fitted regressor's prediction
Classify = Callable[[pd.DataFrame], Array]  # that of a classifier: probabilities (rows, classes)


def catboost_regressor(train: Rows, held: Rows, seed: int) -> Regress:
    """Train CatBoost for mean and variance (RMSEWithUncertainty); return its prediction."""
    model = _catboost("CatBoostRegressor", train, held, seed, loss_function="RMSEWithUncertainty")

    def predict(x: pd.DataFrame) -> Moments:
        moments = model.predict(_filled(x), prediction_type="RMSEWithUncertainty", thread_count=1)
        return Moments(moments[:, 0], moments[:, 1])

    return predict


def catboost_rmse(train: Rows, held: Rows, seed: int) -> Regress:
    """Train CatBoost for the mean alone, by squared error; return its prediction."""
    model = _catboost("CatBoostRegressor", train, held, seed, loss_function="RMSE")
    return lambda x: Moments(model.predict(_filled(x), thread_count=1))


def catboost_classifier(train: Rows, held: Rows, seed: int) -> Classify:
    """Train CatBoost by the log-likelihood of two classes or more; return its prediction."""
    model = _catboost("CatBoostClassifier", train, held, seed)
    return lambda x: model.predict_proba(_filled(x), thread_count=1)


def _catboost(estimator: str, train: Rows, held: Rows, seed: int, **options: Any) -> Any:
    """A fitted model of CatBoost; its learning rate depends on loss, rows and number of trees."""
    model = getattr(import_module("catboost"), estimator)(
        iterations=STAGES,
        random_seed=seed,
        thread_count=1,
        verbose=False,
        allow_writing_files=False,
        cat_features=_text_columns(train.x),
        **options,
    )
    held_out = (_filled(held.x), held.y)
    return model.fit(_filled(train.x), train.y, eval_set=held_out, early_stopping_rounds=PATIENCE)


def lightgbm_regressor(train: Rows, held: Rows, seed: int) -> Regress:
    """Train LightGBM by squared error; return its prediction."""
    model, encode = _lightgbm("LGBMRegressor", train, held, seed)
    return lambda x: Moments(model.predict(encode(x)))


def lightgbm_classifier(train: Rows, held: Rows, seed: int) -> Classify:
    """Train LightGBM by log-likelihood; return its prediction."""
    model, encode = _lightgbm("LGBMClassifier", train, held, seed)
    return lambda x: model.predict_proba(encode(x))


def _lightgbm(estimator: str, train: Rows, held: Rows, seed: int) -> tuple[Any, Any]:
    """A fitted model of LightGBM, and the function that encodes its inputs: text as known categories."""
    library = import_module("lightgbm")
    text = train.x[_text_columns(train.x)]
    dtypes = {name: pd.CategoricalDtype(sorted(text[name].dropna().unique())) for name in text}

    def encode(x: pd.DataFrame) -> pd.DataFrame:
        known = {name: x[name].where(x[name].isin(dtype.categories)) for name, dtype in dtypes.items()}
        return x.assign(**known).astype(dtypes)

    model = getattr(library, estimator)(
        n_estimators=STAGES, learning_rate=LEARNING_RATE, random_state=seed, n_jobs=1, verbose=-1
    )
    stop = library.early_stopping(PATIENCE, verbose=False)
    model.fit(encode(train.x), train.y, eval_set=[(encode(held.x), held.y)], callbacks=[stop])
    return model, encode


def hist_regressor(train: Rows, held: Rows, seed: int) -> Regress:
    """Train scikit-learn's histogram gradient boosting by squared error; return its prediction."""
    model, encode = _hist(HistGradientBoostingRegressor, train, held, seed)
    return lambda x: Moments(model.predict(encode(x)))


def hist_classifier(train: Rows, held: Rows, seed: int) -> Classify:
    """Train scikit-learn's histogram gradient boosting by log-likelihood; return its prediction."""
    model, encode = _hist(HistGradientBoostingClassifier, train, held, seed)
    return lambda x: model.predict_proba(encode(x))


def _hist(estimator: Any, train: Rows, held: Rows, seed: int) -> tuple[Any, Any]:
    """A fitted model of scikit-learn's trees, and the function that encodes its inputs.

    Held-out rows are given to `fit`, which needs scikit-learn 1.7.
    """
    text = _text_columns(train.x)
    unknown = {"unknown_value": np.nan, "encoded_missing_value": np.nan}
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", max_categories=MAX_CATEGORIES, **unknown)
    encoder = make_column_transformer((codes, text), remainder="passthrough")
    x = encoder.fit_transform(train.x)
    model = estimator(
        max_iter=STAGES,
        learning_rate=LEARNING_RATE,
        early_stopping=True,
        n_iter_no_change=PATIENCE,
        categorical_features=list(range(len(text))),
        random_state=seed,
    )
    model.fit(x, train.y, X_val=encoder.transform(held.x), y_val=held.y)
    return model, encoder.transform


def ngboost_regressor(train: Rows, held: Rows, seed: int) -> Regress:
    """Train NGBoost (Duan et al. 2020) with a normal distribution; return its prediction."""
    model, encode = _ngboost("NGBRegressor", train, held, seed)

    def predict(x: pd.DataFrame) -> Moments:
        normal = model.pred_dist(encode(x), max_iter=model.best_val_loss_itr)
        return Moments(normal.loc, normal.scale**2)

    return predict


def ngboost_classifier(train: Rows, held: Rows, seed: int) -> Classify:
    """Train NGBoost by the log-likelihood of the classes; return its prediction."""
    categorical = import_module("ngboost.distns").k_categorical(int(train.y.max()) + 1)
    model, encode = _ngboost("NGBClassifier", train, held, seed, Dist=categorical)
    return lambda x: model.predict_proba(encode(x), max_iter=model.best_val_loss_itr)


def _ngboost(estimator: str, train: Rows, held: Rows, seed: int, **options: Any) -> tuple[Any, Any]:
    """A fitted model of NGBoost, and the function that encodes its inputs."""
    encoder = indicator_encoder().fit(train.x)
    options |= {"n_estimators": STAGES, "learning_rate": NGBOOST_LEARNING_RATE, "random_state": seed}
    model = getattr(import_module("ngboost"), estimator)(verbose=False, **options)
    with np.errstate(all="ignore"):  # its line search may overflow on the way
        x, x_held = encoder.transform(train.x), encoder.transform(held.x)
        model.fit(x, train.y, x_held, held.y, early_stopping_rounds=PATIENCE)
    return model, encoder.transform


def ridge(train: Rows, held: Rows, seed: int) -> Regress:
    """Train ridge regression, its penalty chosen by leave-one-out errors; return its prediction."""
    model = make_pipeline(indicator_encoder(), RidgeCV(RIDGE_PENALTIES)).fit(train.x, train.y)
    return lambda x: Moments(model.predict(x))


def logistic(train: Rows, held: Rows, seed: int) -> Classify:
    """Train logistic regression with the default penalty; return its prediction."""
    model = make_pipeline(indicator_encoder(), LogisticRegression(max_iter=1000)).fit(train.x, train.y)
    return lambda x: model.predict_proba(x)


class Baseline(NamedTuple):
    """A method of another library; None for a task that it does not have."""

    library: str  # module that must be installed
    regressor: Callable[[Rows, Rows, int], Regress]
    classifier: Callable[[Rows, Rows, int], Classify] | None


BASELINES = {
    "catboost": Baseline("catboost", catboost_regressor, catboost_classifier),
    "catboost-rmse": Baseline("catboost", catboost_rmse, None),
    "lightgbm": Baseline("lightgbm", lightgbm_regressor, lightgbm_classifier),
    "hist-gradient-boosting": Baseline("sklearn", hist_regressor, hist_classifier),
    "ngboost": Baseline("ngboost", ngboost_regressor, ngboost_classifier),
    "linear": Baseline("sklearn", ridge, logistic),
}


def settings(name: str) -> dict[str, Any]:
    """The constants that determine the result of the baseline `name`, to be part of the key of its `Run`."""
    boosting = {"stages": STAGES, "patience": PATIENCE}
    slower = {**boosting, "learning_rate": LEARNING_RATE}
    own: dict[str, dict[str, Any]] = {
        "lightgbm": slower,
        "hist-gradient-boosting": {**slower, "max_categories": MAX_CATEGORIES},
        "ngboost": {**boosting, "learning_rate": NGBOOST_LEARNING_RATE, "max_indicators": MAX_INDICATORS},
        "linear": {"penalties": list(RIDGE_PENALTIES), "max_indicators": MAX_INDICATORS},
    }
    return own.get(name, boosting)


def installed() -> tuple[str, ...]:
    """Names of the baselines whose library is installed."""
    return tuple(name for name, baseline in BASELINES.items() if find_spec(baseline.library) is not None)


def indicator_encoder() -> Any:
    """An encoder: numbers are standardised, missing ones filled and marked; text becomes indicators."""
    numbers = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    options = {"max_categories": MAX_INDICATORS, "sparse_output": False}
    text = OneHotEncoder(handle_unknown="infrequent_if_exist", **options)
    numeric = make_column_selector(dtype_include="number")
    return make_column_transformer((numbers, numeric), (text, make_column_selector(dtype_exclude="number")))


def _text_columns(x: pd.DataFrame) -> list[str]:
    """Names of the columns that are not numeric."""
    return list(x.select_dtypes(exclude="number").columns)


def _filled(x: pd.DataFrame) -> pd.DataFrame:
    """A copy of x in which missing text is the category MISSING: CatBoost refuses None and NaN in text."""
    return x.assign(**{name: x[name].astype(object).fillna(MISSING) for name in _text_columns(x)})
