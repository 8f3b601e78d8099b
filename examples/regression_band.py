"""A regression band and its two parts.

Noise grows to the right, and the middle of the range holds no rows. The predictive standard deviation
reports both: the *aleatoric* part follows the noise, the *epistemic* part rises in the gap and outside the
data.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from compound import CompoundRegressor

plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
rng = np.random.default_rng(0)
x = np.concatenate([rng.uniform(-3, -0.8, 150), rng.uniform(0.8, 3, 150)])
y = np.sin(2 * x) + rng.normal(0, 0.05 + 0.1 * (x + 3) / 2)  # the noise grows with x

model = CompoundRegressor(random_state=0, max_epochs=300).fit(x[:, None], y)
grid = np.linspace(-4.5, 4.5, 400)[:, None]
mean, std = model.predict(grid, return_std=True)
parts = model.decompose(grid)  # variances; total = aleatoric + epistemic

figure, (band, split) = plt.subplots(2, 1, sharex=True, figsize=(7.2, 5.4), height_ratios=[2, 1])
band.scatter(x, y, s=8, color="0.45", alpha=0.6, linewidth=0, label="training rows")
band.plot(grid, mean, label="predictive mean")
band.fill_between(grid[:, 0], mean - 2 * std, mean + 2 * std, alpha=0.2, label="± 2 standard deviations")
band.set(ylabel="y", ylim=(-6.8, 6.8), title="Wide where the noise is large, and where there are no rows")
band.legend(loc="upper left", ncols=3)
split.plot(grid, np.sqrt(parts.aleatoric), color="C1", label="aleatoric")
split.plot(grid, np.sqrt(parts.epistemic), color="C2", label="epistemic")
split.set(xlabel="x", ylabel="standard deviation", ylim=(0, None), xlim=(-4.5, 4.5))
split.legend(loc="center", bbox_to_anchor=(0.28, 0.6))
figure.savefig("regression_band.png")
