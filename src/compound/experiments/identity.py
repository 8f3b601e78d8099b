"""The identity of a run: the fields that determine its result, and the directory names hashed from them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from compound.experiments.run_files import canonical_json

# variants of a run; "" is the default form of a method on the usual data
PUBLISHED = "as published"  # options and training of the paper
ONE_MEMBER = "one member"  # the default form without its ensemble
REGION = "region"  # a region of the inputs is kept out of training
# field of `TrainConfig` -> its name when the first results were saved. Keys of runs are hashes of these
# names, so that directories keep theirs when a field is renamed
SETTING_NAMES = {
    "batch_size": "batch",
    "lr": "rate",
    "final_lr_ratio": "rate_end",
    "ema_decay": "average",
    "n_evals": "checks",
    "eval_samples": "draws",
    "eval_rows": "check_rows",
}


@dataclass(frozen=True)
class Run:
    """Everything that determines a result. Runs with equal fields have the same directory."""

    experiment: str
    method: str
    data: str  # name of the data set
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)  # of the method
    settings: Mapping[str, Any] = field(default_factory=dict)  # of training: fields of `TrainConfig`
    variant: str = ""  # PUBLISHED, ONE_MEMBER, REGION
    n_train: int | None = None  # training rows, where an experiment uses a part of its data set
    extractor: str = ""  # network whose features the method sees

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Run":
        """The run that config.json describes."""
        return cls(**(config if "variant" in config else _upgrade(config)))

    def config(self) -> dict[str, Any]:
        """The content of config.json."""
        return json.loads(canonical_json(asdict(self)))

    @property
    def data_label(self) -> str:
        """Data set and variant for readers, such as "cifar10/2000/efficientnet-lite0, as published"."""
        source = "/".join(str(part) for part in (self.data, self.n_train, self.extractor) if part)
        return f"{source}, {self.variant}" if self.variant else source

    @property
    def key(self) -> str:
        """Name of the run's directory: a hash of all fields."""
        return self._hash(self.experiment)

    @property
    def fit_key(self) -> str:
        """Name of the directory of the fit: a hash of all fields but the experiment.

        Equal for runs that train the same model on the same data, in whatever experiment.
        """
        return self._hash("")

    def _hash(self, experiment: str) -> str:
        # the text of `data_label`, one field in the first version, is hashed: directories keep their names
        identity = {
            "experiment": experiment,
            "method": self.method,
            "data": self.data_label,
            "seed": self.seed,
            "options": dict(self.options),
            "settings": {SETTING_NAMES.get(name, name): value for name, value in self.settings.items()},
        }
        return hashlib.sha256(canonical_json(identity).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.experiment} · {self.data_label} · {self.method} · seed {self.seed}"


def read_config(path: Path) -> Run | None:
    """The run that a config.json describes; None if it is unreadable or its key is not the folder's name."""
    try:
        run = Run.from_config(json.loads(path.read_text()))
        return run if run.key == path.parent.name else None
    except (OSError, ValueError, TypeError):
        return None


def _upgrade(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `Run` from a config.json of the first version.

    There `data` was the text that is now `data_label`, and settings had the names of SETTING_NAMES.
    """
    source, _, variant = str(config.get("data", "")).partition(", ")
    fields = {name: field for field, name in SETTING_NAMES.items()}
    settings = {fields.get(name, name): value for name, value in config.get("settings", {}).items()}
    upgraded = {**config, "data": source, "variant": variant, "settings": settings}
    match source.split("/"):
        case [data, rows, extractor]:
            upgraded |= {"data": data, "n_train": int(rows), "extractor": extractor}
    return upgraded
