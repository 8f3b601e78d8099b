"""Output tables: the columns of the source file unchanged, with predictions appended.

csv to csv keeps the text (only quoting may differ), parquet to parquet keeps values and types. From parquet
to csv, values are written as text; from csv to parquet, a column becomes numeric or boolean where that is
lossless.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from compound.tables.column_types import cast_lossless, is_scalar, is_temporal, to_array
from compound.tables.table_files import lossless_types


class TableWriter:
    """Writes predictions to `path`, chunk by chunk, in the format that the name of `out` gives.

    The columns of `source` come first, unless `predictions_only`. `path` is a temporary file.
    """

    def __init__(self, path: Path, out: Path, source: Path, predictions_only: bool):
        self.path = path
        self.source = source
        self.predictions_only = predictions_only
        name = out.name.lower()
        self.is_parquet = name.endswith(".parquet")
        self.compression = "gzip" if name.endswith(".gz") else None
        self.delimiter = "\t" if name.endswith((".tsv", ".tsv.gz")) else ","
        converts = self.is_parquet and source.suffix != ".parquet" and not predictions_only
        self.dtypes = lossless_types(source) if converts else {}
        self.sink: Any = None  # opened by the first chunk, which fixes the schema
        self.schema: Any = None

    def __enter__(self) -> "TableWriter":
        return self

    def __exit__(self, *_: Any) -> None:
        if self.sink is not None:
            self.sink.close()

    def write(self, source_rows: pa.Table, predictions: pd.DataFrame) -> None:
        """Append a chunk: rows of the source file and their predictions."""
        table = pa.Table.from_pandas(predictions, preserve_index=False).replace_schema_metadata(None)
        if not self.predictions_only:
            table = self._append_predictions(source_rows, table)
        if self.is_parquet:
            self._write_parquet(table)
        else:
            self._write_csv(table)

    def _append_predictions(self, source_rows: pa.Table, predictions: pa.Table) -> pa.Table:
        """Source columns, cast to `self.dtypes`, followed by the prediction columns."""
        for i, (name, dtype) in enumerate(self.dtypes.items()):
            if not pa.types.is_string(dtype):
                column = cast_lossless(to_array(source_rows[name]), dtype)
                source_rows = source_rows.set_column(i, name, column)
        fields = [*source_rows.schema, *predictions.schema]
        schema = pa.schema(fields, metadata=source_rows.schema.metadata)  # keeps the metadata of pandas
        return pa.Table.from_arrays([*source_rows.columns, *predictions.columns], schema=schema)

    def _write_parquet(self, table: pa.Table) -> None:
        if self.sink is None:
            self.schema = table.schema
            self.sink = pyarrow.parquet.ParquetWriter(self.path, self.schema)
        self.sink.write_table(table.cast(self.schema))

    def _write_csv(self, table: pa.Table) -> None:
        if self.sink is None:
            self.sink = pa.output_stream(str(self.path), compression=self.compression)
            self.sink.write(csv_lines([pa.array([name]) for name in table.column_names], self.delimiter))
        columns = [self._to_text(name, table[name]) for name in table.column_names]
        self.sink.write(csv_lines(columns, self.delimiter))

    def _to_text(self, name: str, column: pa.ChunkedArray) -> pa.Array:
        values = to_array(column)
        if not (is_scalar(values.type) or is_temporal(values.type)):
            raise ValueError(
                f"{self.source}, column {name!r} holds {values.type}, which csv cannot store: "
                "end --out in .parquet or give --only"
            )
        return values.cast(pa.string())


def csv_lines(columns: list[pa.Array], delimiter: str) -> pa.Buffer:
    """Text columns as csv lines in UTF-8; values are quoted where necessary, null is empty."""
    special = f'["\r\n{delimiter}]'
    quoted_columns = []
    for column in columns:
        column = pc.fill_null(column, "")
        needs_quotes = pc.match_substring_regex(column, special)
        if pc.any(needs_quotes).as_py():
            escaped = pc.replace_substring(column, '"', '""')
            quoted = pc.binary_join_element_wise('"', escaped, '"', "")
            column = pc.if_else(needs_quotes, quoted, column)
        quoted_columns.append(column)
    lines = pc.binary_join_element_wise(*quoted_columns, delimiter)
    lines = pc.binary_join_element_wise(lines, "", "\n").cast(pa.large_string())
    _, offsets, text = lines.buffers()
    first, last = np.frombuffer(offsets, np.int64)[[lines.offset, lines.offset + len(lines)]].tolist()
    return text.slice(first, last - first)
