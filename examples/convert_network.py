"""A trained network learns its noise.

`convert` copies a network and replaces layers by compound layers that start at its weights. A network that
was fitted by least squares knows no uncertainty; its copy goes on training by the likelihood of several draws
per row, and its weights learn how noisy the targets are, input by input. The copy's draws make the band.
"""

import math
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import nn

from compound import named_generator
from compound.nn import CompoundLinear, convert, sampling

plt.style.use(Path(__file__).with_name("gallery.mplstyle"))

generator = named_generator(0, "data")
x = 4 * torch.rand(400, 1, generator=generator) - 2
noise = 0.05 + 0.4 * torch.sigmoid(4 * x)  # more on the right
y = torch.sin(2 * x) + noise * torch.randn(400, 1, generator=generator)

torch.manual_seed(0)
network = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 1))
optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
for _ in range(500):
    optimizer.zero_grad()
    (network(x) - y).square().mean().backward()
    optimizer.step()

compound = convert(network, {nn.Linear: CompoundLinear}, hidden=(20,), log_col=-4.0, generator=generator)
optimizer = torch.optim.Adam(compound.parameters(), lr=3e-3)
samples, std = 10, 0.05  # draws per row, noise of the targets given the weights
for _ in range(500):
    with sampling(generator) as draws:
        mean = compound(x.repeat(samples, 1)).view(samples, 400)
    log_prob = torch.distributions.Normal(mean, std).log_prob(y.squeeze(1)).logsumexp(0) - math.log(samples)
    optimizer.zero_grad()
    (draws.kl / len(x) - log_prob.mean()).backward()
    optimizer.step()

grid = torch.linspace(-2, 2, 200).unsqueeze(1)
with torch.no_grad(), sampling(generator, kl=False):
    curves = compound(grid.repeat(500, 1)).view(500, 200)
    curve = network(grid).squeeze(1)
low, high = curves.quantile(0.05, 0), curves.quantile(0.95, 0)

figure, axis = plt.subplots()
axis.scatter(x.squeeze(1).tolist(), y.squeeze(1).tolist(), s=6, c="C5", label="training rows")
axis.plot(grid.squeeze(1).tolist(), curve.tolist(), c="C1", label="trained network")
axis.fill_between(grid.squeeze(1).tolist(), low.tolist(), high.tolist(), alpha=0.4, label="90% of draws")
axis.legend()
axis.set(title="A network of least squares, converted and trained on", xlabel="x", ylabel="y")
figure.savefig("convert_network.png")
