"""A compound head on a CNN of your own.

Any network that gives features can have a compound density network as its last layers: `Head` is a
`torch.nn.Module` whose call is the loss, and `fit` trains both together. Rows that are not trained on set a
threshold for `is_ood`. Here: 8 x 8 digits, and the same turned upside down.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from compound import Head, Task

plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
x, y = (torch.tensor(v) for v in load_digits(return_X_y=True))
images = x.float().reshape(-1, 1, 8, 8) / 16
train, val = TensorDataset(images[:1200], y[:1200]), TensorDataset(images[1200:1500], y[1200:1500])
torch.manual_seed(0)  # of the CNN's initial weights and the loader's order
cnn = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 64), nn.ReLU()
)

head = Head("ml-cdn", features=64, task=Task("classification", 10))
losses = head.fit(cnn, DataLoader(train, 50, shuffle=True), DataLoader(val, 100), epochs=10, lr=2e-3)

test = images[1500:]
known, turned = head.predict(cnn(test)), head.predict(cnn(test.flip(2)))
print(f"accuracy {(known.label == y[1500:]).float().mean():.1%}, last loss {losses[-1]:.3f}")
print(f"flagged: {known.is_ood.float().mean():.1%} of the digits, {turned.is_ood.float().mean():.0%} turned")

figure, (left, right) = plt.subplots(1, 2, width_ratios=(2, 3))
left.imshow(test[0, 0].flip(0).numpy(), cmap="gray_r")
left.set(xticks=[], yticks=[], title="A digit upside down")
left.grid(visible=False)
turned.plot(0, coverage=0.99, axis=right)
figure.savefig("head_on_cnn.png")
