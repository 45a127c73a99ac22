"""The database of all measurements of this user."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from tvm_sched_runtime.files import cache_directory

from ..sqlite_file import SqliteFile
from .profile import Machine, Measurement, Pair, minor

_SCHEMA = (
    "create table if not exists measurement "
    "(machine text, device text, signature text, content blob, primary key (machine, device, signature))"
)
ENTRIES = 50_000
"""Largest number of measurements in a database; one takes about 600 bytes."""


class CostWarning(UserWarning):
    """Latencies are less accurate than requested: a profile of another machine, or operators that were not measured.

    Examples
    --------
    >>> from tvm_sched.cost_model import CostWarning
    >>> issubclass(CostWarning, UserWarning)
    True
    """


class Database:
    """All measurements of this user, so that no kernel is measured twice on a machine with the same versions.

    Parameters
    ----------
    path : path, optional
        Default: ``$TVM_SCHED_CACHE``, or ``tvm_sched`` in the user's cache directory, and there ``measurements.sqlite``.
    entries : int
        Largest number of measurements; writing more drops the oldest.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, entries: int = ENTRIES) -> None:
        self.entries = entries
        self.path = Path(path) if path is not None else cache_directory() / "measurements.sqlite"
        self._file = SqliteFile(self.path, _SCHEMA, "the database of measurements", CostWarning)

    def read(self, machine: Machine, device: str) -> dict[str, Measurement]:
        """Return the measurements by their `Measurement.key`."""
        rows = self._read(machine, device)
        return {name: msgspec.json.decode(content, type=Measurement) for name, content in rows.items()}

    def read_pairs(self, machine: Machine, device: str) -> dict[tuple[str, str], Pair]:
        """Return the pairs measured in parallel, by their signatures."""
        rows = self._read(machine, f"{device}, pairs")
        pairs = [msgspec.json.decode(content, type=Pair) for content in rows.values()]
        return {(pair.first, pair.second): pair for pair in pairs}

    def write_pairs(self, machine: Machine, device: str, pairs: Iterable[Pair]) -> None:
        """Add pairs; they replace pairs of the same signatures."""
        documents = {f"{pair.first} beside {pair.second}": msgspec.json.encode(pair) for pair in pairs}
        self._write(machine, f"{device}, pairs", documents)

    def write(self, machine: Machine, device: str, measurements: Iterable[Measurement]) -> None:
        """Add measurements; they replace measurements of the same key."""
        self._write(machine, device, {each.key: msgspec.json.encode(each) for each in measurements})

    def size(self) -> int:
        """Return the bytes of the file; 0 if there is none."""
        return self._file.size()

    def count(self) -> int:
        """Return the number of measurements; 0 if there is no file."""
        if not self.path.is_file():
            return 0
        query = "select count(*) from measurement"
        return int(self._file.use(lambda connection: connection.execute(query).fetchone()[0]))

    def clear(self) -> bool:
        """Remove the file, and a damaged one that was moved aside; return whether there was one."""
        return self._file.clear()

    def forget(self, machine: Machine, device: str, signatures: Iterable[str]) -> None:
        """Remove all measurements of these signatures."""
        remove = (
            "delete from measurement where machine = ? and device = ? "
            "and (signature = ? or (signature >= ? and signature < ?))"
        )
        rows = [(_key(machine), device, text, f"{text}#", f"{text}$") for text in signatures]  # "$" follows "#"
        self._file.use(lambda connection: connection.executemany(remove, rows))

    def _read(self, machine: Machine, device: str) -> dict[str, bytes]:
        query = "select signature, content from measurement where machine = ? and device = ?"
        if not self.path.is_file():
            return {}
        return dict(self._file.use(lambda connection: connection.execute(query, (_key(machine), device)).fetchall()))

    def _write(self, machine: Machine, device: str, documents: Mapping[str, bytes]) -> None:
        rows = [(_key(machine), device, name, content) for name, content in documents.items()]
        oldest = (
            "select rowid from measurement order by rowid desc limit -1 offset ?"  # SQLite numbers them as they come
        )

        def write(connection: sqlite3.Connection) -> None:
            connection.executemany("insert or replace into measurement values (?, ?, ?, ?)", rows)
            connection.execute(f"delete from measurement where rowid in ({oldest})", (self.entries,))

        self._file.use(write)


def _key(machine: Machine) -> str:
    versions = sorted((package, minor(version)) for package, version in machine.versions.items())
    return msgspec.json.encode([machine.processor, machine.cores, versions]).decode()
