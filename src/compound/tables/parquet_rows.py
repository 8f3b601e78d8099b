"""The rows of one or several parquet files: counted and compared before work, read block by block.

A row's number counts all rows of all files, in the order of the files' names.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from compound.tables.file_errors import reading_errors
from compound.tables.table_files import column_names

BLOCK_ROWS = 65_536  # read together


class Block(NamedTuple):
    """Neighbouring rows of a row group."""

    path: Path
    group: int  # row group
    start: int  # first row, counted in the row group
    rows: int
    first: int  # number of the first row in the table
    in_file: int  # its number in the file


@dataclass(frozen=True)
class ParquetRows:
    """Parquet files with equal columns, as one table."""

    path: Path  # of the folder or file, for messages
    files: tuple[Path, ...]
    groups: tuple[tuple[int, ...], ...]  # rows of each row group of each file

    @classmethod
    def open(cls, path: Path) -> "ParquetRows":
        """Read what the files say of themselves; ValueError if one is damaged, or has other columns."""
        files = parquet_files(path)
        first: Any = None
        groups = []
        for file in files:
            names = column_names(file)
            with reading_errors(file):
                metadata = pyarrow.parquet.read_metadata(file)
                schema = metadata.schema.to_arrow_schema().remove_metadata()
            first = (file, names, schema) if first is None else first
            _check_schema(file, schema, *first)
            groups.append(tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)))
        rows = cls(path, tuple(files), tuple(groups))
        if not rows.count:
            raise ValueError(f"{path} has no rows: give at least one")
        return rows

    @cached_property
    def count(self) -> int:
        """Rows of all files."""
        return sum(map(sum, self.groups))

    @property
    def names(self) -> list[str]:
        """The columns."""
        return column_names(self.files[0])

    def blocks(self, rows: int = BLOCK_ROWS) -> list[Block]:
        """All rows, as blocks of at most `rows` rows."""
        out, first = [], 0
        for path, groups in zip(self.files, self.groups, strict=True):
            in_file = 0
            for group, size in enumerate(groups):
                for start in range(0, size, rows):
                    part = min(rows, size - start)
                    out.append(Block(path, group, start, part, first, in_file))
                    first, in_file = first + part, in_file + part
        return out

    def probe(self, columns: Sequence[str], rows: int = BLOCK_ROWS, parts: int = 16) -> pa.Table:
        """About `rows` rows from all over the table, in order, to infer types from."""
        blocks = self.blocks(max(1, rows // parts))
        chosen = np.unique(np.linspace(0, len(blocks) - 1, parts).round().astype(int))
        return pa.concat_tables(
            [read_block(blocks[i], columns) for i in chosen], promote_options="permissive"
        )


def parquet_files(path: Path) -> list[Path]:
    """The file itself, or all parquet files in a folder and its folders, by name."""
    if not path.is_dir():
        return [path]
    hidden = (".", "_")
    files = sorted(
        file
        for file in path.rglob("*.parquet")
        if not any(part.startswith(hidden) for part in file.relative_to(path).parts)
    )
    if not files:
        raise ValueError(
            f"{path} is a folder without parquet files: give a folder of files *.parquet, or a table"
        )
    return files


def read_block(block: Block, columns: Sequence[str]) -> pa.Table:
    """Some columns of a block."""
    with reading_errors(block.path):
        skipped = 0
        parts = []
        batches = _open(block.path).iter_batches(
            min(block.rows, BLOCK_ROWS), row_groups=[block.group], columns=list(columns), use_threads=False
        )
        end = block.start + block.rows
        for batch in batches:
            low, high = max(block.start - skipped, 0), min(end - skipped, len(batch))
            if low < high:
                parts.append(batch.slice(low, high - low))
            skipped += len(batch)
            if skipped >= end:
                break
        return pa.Table.from_batches(parts)


def read_in_order(rows: ParquetRows, columns: Sequence[str]) -> Iterator[tuple[Block, pa.Table]]:
    """All rows in their order, in blocks that do not depend on row groups."""
    first = 0
    for path in rows.files:
        in_file = 0
        with reading_errors(path):
            batches = _open(path).iter_batches(BLOCK_ROWS, columns=list(columns), use_threads=False)
            for batch in batches:
                yield Block(path, -1, 0, len(batch), first, in_file), pa.Table.from_batches([batch])
                first, in_file = first + len(batch), in_file + len(batch)


@lru_cache(maxsize=8)
def _open(path: Path) -> pyarrow.parquet.ParquetFile:
    # buffered: row groups are not loaded as a whole; checksums of pages, where the file has them
    options = {"buffer_size": 1 << 20, "pre_buffer": False, "page_checksum_verification": True}
    return pyarrow.parquet.ParquetFile(path, **options)


def _check_schema(file: Path, schema: pa.Schema, first: Path, names: list[str], expected: pa.Schema) -> None:
    """Raise ValueError where a file has other columns than the first one, or other types."""
    if schema.equals(expected):
        return
    for name in names:
        if name not in schema.names:
            raise ValueError(
                f"{file} has no column {name!r}, {first.name} has: give files with equal columns"
            )
        ours, theirs = schema.field(name).type, expected.field(name).type
        if ours != theirs:
            raise ValueError(
                f"{file}, column {name!r} holds {ours}, in {first.name} it holds {theirs}: "
                "write all files with one type"
            )
    if extra := [name for name in schema.names if name not in names]:
        raise ValueError(
            f"{file} has a column {extra[0]!r}, {first.name} has not: give files with equal columns"
        )
