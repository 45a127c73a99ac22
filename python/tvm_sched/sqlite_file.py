"""An SQLite file with reproducible contents: shared by processes; if it is damaged, it is moved aside and created again."""

from __future__ import annotations

import os
import sqlite3
import warnings
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tvm_sched_runtime.errors import InputError

T = TypeVar("T")


@dataclass(frozen=True)
class SqliteFile:
    """A file with tables."""

    path: Path
    """Path of the file; the first use creates it and its folder."""
    schema: str
    """``create table if not exists ...``, one statement."""
    what: str
    """Name in messages, such as ``"the database of measurements"``."""
    warning: type[Warning] = UserWarning
    """Category of the warning that a damaged file was moved aside."""
    durable: bool = True
    """Whether `use` waits until the disk has all writes. Otherwise a loss of power may damage the file."""

    def size(self) -> int:
        """Return the bytes of the file; 0 if there is none."""
        return self.path.stat().st_size if self.path.is_file() else 0

    def clear(self) -> bool:
        """Remove the file, and a damaged one that was moved aside; return whether there was one."""
        exists = self.path.is_file()
        for ending in ("", "-journal", ".damaged"):
            self.path.with_name(f"{self.path.name}{ending}").unlink(missing_ok=True)
        return exists

    def use(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Work on the open database in one transaction; a damaged one is moved aside with a warning and created again.

        Raises
        ------
        InputError
            The file cannot be used: no room, no permission, locked for half a minute.
        """
        try:
            try:
                return self._open(work)
            except sqlite3.DatabaseError as error:
                if type(error) is not sqlite3.DatabaseError:  # not damaged, but locked, full, or forbidden
                    raise
                aside = self._put_aside()
                warnings.warn(
                    f"{self.path}: {self.what} is damaged ({error}); it is {aside.name} now, and a new one is created",
                    self.warning,
                    stacklevel=3,
                )
                return self._open(work)
        except (OSError, sqlite3.Error) as error:
            raise InputError(
                f"{self.path}: {self.what} cannot be used ({error}); remove the file, or name another directory with "
                "TVM_SCHED_CACHE"
            ) from None

    def _open(self, work: Callable[[sqlite3.Connection], T]) -> T:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self.path, timeout=30)) as connection, connection:
            if not self.durable:
                connection.execute("pragma synchronous = off")
            connection.execute(self.schema)
            return work(connection)

    def _put_aside(self) -> Path:
        """Rename the file, and remove the journal, which another database must not take for its own."""
        aside = self.path.with_name(f"{self.path.name}.damaged")
        with suppress(FileNotFoundError):  # another process did it
            os.replace(self.path, aside)
        self.path.with_name(f"{self.path.name}-journal").unlink(missing_ok=True)
        return aside
