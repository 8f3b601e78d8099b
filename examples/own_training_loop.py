"""A compound layer in a training loop of your own.

`CompoundLinear` is an ordinary `torch.nn.Module`: it maps a batch to a Gaussian over pre-activations and
returns its KL divergence beside it. Draw from the Gaussian, go on with any PyTorch code, and add the KL to
the loss. Here a classifier of two such layers.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_moons
from torch import nn

from compound import named_generator
from compound.nn import CompoundConfig, CompoundLinear

plt.style.use(Path(__file__).with_name("gallery.mplstyle"))


class Classifier(nn.Module):
    def __init__(self, generator: torch.Generator):
        super().__init__()
        self.hidden = CompoundLinear(2, 32, CompoundConfig(hyper=(20,)), generator)
        self.out = CompoundLinear(32, 2, CompoundConfig(hyper=(20,)), generator)

    def forward(self, x: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.hidden(x, generator)
        h = torch.relu(hidden.draw(torch.randn(hidden.mean.shape, generator=generator)))
        logits = self.out(h, generator)
        noise = torch.randn(logits.mean.shape, generator=generator)
        return logits.draw(noise), hidden.kl + logits.kl  # (rows, 2), (rows,)


X, y = make_moons(400, noise=0.15, random_state=0)
x, y = torch.tensor(X, dtype=torch.float32), torch.tensor(y)
generator = named_generator(0, "training")
model = Classifier(generator)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for _ in range(800):
    logits, kl = model(x, generator)
    loss = nn.functional.cross_entropy(logits, y) + 1e-3 * kl.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

axes = torch.meshgrid(torch.linspace(-3, 4, 120), torch.linspace(-2.5, 3, 100), indexing="xy")
points = torch.stack(axes, -1).reshape(-1, 2)
with torch.no_grad():
    probs = torch.stack([model(points, generator)[0].softmax(-1) for _ in range(100)]).mean(0)
entropy = torch.special.entr(probs).sum(-1).reshape(axes[0].shape)

figure, axis = plt.subplots()
shades = axis.contourf(*axes, entropy, levels=12, cmap="Blues")
figure.colorbar(shades, label="predictive entropy (nats)")
for label in (0, 1):
    axis.scatter(*x[y == label].T, s=10, c=f"C{label + 1}", ec="white", lw=0.3, label=f"class {label}")
axis.legend(loc="upper right", labelcolor="white")
axis.set(title="Weights drawn anew for every input", xlabel="first input", ylabel="second input")
figure.savefig("own_training_loop.png")
