"""A loss for the Trainer of Hugging Face.

`Trainer` calls a model with the entries of a batch by name and takes `loss` from what it returns. So a
model with a compound head needs one class. Here: names of towns as bags of letters, and a plain loop where
`Trainer(model=..., train_dataset=...)` would stand.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from compound import Head, Task

plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
PLACES = (
    "oslo bergen stavanger tromso uppsala malmo lund gothenburg aarhus odense aalborg",
    "roma napoli palermo catania genova bologna sevilla malaga cordoba granada murcia",
)


class Model(nn.Module):
    """Shaped like a model of transformers: tokens and labels in, a loss out."""

    def __init__(self, rows: int):
        super().__init__()
        self.embedding = nn.EmbeddingBag(27, 32, padding_idx=26)
        self.head = Head("deep-ensemble", features=32, task=Task("classification", 2), rows=rows)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": self.head(self.embedding(input_ids), labels)}


def encoded(words: list[str]) -> Tensor:
    return torch.tensor([[ord(c) - 97 for c in word.ljust(12, "{")] for word in words])


torch.manual_seed(0)
north, south = (line.split() for line in PLACES)
rows = [(word, int(word in south)) for word in north + south]
dataset = [{"input_ids": encoded([word])[0], "labels": torch.tensor(label)} for word, label in rows]
loader = DataLoader(dataset, batch_size=8, shuffle=True)
model = Model(len(dataset))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(60):
    for batch in loader:
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()

words = [*north[:4], *south[:4], "kristiansand", "salamanca", "zzzzzz"]
p = model.head.predict(model.embedding(encoded(words)))
figure, axis = plt.subplots()
axis.barh(words, p.aleatoric.tolist(), label="aleatoric")
axis.barh(words, p.epistemic.tolist(), left=p.aleatoric.tolist(), label="epistemic")
axis.set(xlabel="predictive entropy (nats)", title="North or south? Members disagree on the unseen")
axis.legend()
figure.savefig("trainer_loss.png")
