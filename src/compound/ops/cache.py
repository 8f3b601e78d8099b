"""The on-disk cache of compiled loops: numba's own cache, with checksums.

numba executes whatever machine code a cache file holds, and fails with a traceback on a truncated file. Here
every file begins with the SHA-256 digest of the rest and holds the key it was made for. A file that does not
match is compiled again; a folder that cannot be written costs one compilation per process. Every loop is
stamped with the sources of all files of its folder, because a loop may contain functions of other files.
"""

import hashlib
import pickle
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

DIGEST = hashlib.sha256().digest_size
SUFFIX = "-sha256"  # of file names: numba's own files have another layout


class LoopCache(FunctionCache):
    """numba's on-disk cache of one compiled function, with checksums."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__(function)
        stamp = _source_stamp(Path(function.__code__.co_filename).parent)
        self._cache_file = _ChecksummedFiles(self.cache_path, self._impl.filename_base + SUFFIX, stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function for a signature; None, with a warning, where its file cannot be used."""
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # intact, but unusable by this numba: it may raise anything
            _warn_damaged(self.cache_path, error)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save the compiled function for a signature; a warning where the folder cannot be written."""
        try:
            super().save_overload(sig, data)
        except OSError as error:  # full, read-only or missing: the loop in memory is not affected
            warnings.warn(
                f"{self.cache_path} cannot be written ({error}): loops are compiled again in every process",
                stacklevel=2,
            )


class _ChecksummedFiles(IndexDataCacheFile):
    """Index and data files, each a digest followed by its content."""

    def _load_index(self) -> dict[Any, str]:
        content = self._read(Path(self._index_path))
        version, stamp, names = content if content is not None else (None, None, {})
        return names if (version, stamp) == (self._version, self._source_stamp) else {}

    def _save_index(self, overloads: dict[Any, str]) -> None:
        self._write(self._index_path, (self._version, self._source_stamp, overloads))

    def load(self, key: Any) -> Any:
        """The data saved under a key; None where there are none, or the file is damaged or out of date."""
        name = self._load_index().get(key)
        content = None if name is None else self._read(Path(self._data_path(name)))
        # two processes may have given one file name to two keys
        return None if content is None or content[0] != (key, self._source_stamp) else content[1]

    def save(self, key: Any, data: Any) -> None:
        super().save(key, ((key, self._source_stamp), data))

    def _save_data(self, name: str, data: Any) -> None:
        self._write(self._data_path(name), data)

    def _read(self, path: Path) -> Any:
        """The object that `_write` has saved; None for a missing file and, with a warning, a damaged one."""
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:  # a folder of that name, or no permission
            return _warn_damaged(path.parent, error)
        if hashlib.sha256(content[DIGEST:]).digest() != content[:DIGEST]:
            return _warn_damaged(path.parent, "a checksum differs")
        return pickle.loads(content[DIGEST:])

    def _write(self, path: str, value: Any) -> None:
        content = self._dump(value)
        with self._open_for_write(path) as file:
            file.write(hashlib.sha256(content).digest() + content)


def _warn_damaged(folder: object, why: object) -> None:
    """Warn with the same message for all files of a folder, since Python shows a repeated warning once."""
    warnings.warn(f"compiled loops in {folder} are damaged ({why}): they are compiled again", stacklevel=2)


@cache
def _source_stamp(folder: Path) -> str:
    """A digest of numba's version and of every Python file of a folder."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(folder.glob("*.py")):
        content = path.read_bytes()
        digest.update(f"\n{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()
