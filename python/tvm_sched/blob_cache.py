"""A disk cache of many small results, such as compiled kernels: keyed by content, bounded, shared by processes.

All entries are in one SQLite file. A damaged entry counts as missing, a damaged file is replaced by an empty one, and a
cache that cannot be used counts as empty: everything in it can be computed again.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.files import cache_directory, caches_allowed

from .sqlite_file import SqliteFile

T = TypeVar("T")
DEFAULT_LIMIT = 256 << 20
"""Bytes of all entries together; a compiled kernel takes some 20 KB."""
_SCHEMA = "create table if not exists entry (key text primary key, digest blob, content blob, used real)"
_AT_ONCE = 500
"""Keys in one query; SQLite allows 999."""


@dataclass(frozen=True)
class BlobCache:
    """Entries by key in one file."""

    path: Path
    limit: int = DEFAULT_LIMIT
    """Most bytes of all entries together; the least recently used are dropped first."""
    used: bool = True
    """Whether entries are read and stored; ``TVM_SCHED_NO_CACHE`` disables both, too."""

    def find(self, keys: Collection[str]) -> dict[str, bytes]:
        """Return the contents of the undamaged entries with these keys."""
        if not keys or not self._is_used() or not self.path.is_file():
            return {}
        wanted = list(keys)

        def work(connection: sqlite3.Connection) -> dict[str, bytes]:
            contents: dict[str, bytes] = {}
            for begin in range(0, len(wanted), _AT_ONCE):
                part = wanted[begin : begin + _AT_ONCE]
                marks = ", ".join("?" * len(part))
                rows = connection.execute(f"select key, digest, content from entry where key in ({marks})", part)
                contents |= {key: content for key, digest, content in rows if digest == _digest(content)}
                connection.execute(f"update entry set used = ? where key in ({marks})", [time.time(), *part])
            return contents

        return self._try(work, {})

    def keep(self, entries: Mapping[str, bytes]) -> None:
        """Add entries, which replace entries of the same keys, and drop the oldest beyond the limit."""
        if not entries or not self._is_used():
            return
        rows = [(key, _digest(content), content, time.time()) for key, content in entries.items()]

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany("insert or replace into entry values (?, ?, ?, ?)", rows)
            total, old = 0, []
            for key, size in connection.execute("select key, length(content) from entry order by used desc"):
                total += size
                if total > self.limit:
                    old.append((key,))
            connection.executemany("delete from entry where key = ?", old)

        self._try(work, None)

    def contents(self) -> tuple[int, int]:
        """Return the number of entries and their bytes."""
        if not self.path.is_file():
            return 0, 0
        query = "select count(*), coalesce(sum(length(content)), 0) from entry"
        return self._try(lambda connection: tuple(connection.execute(query).fetchone()), (0, 0))

    def clear(self) -> bool:
        """Remove the file; return whether there was one."""
        return self._file.clear()

    def _is_used(self) -> bool:
        return self.used and caches_allowed()

    @property
    def _file(self) -> SqliteFile:
        return SqliteFile(self.path, _SCHEMA, "the cache", durable=False)

    def _try(self, work: Callable[[sqlite3.Connection], T], nothing: T) -> T:
        """Use the file; if that is impossible, continue without it."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the entries of a damaged file are computed again
                return self._file.use(work)
        except InputError:
            return nothing


def kernel_cache(used: bool = True) -> BlobCache:
    """Return the cache of compiled kernels of CPUs."""
    return BlobCache(cache_directory() / "kernels.sqlite", used=used)


def choice_cache(used: bool = True) -> BlobCache:
    """Return the cache of measured choices: schedules, and implementations of kernels."""
    return BlobCache(cache_directory() / "choices.sqlite", 64 << 20, used)


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
