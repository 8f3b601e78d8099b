"""The learning curve of a fit."""

from dataclasses import dataclass, field
from pathlib import Path

from compound.io.atomic import write_atomic

COLUMNS = ("step", "lr", "nll", "kl", "held_out", "skipped")


@dataclass
class History:
    """The learning curve of a fit, with one entry per evaluation in each column.

    `history["held_out"]` is the column of held-out NLL. The others are step, lr, nll and kl (means over the
    training steps since the entry before), and skipped, the number of members' gradients since then that were
    not finite.
    """

    columns: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in COLUMNS})
    best_step: int = 0  # the step whose weights are final

    def __getitem__(self, name: str) -> list[float]:
        return self.columns[name]

    def save_csv(self, path: str | Path) -> None:
        """Write the columns as a CSV file."""
        header = ",".join(self.columns)
        rows = (",".join(map(repr, row)) for row in zip(*self.columns.values(), strict=True))
        write_atomic(path, ("\n".join([header, *rows]) + "\n").encode())
