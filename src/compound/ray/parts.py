"""Parts of Parquet files: what is predicted at once, and written to a file of its own.

A file of at most PART_ROWS rows is one part, whose answers have the name of the file; a longer one has
several, name.00000-of-00007.parquet, of whole row groups.
"""

import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from compound.estimators.base import Estimator
from compound.estimators.row_predictions import predict_frame
from compound.io.temporary import temporary
from compound.tables.file_errors import join_names, missing_column, reading_errors
from compound.tables.frames import cast_frame
from compound.tables.model_inputs import check_finite, column_types
from compound.tables.streaming import CHUNK_ROWS

PART_ROWS = 1 << 18
SOURCE = b"compound.source"  # key of the metadata that says what a file of answers was made from
OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "az"}  # a file appears there when it is complete


class RemoteParquet(type(Path())):  # type: ignore[misc]
    """A Parquet file that may not be on this machine, for messages that name it: str() is the name given."""

    def __new__(cls, name: str) -> "RemoteParquet":
        path = super().__new__(cls, f"{name}.parquet")
        path.name_given = name
        return path

    def __str__(self) -> str:
        return str(self.name_given)

    def is_file(self) -> bool:
        return True


class Footer(NamedTuple):
    """What the footer of a Parquet file says."""

    file: str
    schema: pa.Schema
    groups: tuple[int, ...]  # rows of each row group


class Part(NamedTuple):
    """Some row groups of a file."""

    source: str
    first: int  # row group
    end: int  # one past the last
    offset: int  # rows of the file before the part
    rows: int
    target: str


class PartResult(NamedTuple):
    """What has become of a part."""

    source: str
    rows: int
    n_ood: int
    error: str  # "" where it was predicted


class Request(NamedTuple):
    """What is asked of each part."""

    coverage: float
    predictions_only: bool
    digest: str  # of the model and the request


def find_files(pattern: str, out: str) -> list[str]:
    """The Parquet files of a path, folder or pattern, in order; ValueError if there are none.

    Files in `out`, and those whose name begins with _ or a dot, are passed over.
    """
    fs, path = _file_system(pattern)
    try:
        if any(sign in path for sign in "*?["):
            found = fs.glob(path)
        elif fs.isdir(path):
            found = fs.find(path)
        else:
            found = [path] if fs.exists(path) else []
    except (OSError, ValueError, ImportError) as error:
        raise ValueError(f"{pattern} cannot be listed ({error}): check the path and your rights") from error
    answers = _file_system(out)[1].rstrip("/") + "/"
    files = [
        str(fs.unstrip_protocol(name)) if "://" in pattern else str(name)
        for name in sorted(found)
        if name.endswith(".parquet")
        and not os.path.basename(name).startswith(("_", "."))
        and not name.startswith(answers)
    ]
    if not files:
        raise ValueError(f"{pattern} holds no Parquet file: give a file, a folder, or a pattern in quotes")
    return files


def absolute(url: str) -> str:
    """A path that means the same on all nodes; URLs stay as they are."""
    return url if "://" in url else os.path.abspath(url)


def default_folder(pattern: str) -> str:
    """The folder for answers: beside the folder, or the file, that is read."""
    fixed = pattern[: min((pattern.find(sign) for sign in "*?[" if sign in pattern), default=len(pattern))]
    if fixed != pattern:
        fixed = fixed.rpartition("/")[0] or "."
    return absolute(fixed.rstrip("/").removesuffix(".parquet")) + ".predicted"


def read_footer(file: str) -> Footer:
    """The footer of a file; ValueError if it is damaged."""
    fs, path = _file_system(file)
    with reading_errors(RemoteParquet(file)), fs.open(path, "rb") as handle:
        metadata = pq.read_metadata(handle)
        groups = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
        return Footer(file, metadata.schema.to_arrow_schema(), groups)


def check_schemas(
    schemas: Sequence[tuple[str, pa.Schema]], estimator: Estimator, predictions_only: bool
) -> None:
    """Raise ValueError if a file lacks a column of the model, or holds another kind of values than the first.

    Columns with the name of a prediction are refused, unless they are left out.
    """
    required = list(column_types(estimator))
    new_names = [] if predictions_only else prediction_names(estimator)
    first_file, first = schemas[0]
    for file, schema in schemas:
        for name in required:
            if name not in schema.names:
                role = f" (the model reads {join_names(required)})"
                raise missing_column(RemoteParquet(file), name, schema.names, role)
            kinds = _kind(first.field(name).type), _kind(schema.field(name).type)
            if kinds[0] != kinds[1]:
                raise ValueError(
                    f"{file}, column {name!r} holds {kinds[1]}, that of {first_file} {kinds[0]}: "
                    "write all files with one schema"
                )
        if clash := next((name for name in schema.names if name in new_names), None):
            raise ValueError(
                f"{file} has a column {clash!r} already: "
                "rename it, or leave the table's columns out with --only"
            )
        if not predictions_only and schema.names != first.names:
            raise ValueError(
                f"{file} has the columns {join_names(schema.names)}, {first_file} {join_names(first.names)}: "
                "write all files with one schema, or leave their columns out with --only"
            )


def prediction_names(estimator: Any) -> list[str]:
    """The names of the columns that `predict_frame` adds: those of one row without values."""
    empty = {"number": [math.nan], "time": pd.to_datetime([None])}
    row = {name: empty.get(str(kind), [None]) for name, kind in column_types(estimator).items()}
    return [str(name) for name in predict_frame(estimator, pd.DataFrame(row), 0.5)]


