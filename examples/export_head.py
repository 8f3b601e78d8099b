"""Export of a network with a head.

`torch.export` writes the deterministic part of a fitted head as a program that runs without this library:
here an ensemble's probabilities and the far noise t, the log-odds that the prediction should be uniform. The
program takes 80 rows at a time.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_moons
from torch import Tensor, nn

from compound import Head, Method, Task, named_generator

plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
torch.manual_seed(0)
x, y = (torch.tensor(v) for v in make_moons(600, noise=0.15, random_state=0))
x = x.float()
backbone = nn.Sequential(nn.Linear(2, 64), nn.Tanh())
head = Head(Method("deep-ensemble", members=3), features=64, task=Task("classification", 2))
head.fit(
    backbone, list(zip(x[:400].split(50), y[:400].split(50), strict=True)), [(x[400:], y[400:])], epochs=20
)


class Program(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        features = self.backbone(rows)
        plain = self.head.model.predict_chunk(features, 1, 1, named_generator(0))
        noise = self.head.calibrator.noise
        t = noise.from_distance(noise.distances([features]))
        return torch.lerp(plain.probs, torch.full_like(plain.probs, 0.5), torch.sigmoid(t).unsqueeze(1)), t


grid = torch.stack(torch.meshgrid(torch.linspace(-6, 7, 90), torch.linspace(-5, 5, 80), indexing="xy"), -1)
blocks = grid.reshape(-1, 2).split(80)
with torch.no_grad():
    program = torch.export.export(Program(), (blocks[0],), strict=False).module()
    probs = torch.cat([program(block)[0] for block in blocks])
    assert torch.allclose(probs, torch.cat([Program()(block)[0] for block in blocks]), atol=1e-5)

figure, axis = plt.subplots()
shades = axis.contourf(*grid.unbind(-1), probs[:, 1].reshape(grid.shape[:2]), levels=20, cmap="RdBu")
figure.colorbar(shades, label="probability of class 1, by the exported program")
axis.scatter(*x[:400].T, s=6, c="black")
axis.set(title="Far from the data the program answers one half")
figure.savefig("export_head.png")
