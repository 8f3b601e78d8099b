"""Run directories through an fsspec path, such as s3://bucket/grid, for nodes that share no folder.

<url>/<key>/...        the files of a run, as run_files.py describes them; metrics.json, written last, exists
                       only of finished runs, and is created once where the file system can refuse a second
<url>/fits/<key>/...   checkpoints

A run is performed in a scratch folder of its node. Its checkpoint and progress are copied every
COPY_INTERVAL seconds. Nothing is locked: the driver never starts a run twice, and what an orphan still
writes has the same bits.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from compound.experiments import progress
from compound.experiments.identity import Run
from compound.experiments.run_files import ARRAYS, CONFIG, FAILURE, METRICS
from compound.io.atomic import write_atomic
from compound.io.temporary import temporary

COPY_INTERVAL = 10.0  # seconds between two copies of checkpoint and progress
CHECKPOINT = "checkpoint.safetensors"
RESULT = (CONFIG, "history.csv", ARRAYS, METRICS)  # in this order: metrics.json says that all are there


@dataclass(frozen=True)
class Storage:
    """A folder of runs at an fsspec URL; ValueError where it cannot be used."""

    url: str
    copy_interval: float = COPY_INTERVAL

    def check(self) -> None:
        """Write and remove a file, before any work; ValueError if that fails."""
        path = f"{self.url.rstrip('/')}/.check"
        try:
            self._write(path, b"")
            self._file_system.rm_file(self._path(path))
        except Exception as error:  # each file system has exceptions of its own
            raise ValueError(
                f"--storage {self.url} cannot be written to ({_line(error)}): check the URL and your rights, "
                "and that the fsspec package of its kind is installed"
            ) from error

    def is_finished(self, run: Run) -> bool:
        return bool(self._file_system.exists(self._path(f"{self.url}/{run.key}/{METRICS}")))

    def fetch(self, run: Run, root: Path) -> None:
        """Copy the result of a finished run to its directory in `root`."""
        for name in RESULT:
            data = self._read(f"{self.url}/{run.key}/{name}")
            if data is not None:
                write_atomic(root / run.key / name, data)

    def progress(self, run: Run) -> dict[str, Any] | None:
        """The content of progress.json of a run; None where there is none."""
        data = self._read(f"{self.url}/{run.key}/{progress.NAME}")
        with suppress(ValueError):
            content = json.loads(data or b"null")
            return content if isinstance(content, dict) else None
        return None

    @contextmanager
    def scratch(self, run: Run) -> Iterator[Path]:
        """A context manager with a folder that holds the run as far as it is known, and is copied back.

        What a killed process left behind is removed by the next one on its node.
        """
        with temporary(Path(gettempdir()) / f"compound-run-{run.key}", folder=True) as root:
            known = {f"{run.key}/{progress.NAME}": None, f"fits/{run.fit_key}/{CHECKPOINT}": None}
            for name in (*known, *(f"{run.key}/{file}" for file in RESULT)):
                data = self._read(f"{self.url}/{name}")
                if data is not None:
                    write_atomic(root / name, data)
            done = threading.Event()
            thread = threading.Thread(
                target=self._copy_regularly, args=(root, list(known), done), daemon=True
            )
            thread.start()
            try:
                yield root
            finally:
                done.set()
                thread.join()
            self._copy_result(run, root)

    def _copy_regularly(self, root: Path, names: list[str], done: threading.Event) -> None:
        """Copy files that have changed, until `done`; an error is left to the copy of the result."""
        copied = dict.fromkeys(names, -1)
        while True:
            last = done.wait(self.copy_interval)
            for name in names:
                with suppress(Exception):
                    time = (root / name).stat().st_mtime_ns
                    if time != copied[name]:
                        self._write(f"{self.url}/{name}", (root / name).read_bytes())
                        copied[name] = time
            if last:
                return

    def _copy_result(self, run: Run, root: Path) -> None:
        """Copy the result of a finished run, or its failure; a result that is there already stays."""
        folder = root / run.key
        if not (folder / METRICS).exists():
            if (folder / FAILURE).exists():
                self._write(f"{self.url}/{run.key}/{FAILURE}", (folder / FAILURE).read_bytes())
            return
        if self.is_finished(run):
            return
        for name in RESULT:
            if (folder / name).exists():
                data = (folder / name).read_bytes()
                with suppress(FileExistsError):
                    self._write(f"{self.url}/{run.key}/{name}", data, once=name == METRICS)
        for name in (FAILURE, progress.NAME):
            with suppress(FileNotFoundError):
                self._file_system.rm_file(self._path(f"{self.url}/{run.key}/{name}"))

    @property
    def _file_system(self) -> Any:
        import fsspec

        return fsspec.core.url_to_fs(self.url)[0]

    def _path(self, url: str) -> str:
        import fsspec

        return str(fsspec.core.url_to_fs(url)[1])

    def _read(self, url: str) -> bytes | None:
        """The content of a file; None if there is none."""
        try:
            return bytes(self._file_system.cat_file(self._path(url)))
        except FileNotFoundError:
            return None

    def _write(self, url: str, data: bytes, once: bool = False) -> None:
        """Write a file that is complete or absent; FileExistsError for a second one where `once`.

        Object stores show a file when it is complete; on file systems it is renamed, or linked.
        """
        path = self._path(url)
        if _is_local(self._file_system):
            if once and Path(path).exists():
                raise FileExistsError(path)
            write_atomic(path, data)
        else:
            self._file_system.pipe_file(path, data, mode="create" if once else "overwrite")


def _is_local(file_system: Any) -> bool:
    return "file" in (
        (file_system.protocol,) if isinstance(file_system.protocol, str) else file_system.protocol
    )


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