def plan_parts(footers: Sequence[Footer], out: str) -> list[Part]:
    """The parts of all files, whose answers go to the folder `out`; files without rows have none."""
    root = os.path.commonpath([os.path.dirname(footer.file) for footer in footers])
    parts = []
    for file, _, groups in footers:
        pieces: list[tuple[int, int, int, int]] = []  # first group, end, offset, rows
        first, offset, rows = 0, 0, 0
        for index, size in enumerate(groups):
            rows += size
            if rows >= PART_ROWS or index == len(groups) - 1:
                pieces.append((first, index + 1, offset, rows))
                first, offset, rows = index + 1, offset + rows, 0
        name = f"{out.rstrip('/')}/{os.path.relpath(file, root)}"
        for number, piece in enumerate(piece for piece in pieces if piece[3]):
            ending = f".{number:05}-of-{len(pieces):05}.parquet" if len(pieces) > 1 else ".parquet"
            parts.append(Part(file, *piece, name.removesuffix(".parquet") + ending))
    return parts


def predict_part(estimator: Estimator, part: Part, request: Request) -> PartResult:
    """Write the predictions of a part to its file, unless it is there already."""
    fs, path = _file_system(part.source)
    info = fs.info(path)
    origin = {
        "model": request.digest,
        "file": os.path.basename(path),
        "size": info.get("size"),
        "changed": str(info.get("mtime") or info.get("LastModified") or info.get("ETag")),
        "groups": [part.first, part.end],
    }
    done = _read_origin(part.target)
    if done is not None and {**done, "n_ood": None} == {**origin, "n_ood": None}:
        return PartResult(part.source, part.rows, int(done["n_ood"]), "")
    types = column_types(estimator)
    source = RemoteParquet(part.source)
    columns = list(types) if request.predictions_only else None
    n_ood, offset = 0, part.offset
    with _complete_file(part.target) as local, fs.open(path, "rb") as handle:
        writer = None
        with reading_errors(source):
            batches = pq.ParquetFile(handle, page_checksum_verification=True).iter_batches(
                CHUNK_ROWS, row_groups=list(range(part.first, part.end)), columns=columns
            )
        while (batch := _next_batch(batches, source)) is not None:
            frame = cast_frame(source, batch.select(list(types)), types, offset)
            check_finite(source, frame, offset)
            predictions = predict_frame(estimator, frame, request.coverage)
            n_ood += int(predictions["is_ood"].sum())
            offset += len(predictions)
            table = pa.Table.from_pandas(predictions, preserve_index=False).replace_schema_metadata(None)
            if not request.predictions_only:
                fields = [*batch.schema, *table.schema]
                schema = pa.schema(fields, metadata=batch.schema.metadata)
                table = pa.Table.from_arrays([*batch.columns, *table.columns], schema=schema)
            if writer is None:
                writer = pq.ParquetWriter(local, table.schema)
            writer.write_table(table.cast(writer.schema))
        assert writer is not None  # a part has rows
        writer.add_key_value_metadata({SOURCE: json.dumps({**origin, "n_ood": n_ood}).encode()})
        writer.close()
    return PartResult(part.source, part.rows, n_ood, "")


def _next_batch(batches: Iterator[pa.RecordBatch], source: Path) -> pa.Table | None:
    """The next batch as a table; None after the last. ValueError for damaged data."""
    with reading_errors(source):
        batch = next(batches, None)
        return None if batch is None else pa.Table.from_batches([batch])


def _read_origin(target: str) -> dict[str, Any] | None:
    """What a file of answers was made from; None where there is no complete file."""
    fs, path = _file_system(target)
    try:
        with fs.open(path, "rb") as handle:
            text = (pq.read_metadata(handle).metadata or {}).get(SOURCE, b"null")
        origin = json.loads(text)
    except (OSError, ValueError, pa.ArrowException):
        return None
    return origin if isinstance(origin, dict) and "n_ood" in origin else None


@contextmanager
def _complete_file(target: str) -> Iterator[Path]:
    """A context manager with a local file to write, which is complete at `target` afterwards, or absent."""
    fs, path = _file_system(target)
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    fs.makedirs(os.path.dirname(path), exist_ok=True)
    if "file" in protocols:
        with temporary(Path(path)) as fresh:
            yield fresh
            with fresh.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(fresh, path)
        return
    with TemporaryDirectory(prefix="compound-") as folder:
        fresh = Path(folder) / "answers.parquet"
        yield fresh
        if protocols & OBJECT_STORES:
            fs.put_file(str(fresh), path)
        else:
            hidden = f"{os.path.dirname(path)}/.{os.path.basename(path)}.new"
            fs.put_file(str(fresh), hidden)
            fs.mv(hidden, path)


def _file_system(url: str) -> tuple[Any, str]:
    """The fsspec file system of a path or URL, and the path in it; ValueError if its package is missing."""
    import fsspec

    try:
        fs, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ValueError(
            f"{url} cannot be opened ({error}): install the fsspec package of its kind"
        ) from error
    return fs, str(path)


def _kind(dtype: pa.DataType) -> str:
    """What a column holds, as far as it matters whether two files have the same schema."""
    if pa.types.is_dictionary(dtype):
        return _kind(dtype.value_type)
    if pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal(dtype):
        return "numbers"
    if pa.types.is_string(dtype) or pa.types.is_large_string(dtype) or pa.types.is_string_view(dtype):
        return "text"
    return "times" if pa.types.is_temporal(dtype) else str(dtype)
