"""Uncertainty for a network that is already trained.

`posthoc` leaves the network as it is. Training rows show where its features lie; rows that it was not trained
on choose a temperature, far noise, conformal sets and the threshold of `is_ood`. Here a CNN for 8 x 8 digits
meets digits whose halves are exchanged.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from compound import Task, posthoc

plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
x, y = (torch.tensor(v) for v in load_digits(return_X_y=True))
images = x.float().reshape(-1, 1, 8, 8) / 16
torch.manual_seed(0)
cnn = nn.Sequential(
    nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 64), nn.ReLU(), nn.Linear(64, 10)
)
optimizer = torch.optim.Adam(cnn.parameters(), lr=2e-3)
for _ in range(15):  # somebody trained it, long ago
    for batch in torch.randperm(1200).split(50):
        optimizer.zero_grad()
        nn.functional.cross_entropy(cnn(images[batch]), y[batch]).backward()
        optimizer.step()

train_loader = DataLoader(TensorDataset(images[:1200], y[:1200]), 100)
val_loader = DataLoader(TensorDataset(images[1200:1500], y[1200:1500]), 100)
model = posthoc(cnn, features="4", task=Task("classification", 10))
model.fit(train_loader, val_loader)

test = images[1500:]
strange = torch.cat([test[:, :, 4:], test[:, :, :4]], 2)  # lower half above the upper one
figure, (left, right) = plt.subplots(1, 2, sharey=True)
bins = torch.linspace(0, 2.31, 30).tolist()
for axis, title, predict in (
    (
        left,
        "The network alone",
        lambda rows: torch.distributions.Categorical(logits=cnn(rows).detach()).entropy(),
    ),
    (right, "After posthoc", lambda rows: model.predict(rows).entropy()),
):
    axis.hist(predict(test).tolist(), bins, alpha=0.7, label="digits")
    axis.hist(predict(strange).tolist(), bins, alpha=0.7, label="halves exchanged")
    axis.set(title=title, xlabel="predictive entropy (nats)")
left.set(ylabel="rows")
right.legend()
sets = model.predict(test).sets(coverage=0.95)
print(f"coverage {sets.gather(1, y[1500:, None]).float().mean():.1%}, size {sets.sum(1).float().mean():.2f}")
figure.savefig("after_training.png")
