"""A recurrent network that draws its weights once per sequence.

`CompoundGRU` has the interface of `nn.GRU`. With draw="sequence" all steps of a sequence share its weights,
so that draws differ as whole curves; with draw="step" every step draws anew. Here it predicts the next value
of sine waves, then goes on from its own predictions, and the band widens the further it looks ahead.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import nn

from compound import named_generator
from compound.nn import CompoundGRU, CompoundLinear, sampling

plt.style.use(Path(__file__).with_name("gallery.mplstyle"))


class Forecaster(nn.Module):
    def __init__(self, generator: torch.Generator):
        super().__init__()
        self.gru = CompoundGRU(1, 24, batch_first=True, bayes=True, hidden=(10,), generator=generator)
        self.last = CompoundLinear(24, 1, bayes=True, hidden=(10,), log_col=-4.0, generator=generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (rows, steps, 1) -> (rows, steps, 1)
        return self.last(self.gru(x)[0])


generator = named_generator(0, "training")
time = torch.arange(41) / 4
phase = 6.28 * torch.rand(64, 1, generator=generator)
speed = 0.8 + 0.4 * torch.rand(64, 1, generator=generator)
waves = (torch.sin(speed * time + phase) + 0.05 * torch.randn(64, 41, generator=generator)).unsqueeze(-1)
network = Forecaster(generator)
optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
for _ in range(120):
    with sampling(generator) as draws:
        predicted = network(waves[:, :-1])
    nll = nn.functional.gaussian_nll_loss(predicted, waves[:, 1:], torch.full_like(predicted, 0.02))
    optimizer.zero_grad()
    (nll + draws.kl / waves[:, 1:].numel()).backward()
    optimizer.step()

series, key = waves[:1, :20].expand(60, -1, -1), generator.get_state()  # 60 draws of one wave
with torch.no_grad():
    for _ in range(21):
        generator.set_state(key)  # the same noise at every step ahead
        with sampling(generator, kl=False):
            series = torch.cat([series, network(series)[:, -1:]], 1)

figure, axis = plt.subplots()
axis.plot(time[19:], series[:, 19:, 0].T, color="C0", lw=0.5, alpha=0.5)
axis.plot(time, waves[0, :, 0], color="C1", label="wave")
axis.axvline(time[19], color="C5", ls="--", label="last value seen")
axis.legend()
axis.set(title="Sixty draws of the weights, each a curve", xlabel="time", ylabel="value")
figure.savefig("compound_recurrence.png")
