"""An out-of-distribution alarm on a table.

`is_ood` flags rows that are more unusual than all but 1% of ordinary rows
(`false_positive_rate=0.01`). The threshold is part of the fitted model. Here: measurements of tumours, new
ones, and the same with mistakes. A column in another unit is always found; two columns exchanged leave
plausible values in each, and are found less often.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from compound import CompoundClassifier

plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
data = load_breast_cancer(as_frame=True)
X_train, X_test, y_train, _ = train_test_split(data.data, data.target, test_size=0.4, random_state=0)
model = CompoundClassifier(random_state=0, max_epochs=30, false_positive_rate=0.01).fit(X_train, y_train)

exchanged = X_test.copy()
exchanged[["mean radius", "mean texture"]] = X_test[["mean texture", "mean radius"]].to_numpy()
wrong_unit = X_test.assign(**{"mean smoothness": X_test["mean smoothness"] * 10})
rows = {"new rows": X_test, "two columns exchanged": exchanged, "one column in another unit": wrong_unit}

bins = np.linspace(0, 1.05 * model.ood_score(wrong_unit).max(), 45)
figure, axis = plt.subplots()
for name, table in rows.items():
    score = model.ood_score(table)
    flagged = model.is_ood(table).mean()
    axis.hist(score, bins, alpha=0.6, label=f"{name}: {flagged:.0%} flagged")
axis.axvline(
    model.threshold_, color="0.2", linestyle="--", linewidth=1.2, label="threshold (1% false alarms)"
)
axis.set_ylim(0, 95)
axis.set(
    xlabel="ood_score (2: as unusual as one ordinary row in 100)",
    ylabel="rows",
    title="The alarm threshold is part of the fitted model",
)
axis.legend(loc="upper right")
figure.savefig("ood_alarm.png")
