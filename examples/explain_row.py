"""Which columns make a row unusual?

One wine of the test set gets the value of a neighbouring column. Replacing each column of that row by its
training median shows which of them the alarm and the epistemic uncertainty come from. `compound explain`
attributes them to columns exactly, and writes a page.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_wine

from compound import CompoundClassifier

plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
data = load_wine(as_frame=True)
train, row = data.data.drop(index=100), data.data.loc[[100]].copy()
model = CompoundClassifier(random_state=0, max_epochs=60).fit(train, data.target.drop(index=100))
row["magnesium"] = row["alcalinity_of_ash"]  # typed into the wrong field

medians = train.median()
replaced = pd.concat([row.assign(**{name: medians[name]}) for name in train.columns])
score_drop = model.ood_score(row) - model.ood_score(replaced)
epistemic_drop = model.decompose(row).epistemic - model.decompose(replaced).epistemic

order = np.argsort(score_drop)
names = train.columns[order].str.replace("_", " ")
colours = ["C3" if name == "magnesium" else "C0" for name in names]
figure, (left, right) = plt.subplots(1, 2, sharey=True, figsize=(8.4, 4.4))
left.barh(names, score_drop[order], color=colours)
right.barh(names, epistemic_drop[order], color=colours)
score, limit = model.ood_score(row)[0], model.threshold_
left.set(title=f"ood_score {score:.1f}, threshold {limit:.1f}", xlabel="drop of ood_score")
right.set(title="epistemic uncertainty", xlabel="drop of epistemic entropy (nats)")
for axis in (left, right):
    axis.axvline(0, color="0.3", linewidth=0.8)
    axis.grid(axis="y", visible=False)
figure.savefig("explain_row.png")
