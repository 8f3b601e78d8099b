"""Compiled loops on disk: numba's cache, with checksums.

numba runs whatever machine code a cache file holds, and ends every command with a traceback where a file is cut off. Here each file
begins with the digest of the rest, and holds the key it was made for. What differs is compiled anew; a folder that cannot be written
costs the same, once per process. All loops are stamped with the sources of all of them, for one may contain another.
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
SUFFIX = "-sha256"  # of our files' names: numba's own have another layout


class LoopCache(FunctionCache):
    """Of one loop."""

    def __init__(self, loop: Callable[..., Any]):
        super().__init__(loop)
        base, stamp = self._impl.filename_base + SUFFIX, _sources(Path(loop.__code__.co_filename).parent)
        self._cache_file = _CheckedFiles(self.cache_path, base, stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except (
            Exception
        ) as error:  # whole, but of no use to this numba: what it raises then is anyone's guess
            _warn(self.cache_path, error)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError as error:  # full, read-only or gone: the loop is in memory all the same
            warnings.warn(
                f"{self.cache_path} cannot be written ({error}): loops are compiled anew in every process",
                stacklevel=2,
            )


class _CheckedFiles(IndexDataCacheFile):
    """Index and data files, each a digest and what it is of."""

    def _load_index(self) -> dict[Any, str]:
        found = self._read(Path(self._index_path))
        version, stamp, names = found if found is not None else (None, None, {})
        return names if (version, stamp) == (self._version, self._source_stamp) else {}

    def _save_index(self, overloads: dict[Any, str]) -> None:
        self._write(self._index_path, (self._version, self._source_stamp, overloads))

    def load(self, key: Any) -> Any:
        name = self._load_index().get(key)
        found = None if name is None else self._read(Path(self._data_path(name)))
        # two processes may have given one name to two keys
        return None if found is None or found[0] != (key, self._source_stamp) else found[1]

    def save(self, key: Any, data: Any) -> None:
        super().save(key, ((key, self._source_stamp), data))

    def _save_data(self, name: str, data: Any) -> None:
        self._write(self._data_path(name), data)

    def _read(self, path: Path) -> Any:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:  # a folder of that name, no right to read
            return _warn(path.parent, error)
        if hashlib.sha256(content[DIGEST:]).digest() != content[:DIGEST]:
            return _warn(path.parent, "a checksum differs")
        return pickle.loads(content[DIGEST:])

    def _write(self, path: str, value: Any) -> None:
        content = self._dump(value)
        with self._open_for_write(path) as file:
            file.write(hashlib.sha256(content).digest() + content)


def _warn(folder: object, why: object) -> None:
    """One sentence for all files of a folder: Python shows a repeated warning once."""
    warnings.warn(f"compiled loops in {folder} are damaged ({why}): they are compiled anew", stacklevel=2)


@cache
def _sources(folder: Path) -> str:
    total = hashlib.sha256(numba.__version__.encode())
    for path in sorted(folder.glob("*.py")):
        content = path.read_bytes()
        total.update(f"\n{path.name} {len(content)}\n".encode() + content)
    return total.hexdigest()
