"""Coverage of conformal intervals.

The noise of this table is skewed, so intervals read off a Gaussian are too wide at most levels.
`predict_interval` calibrates them on rows that the network was not trained on (split conformal prediction),
and the observed coverage follows the requested one.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import norm
from sklearn.datasets import make_friedman1

from compound import CompoundRegressor

plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
X, y = make_friedman1(3500, noise=0.0, random_state=0)
y = y + np.random.default_rng(0).exponential(2.0, len(y)) ** 1.5  # skewed, with heavy tails
X_train, X_test, y_train, y_test = X[:1500], X[1500:], y[:1500], y[1500:]

model = CompoundRegressor("map", random_state=0, validation_fraction=0.2, max_epochs=60).fit(X_train, y_train)
levels = np.linspace(0.1, 0.95, 18)
mean, std = model.predict(X_test, return_std=True)
gaussian = [(np.abs(y_test - mean) < norm.ppf((1 + level) / 2) * std).mean() for level in levels]
calibrated = []
for level in levels:
    lower, upper = model.predict_interval(X_test, coverage=level)
    calibrated.append(((lower <= y_test) & (y_test <= upper)).mean())

figure, axis = plt.subplots(figsize=(5.2, 4.8))
axis.plot([0, 1], [0, 1], color="0.6", linewidth=1, label="exact")
axis.plot(levels, gaussian, "o-", color="C1", markersize=4, label="mean ± z · standard deviation")
axis.plot(levels, calibrated, "s-", color="C0", markersize=4, label="predict_interval")
rows = int(model.n_calibration_)
axis.set(
    xlabel="requested coverage",
    ylabel="observed coverage on 2,000 new rows",
    xlim=(0, 1),
    ylim=(0, 1),
    aspect="equal",
)
axis.set_title(f"Intervals calibrated on {rows} held-out rows")
axis.legend(loc="lower right")
figure.savefig("conformal_coverage.png")
