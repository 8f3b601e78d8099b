"""Sequences: Japanese vowels, spoken by nine men, and half-hourly electricity demand in Victoria in 2014."""

import hashlib
import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from compound.datasets.catalogue import SETS, require_file
from compound.datasets.idx import read_content

VOWELS = "sequences/japanese-vowels.npz"
DEMAND = "sequences/elecdemand.csv.gz"


class Vowels(NamedTuple):
    x: Tensor  # (rows, steps, 12), 0 beyond the end of a row
    lengths: Tensor  # (rows,)
    y: Tensor  # (rows,) the speaker


class Demand(NamedTuple):
    """A value for every half-hour of the year."""

    demand: Tensor  # (half-hours,)
    workday: Tensor  # (half-hours,)
    temperature: Tensor  # (half-hours,)


def vowels(part: str, data_dir: Path | None = None) -> Vowels:
    """The utterances of a `part`, train or test, in the units of the file."""
    if part not in ("train", "test"):
        raise ValueError(f"part is {part!r}: choose train or test")
    with np.load(io.BytesIO(_content(VOWELS, data_dir)), allow_pickle=False) as file:
        values, lengths, y = (torch.from_numpy(file[f"{part}_{k}"]) for k in ("values", "lengths", "labels"))
    rows = values.split(lengths.tolist())
    return Vowels(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths.long(), y)


def demand(data_dir: Path | None = None) -> Demand:
    """Demand (gigawatts), whether it is a working day, and temperature (°C)."""
    text = io.BytesIO(_content(DEMAND, data_dir))
    columns = np.loadtxt(text, delimiter=",", skiprows=1, dtype=np.float32)
    return Demand(*torch.from_numpy(columns).T)


def _content(path: str, data_dir: Path | None) -> bytes:
    """The uncompressed content of a file, whose checksum is verified."""
    found = require_file(path, data_dir)
    content = read_content(found)
    checksums = {file.path: file.sha256 for file in SETS["sequences"].files}
    if hashlib.sha256(content).hexdigest() != checksums[path]:
        raise ValueError(f"{found} is not the right file (its checksum differs): replace it")
    return content
