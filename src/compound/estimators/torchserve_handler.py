"""The handler of an exported model in TorchServe; it is copied into the archive and needs torch alone.

    POST /predictions/NAME  {"rows": [{"size": 3.0, "kind = house": 1}, ...]}
    ->                      {"predictions": [{"mean": 3.1, "std": 0.2, ..., "is_ood": false}, ...]}

Rows have the inputs that compound.json names, those of numbers in every row; others are 0 where they are left
out. A row may also be a list of all of them.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PROGRAM = "program.pt2"
KEY = "predictions"


class Handler:
    """Loads the program once, and predicts the rows of several requests at once."""

    def initialize(self, context: Any) -> None:
        """Load the program from the folder of the unpacked archive."""
        extra = {"compound.json": ""}
        path = Path(context.system_properties["model_dir"]) / context.manifest["model"]["serializedFile"]
        self.program = torch.export.load(path, extra_files=extra).module()
        self.metadata = json.loads(extra["compound.json"])

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[dict[str, Any]]:
        """An answer to each request: its predictions, or an error."""
        tables = [self._table(request) for request in data]
        rows = [row for table in tables if isinstance(table, list) for row in table]
        predictions = iter(self._predict(torch.tensor(rows, dtype=torch.float64)) if rows else [])
        return [
            {"error": table} if isinstance(table, str) else {KEY: [next(predictions) for _ in table]}
            for table in tables
        ]

    def _table(self, request: dict[str, Any]) -> list[list[float]] | str:
        """The rows of a request as numbers; a sentence if it has another form."""
        body = request.get("body", request.get("data"))
        try:
            content: Any = json.loads(body) if isinstance(body, str | bytes | bytearray) else body
            return [self._row(row) for row in content["rows"]]
        except KeyError as error:
            return f"a row, or the body, has no {error.args[0]!r}"
        except (TypeError, ValueError, IndexError) as error:
            return f'the body must be {{"rows": [{{input: number, ...}}, ...]}} ({error})'

    def _row(self, row: Any) -> list[float]:
        names = self.metadata["inputs"]
        if isinstance(row, dict):
            if unknown := sorted(set(row) - set(names)):
                raise KeyError(f"input {unknown[0]} in this model")
            needed = set(self.metadata["numbers"])
            return [float(row[name] if name in needed else row.get(name, 0)) for name in names]
        if len(row) != len(names):
            raise ValueError(f"a row of {len(row)} numbers, the model has {len(names)} inputs")
        return [float(value) for value in row]

    def _predict(self, x: Tensor) -> list[dict[str, Any]]:
        """The predictions of all rows, in blocks of the program's size, the last one padded."""
        block = self.metadata["rows"]
        out = []
        for part in x.split(block):
            padded = torch.cat([part, part[-1:].expand(block - len(part), -1)])
            with torch.no_grad():
                outputs = [_by_row(output[: len(part)]) for output in self.program(padded)]
            for values in zip(*outputs, strict=True):
                row = dict(zip(self.metadata["outputs"], values, strict=True))
                if "classes" in self.metadata:
                    row["probabilities"] = dict(
                        zip(self.metadata["classes"], row["probabilities"], strict=True)
                    )
                out.append({**row, "is_ood": row["ood_score"] > self.metadata["threshold"]})
        return out


def _by_row(output: Tensor) -> list[Any]:
    """What an output says of each row: a number, or a list where there are several targets or classes."""
    return (output.squeeze(-1) if output.ndim > 1 and output.shape[-1] == 1 else output).tolist()
