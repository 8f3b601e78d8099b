"""A forecast with intervals, by reduction.

sktime turns forecasting into regression on what is known of the future, here the hour and the day. With the
regressor of `compound.skpro` the forecast has calibrated intervals: wide by day, narrow by night.
"""

import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sktime.forecasting.compose import YfromX

from compound.skpro import CompoundProbaRegressor

warnings.simplefilter("ignore", FutureWarning)  # of sktime, about its next release
plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
times = pd.period_range("2026-03-01", periods=24 * 60, freq="h")
hour, day = np.arange(len(times)) % 24, np.arange(len(times)) // 24
rhythm = np.sin(np.pi * (hour - 6) / 12)
noise = np.random.default_rng(0).normal(size=len(times)) * np.where(rhythm > 0, 0.6, 0.1)
series = pd.DataFrame({"demand": 10 + 3 * rhythm + 0.02 * day + noise}, index=times)
known = pd.DataFrame({"hour": hour, "weekday": day % 7, "day": day}, index=times).astype(float)

forecaster = YfromX(CompoundProbaRegressor(random_state=0, max_epochs=20))
forecaster.fit(series[:-48], X=known[:-48], fh=np.arange(1, 49))
mean = forecaster.predict(X=known[-48:])["demand"]
interval = forecaster.predict_interval(X=known[-48:], coverage=0.9)["demand", 0.9]
truth = series["demand"][-48:]
inside = ((interval["lower"] <= truth) & (truth <= interval["upper"])).mean()

figure, axis = plt.subplots(figsize=(7, 3.6))
axis.fill_between(range(48), interval["lower"], interval["upper"], color="C0", alpha=0.25, linewidth=0)
axis.plot(range(-48, 0), series["demand"][-96:-48], color="0.4", label="known")
axis.plot(range(48), mean, color="C0", label="forecast with 90% interval")
axis.plot(range(48), truth, "o", color="C1", markersize=3, label="what came")
axis.set(xlabel="hours from now", ylabel="demand", title=f"{inside:.0%} of the next two days lie inside")
axis.legend(loc="lower left")
figure.savefig("forecast_by_reduction.png")
