"""A convolution with a kernel of its own for every image.

`CompoundConv2d` draws one kernel per image from a distribution that the image determines. All positions of an
image share it, so the noise of a feature map is correlated, as the middle pictures show, and pooling does not
average it away. The network is trained on upright digits; turned ones make it less certain.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

from compound import named_generator
from compound.nn import CompoundConv2d, CompoundLinear, sampling

plt.style.use(Path(__file__).with_name("gallery.mplstyle"))

X, y = load_digits(return_X_y=True)
x, y = torch.tensor(X / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(y)
train, test = slice(0, 1000), slice(1000, None)
generator = named_generator(0, "training")
options = {"hidden": (20,), "log_col": -3.0, "generator": generator}
conv = CompoundConv2d(1, 16, 3, padding=1, **options)
pool = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
network = nn.Sequential(conv, pool, CompoundLinear(256, 10, **options))
optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
for _ in range(400):
    rows = torch.randint(1000, (100,), generator=generator)
    with sampling(generator) as draws:
        logits = network(x[rows])
    loss = nn.functional.cross_entropy(logits, y[rows]) + draws.kl / 1000
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

angles, entropies, maps = range(4), [], []
with torch.no_grad():
    for quarter in angles:
        probs = 0
        for _ in range(30):
            with sampling(generator, shared=True, kl=False):
                probs = probs + network(x[test].rot90(quarter, (2, 3))).softmax(-1) / 30
        entropies.append(torch.special.entr(probs).sum(-1))
    for _ in range(2):
        with sampling(generator, kl=False):
            maps.append(conv(x[1001:1002])[0, 3])

figure, axes = plt.subplots(1, 4, gridspec_kw={"width_ratios": (1, 1, 1, 2)})
for axis, image, title in zip(axes, (x[1001, 0], *maps), ("digit", "a draw", "another"), strict=False):
    axis.imshow(image.numpy(), cmap="gray")
    axis.set(title=title, xticks=[], yticks=[])
axes[3].bar([f"{90 * quarter}°" for quarter in angles], [entropy.mean().item() for entropy in entropies])
axes[3].set(title="entropy when turned", ylabel="nats")
figure.savefig("compound_convolution.png")
