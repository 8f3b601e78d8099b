"""Heads on frozen features: features are computed once, heads are trained in seconds.

With `frozen=True` the backbone stays as it is, bit for bit. Here the features are those of a network that was
never trained, and several methods are compared on them; each is one line.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

from compound import Head, Task, metrics

plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
x, y = (torch.tensor(v) for v in load_digits(return_X_y=True))
images = x.float() / 16
torch.manual_seed(0)
backbone = nn.Sequential(nn.Linear(64, 200), nn.ReLU())  # random features

train = list(zip(images[:1200].split(100), y[:1200].split(100), strict=True))
val = [(images[1200:1500], y[1200:1500])]
test, labels = images[1500:], y[1500:]
turned = test.reshape(-1, 8, 8).flip(1).flatten(1)  # upside down

names = ("map", "deep-ensemble", "mc-dropout", "bbb", "ml-cdn")
nlls, aurocs = [], []
for name in names:
    head = Head(name, features=200, task=Task("classification", 10))
    head.fit(backbone, train, val, epochs=15, lr=3e-3, frozen=True)
    known, strange = head.predict([test], backbone), head.predict([turned], backbone)
    nlls.append(metrics.nll(known, labels))
    aurocs.append(metrics.auroc(known.entropy(), strange.entropy()))
    print(
        f"{name}: accuracy {metrics.accuracy(known, labels):.1%}, NLL {nlls[-1]:.3f}, AUROC {aurocs[-1]:.3f}"
    )

figure, axis = plt.subplots()
axis.barh(names, nlls, color="#1f5c99")
for place, (value, area) in enumerate(zip(nlls, aurocs, strict=True)):
    axis.text(value, place, f"  AUROC upside down {area:.3f}", va="center", fontsize=8)
axis.set(
    xlabel="NLL of test digits (nats)", xlim=(0, 1.35 * max(nlls)), title="Five heads on the same features"
)
figure.savefig("frozen_features.png")
