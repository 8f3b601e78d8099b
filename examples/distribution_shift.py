"""Confidence under distribution shift.

Handwritten digits of scikit-learn, rotated more and more. Every classifier loses accuracy; the question is
whether its confidence falls along with it. The plain network stays confident; the compound density network
reports the shift.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy.ndimage import rotate
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from compound import CompoundClassifier

plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=500, random_state=0, stratify=y)
images = X_test.reshape(-1, 8, 8)
angles = np.arange(0, 91, 15)
methods = ("map", "ml-cdn")
names = ("plain network, map", "compound density network, ml-cdn")

figure, axes = plt.subplots(1, 2, sharey=True, figsize=(7.2, 3.8))
for axis, method, name in zip(axes, methods, names, strict=True):
    model = CompoundClassifier(method, random_state=0, max_epochs=60).fit(X_train, y_train)
    accuracy, confidence = [], []
    for angle in angles:
        turned = rotate(images, angle, axes=(1, 2), reshape=False, order=1).reshape(-1, 64)
        probs = model.predict_proba(turned)
        accuracy.append((model.classes_[probs.argmax(1)] == y_test).mean())
        confidence.append(probs.max(1).mean())
    axis.plot(angles, accuracy, "o-", label="accuracy")
    axis.plot(angles, confidence, "s-", label="mean confidence")
    axis.fill_between(angles, accuracy, confidence, color="C3", alpha=0.12, label="overconfidence")
    axis.set(title=name, xlabel="rotation of the digits (degrees)", xticks=angles, ylim=(0, 1.03))
axes[0].set_ylabel("fraction, probability")
axes[0].legend(loc="lower left")
figure.savefig("distribution_shift.png")
