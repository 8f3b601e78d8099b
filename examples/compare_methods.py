"""Six methods on one data set.

All methods share one interface, so that comparing them is a loop over names. The shaded band is two
predictive standard deviations, the darker band inside it the epistemic part alone; `map` has none.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch

from compound import Task, TrainConfig, build, fit, holdout_weights, make_dataset, named_generator

plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
names = ["map", "deep-ensemble", "mc-dropout", "laplace", "vmg", "ml-cdn"]
x = torch.rand(240, 1, generator=named_generator(0, "x")) * 4 - 2
x = x[(x < -0.6) | (x > 0.4)].unsqueeze(1)  # a gap
y = torch.sin(2 * x) + 0.15 * torch.randn(x.shape, generator=named_generator(0, "y"))
grid = torch.linspace(-4, 4, 200).unsqueeze(1)
task = Task("regression", 1)

figure, axes = plt.subplots(2, 3, sharex=True, sharey=True, figsize=(8.4, 4.8))
for axis, name in zip(axes.flat, names, strict=True):
    model = build(name, inputs=1, task=task, seed=0)
    held_out = holdout_weights(len(x), model.members, 0.1, seed=0)  # stops training in time
    fit(model, make_dataset(x, y, task, held_out), TrainConfig(steps=1500))
    predictive = model.predict(grid, named_generator(0, "predict"), n_samples=50, n_inner=2)
    mean, std = predictive.mean.squeeze(1), predictive.std.squeeze(1)
    epistemic = predictive.epistemic.sqrt().squeeze(1)
    axis.fill_between(grid.squeeze(1), mean - 2 * std, mean + 2 * std, alpha=0.18, linewidth=0)
    axis.fill_between(
        grid.squeeze(1), mean - 2 * epistemic, mean + 2 * epistemic, color="C2", alpha=0.3, linewidth=0
    )
    axis.plot(grid, mean)
    axis.scatter(x, y, s=6, color="0.35", linewidth=0)
    axis.set(title=name, ylim=(-6.5, 6.5), xlim=(-4, 4))
for axis in axes[1]:
    axis.set_xlabel("x")
for axis in axes[:, 0]:
    axis.set_ylabel("y")
bands = [plt.Rectangle((0, 0), 1, 1, color=c, alpha=a) for c, a in (("C0", 0.18), ("C2", 0.3))]
figure.legend(bands, ["± 2 standard deviations", "epistemic part"], loc="outside lower center", ncols=2)
figure.savefig("compare_methods.png")
