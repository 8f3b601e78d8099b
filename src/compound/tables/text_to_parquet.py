"""A csv or tsv file larger than memory, written as parquet, whose blocks can be read in any order.

Types come from the first rows; a later value that does not fit is an error with its line. The file is kept
until the model is saved, and used again by a fit that goes on.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet

from compound.estimators.number_forms import NumberForm
from compound.io.temporary import temporary
from compound.tables.file_errors import reading_errors
from compound.tables.frames import ColumnType, cast_frame, infer_frame
from compound.tables.parquet_rows import BLOCK_ROWS
from compound.tables.table_files import column_names, read_batches

ARROW = {"number": pa.float64(), "boolean": pa.bool_(), "time": pa.timestamp("us"), "text": pa.string()}
GZIP = 6  # times that text is larger than the gzipped file, about


def text_bytes(path: Path) -> int:
    """Size of the text of a csv or tsv file, about."""
    return path.stat().st_size * (GZIP if path.suffix == ".gz" else 1)


def convert(
    path: Path, columns: list[str], kinds: Any, out: Path, progress: Any
) -> tuple[pd.DataFrame, dict[str, ColumnType], dict[str, NumberForm]]:
    """Write some columns of a text file to `out`, unless it holds them already.

    Returns the first rows, the types of the columns and the forms of numbers in the text. `kinds` gives the
    type of a column of the first rows.
    """
    state = path.stat()
    identity = json.dumps([str(path.absolute()), state.st_size, state.st_mtime_ns, columns])
    names = column_names(path)
    batches = (batch for batch, _ in read_batches(path, names, columns, BLOCK_ROWS))
    head: list[pa.Table] = []
    while sum(map(len, head)) < BLOCK_ROWS and (batch := next(batches, None)) is not None:
        head.append(batch.select(columns))
    if not head:
        raise ValueError(f"{path} has a header but no rows: give at least one")
    probe = infer_frame(path, pa.concat_tables(head))
    dtypes = {name: probe.forms.get(name) or kinds(probe.frame[name]) for name in columns}
    if not _is_written(out, identity):
        _check_disk(path, out)
        with temporary(out) as fresh:
            _write(path, names, dtypes, fresh, identity, progress)
            os.replace(fresh, out)
    written: dict[str, ColumnType] = {
        name: "number" if isinstance(dtype, NumberForm) else dtype for name, dtype in dtypes.items()
    }
    return probe.frame, written, probe.forms


def _write(
    path: Path, names: list[str], dtypes: Mapping[str, ColumnType], out: Path, identity: str, progress: Any
) -> None:
    """Write all rows, in row groups of BLOCK_ROWS."""
    kinds = {name: dtype if isinstance(dtype, str) else "number" for name, dtype in dtypes.items()}
    schema = pa.schema([(name, ARROW[kind]) for name, kind in kinds.items()], metadata={"compound": identity})
    rows, waiting = 0, pa.table({name: pa.array([], ARROW[kind]) for name, kind in kinds.items()})
    with pyarrow.parquet.ParquetWriter(out, schema) as writer:
        for batch, _ in read_batches(path, names, [*dtypes], BLOCK_ROWS):
            frame = cast_frame(path, batch, dtypes, rows)
            part = pa.table({name: _array(frame[name], schema.field(name).type) for name in dtypes})
            rows += len(part)
            waiting = pa.concat_tables([waiting, part])
            while len(waiting) >= BLOCK_ROWS:
                writer.write_table(waiting.slice(0, BLOCK_ROWS).cast(schema), BLOCK_ROWS)
                waiting = waiting.slice(BLOCK_ROWS).combine_chunks()
            progress(rows)
        if len(waiting):
            writer.write_table(waiting.cast(schema))


def _array(values: "pd.Series[Any]", dtype: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(dtype) and pd.api.types.is_float_dtype(values):
        dtype = pa.float64()
    return pa.Array.from_pandas(values, type=dtype, safe=False)


def _is_written(out: Path, identity: str) -> bool:
    """Whether `out` is the complete result for this file."""
    if not out.exists():
        return False
    with reading_errors(out):
        metadata = pyarrow.parquet.read_schema(out).metadata or {}
    return bool(metadata.get(b"compound") == identity.encode())


def _check_disk(path: Path, out: Path) -> None:
    """Raise ValueError where the rows may not fit on the disk."""
    free = shutil.disk_usage(out.absolute().parent).free
    needed = text_bytes(path)
    if needed > free:
        raise ValueError(
            f"{out.absolute().parent} has {free / 1e9:.1f} GB free, a copy of the rows of {path} needs up to "
            f"{needed / 1e9:.1f} GB: choose --out on another disk"
        )
