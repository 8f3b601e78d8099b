"""A compound head in a Lightning module.

The loss is the head's call, so `training_step` is one line. After training, `on_train_end` lets the head
see training and validation rows once more. Without Lightning a few lines stand in for its `Trainer`.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_moons
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from compound import Head, Task

try:
    from lightning import LightningModule
except ImportError:
    LightningModule = nn.Module  # type: ignore[assignment, misc]

plt.style.use(Path(__file__).with_name("gallery.mplstyle"))


class Classifier(LightningModule):
    def __init__(self, *loaders: DataLoader):
        super().__init__()
        self.loaders = loaders  # training and validation rows
        self.backbone = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = Head("ml-cdn", features=64, task=Task("classification", 2), rows=400)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.head(self.backbone(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)

    def on_train_end(self) -> None:
        self.head.finish(self.backbone, *self.loaders)


torch.manual_seed(0)
x, y = map(torch.tensor, make_moons(600, noise=0.15, random_state=0))
train, val = TensorDataset(x[:400].float(), y[:400]), TensorDataset(x[400:].float(), y[400:])
model = Classifier(DataLoader(train, 50, shuffle=True), DataLoader(val, 50))
optimizer = model.configure_optimizers()  # or: lightning.Trainer(max_epochs=40).fit(...)
for _ in range(40):
    for batch in model.loaders[0]:
        optimizer.zero_grad()
        model.training_step(batch, 0).backward()
        optimizer.step()
model.on_train_end()

grid = torch.stack(torch.meshgrid(torch.linspace(-3, 4, 90), torch.linspace(-3, 3, 80), indexing="xy"), -1)
p = model.head.predict(model.backbone(grid.reshape(-1, 2)))
figure, axis = plt.subplots()
axis.contourf(*grid.unbind(-1), p.entropy().reshape(grid.shape[:2]), levels=12, cmap="Blues")
axis.scatter(*x[:400].T, s=8, c=y[:400], cmap="coolwarm")
axis.set(title="Predictive entropy of a Lightning module with a compound head")
figure.savefig("lightning_module.png")
