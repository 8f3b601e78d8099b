"""A calibration curve.

Of all rows to which a classifier gives a probability of 70%, 70% should belong to the class. A plain
network trained to the end is overconfident; the compound classifier averages draws and scales its
temperature on held-out rows.
"""

from pathlib import Path

import matplotlib.pyplot as plt
from sklearn.calibration import calibration_curve
from sklearn.datasets import make_classification
from sklearn.metrics import log_loss
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from compound import CompoundClassifier

plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
X, y = make_classification(6200, 20, n_informative=8, n_clusters_per_class=3, flip_y=0.15, random_state=0)
X_train, X_test, y_train, y_test = X[:1200], X[1200:], y[:1200], y[1200:]
models = {
    "scikit-learn MLPClassifier": make_pipeline(
        StandardScaler(), MLPClassifier((100,), max_iter=1000, random_state=0)
    ),
    "CompoundClassifier": CompoundClassifier(random_state=0, max_epochs=60),
}

figure, (curve, counts) = plt.subplots(2, 1, sharex=True, figsize=(5.6, 5.6), height_ratios=[3, 1])
curve.plot([0, 1], [0, 1], color="0.6", linewidth=1, label="calibrated")
for marker, (name, model) in zip("os", models.items(), strict=True):
    probability = model.fit(X_train, y_train).predict_proba(X_test)[:, 1]
    observed, predicted = calibration_curve(y_test, probability, n_bins=12)
    loss = log_loss(y_test, probability)
    curve.plot(predicted, observed, f"{marker}-", markersize=4.5, label=f"{name}, log loss {loss:.2f}")
    counts.hist(probability, bins=24, range=(0, 1), histtype="step", linewidth=1.6)
curve.set(ylabel="observed frequency", title="5,000 new rows", ylim=(0, 1))
curve.legend(loc="upper left")
counts.set(xlabel="predicted probability of class 1", ylabel="rows", xlim=(0, 1))
figure.savefig("calibration_curve.png")
