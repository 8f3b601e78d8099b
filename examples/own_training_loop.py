"""Compound layers in a network and a training loop of your own.

`CompoundLinear` takes the place of `nn.Linear` in any module. Its weights are drawn anew for every row inside
`with sampling(generator)`; the KL divergence of their distribution joins the loss, divided by the number of
training rows. Here a classifier of two such layers.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_moons
from torch import nn

from compound import named_generator
from compound.nn import CompoundLinear, sampling

plt.style.use(Path(__file__).with_name("gallery.mplstyle"))

X, y = make_moons(400, noise=0.15, random_state=0)
x, y = torch.tensor(X, dtype=torch.float32), torch.tensor(y)
generator = named_generator(0, "training")
options = {"hidden": (20,), "log_col": -4.0, "generator": generator}
model = nn.Sequential(CompoundLinear(2, 32, **options), nn.ReLU(), CompoundLinear(32, 2, **options))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for _ in range(800):
    with sampling(generator) as draws:
        logits = model(x)
    loss = nn.functional.cross_entropy(logits, y) + draws.kl / len(x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

axes = torch.meshgrid(torch.linspace(-3, 4, 120), torch.linspace(-2.5, 3, 100), indexing="xy")
points = torch.stack(axes, -1).reshape(-1, 2)
samples = []
with torch.no_grad():
    for _ in range(100):
        with sampling(generator, kl=False):
            samples.append(model(points).softmax(-1))
entropy = torch.special.entr(torch.stack(samples).mean(0)).sum(-1).reshape(axes[0].shape)

figure, axis = plt.subplots()
shades = axis.contourf(*axes, entropy, levels=12, cmap="Blues")
figure.colorbar(shades, label="predictive entropy (nats)")
for label in (0, 1):
    axis.scatter(*x[y == label].T, s=10, c=f"C{label + 1}", ec="white", lw=0.3, label=f"class {label}")
axis.legend(loc="upper right", labelcolor="white")
axis.set(title="Weights drawn anew for every input", xlabel="first input", ylabel="second input")
figure.savefig("own_training_loop.png")
