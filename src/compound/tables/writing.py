"""Rows as they were in their file, and answers beside them.

csv to csv, letter by letter but for quotes; parquet to parquet, value and type. Where the kind of file changes: numbers, times and truth
values of a parquet file are spelt out; columns of a csv file become numbers or truth values where that loses nothing, else text.
"""

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from compound.tables.columns import exactly, flat, is_simple, is_time
from compound.tables.tabular import exact_types


class Writer:
    """Pieces of a table one after the other into a file of the kind that `out` says; `only` the answers, or all."""

    def __init__(self, path: Path, out: Path, source: Path, only: bool):
        self.path, self.kind, self.source, self.only = path, out.name.lower(), source, only
        self.delimiter = "\t" if self.kind.endswith((".tsv", ".tsv.gz")) else ","
        self.types = (
            exact_types(source)
            if self.kind.endswith(".parquet") and source.suffix != ".parquet" and not only
            else {}
        )
        self.sink: Any = None
        self.schema: Any = None

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: Any) -> None:
        if self.sink is not None:
            self.sink.close()

    def write(self, own: pa.Table, answers: pd.DataFrame) -> None:
        table = pa.Table.from_pandas(answers, preserve_index=False).replace_schema_metadata(None)
        if not self.only:
            for i, (name, kind) in enumerate(self.types.items()):
                if not pa.types.is_string(kind):
                    own = own.set_column(i, name, exactly(flat(own[name]), kind))
            schema = pa.schema(
                [*own.schema, *table.schema], metadata=own.schema.metadata
            )  # pandas' words about its columns among it
            table = pa.Table.from_arrays([*own.columns, *table.columns], schema=schema)
        if self.kind.endswith(".parquet"):
            if self.sink is None:
                self.schema = table.schema
                self.sink = pyarrow.parquet.ParquetWriter(self.path, self.schema)
            self.sink.write_table(table.cast(self.schema))
            return
        if self.sink is None:
            self.sink = pa.output_stream(
                str(self.path), compression="gzip" if self.kind.endswith(".gz") else None
            )
            heads = [pa.array([name]) for name in table.column_names]
            self.sink.write(joined(heads, self.delimiter))
        self.sink.write(
            joined([self._spelt(name, table[name]) for name in table.column_names], self.delimiter)
        )

    def _spelt(self, name: str, column: pa.ChunkedArray) -> pa.Array:
        values = flat(column)
        if not (is_simple(values.type) or is_time(values.type)):
            raise ValueError(
                f"{self.source}, column {name!r} holds {values.type}, which no csv file can: end --out in .parquet or give --only"
            )
        return values.cast(pa.string())


def joined(columns: list[pa.Array], delimiter: str) -> bytes:
    """Lines of csv; values are in quotes where they must be, missing ones are empty."""
    special = f'["\r\n{delimiter}]'
    quoted = []
    for column in columns:
        column = pc.fill_null(column, "")
        must = pc.match_substring_regex(column, special)
        if pc.any(must).as_py():
            inner = pc.replace_substring(column, '"', '""')
            column = pc.if_else(must, pc.binary_join_element_wise('"', inner, '"', ""), column)
        quoted.append(column)
    lines = pc.binary_join_element_wise(*quoted, delimiter)
    return "".join(f"{line}\n" for line in lines.to_pylist()).encode()
