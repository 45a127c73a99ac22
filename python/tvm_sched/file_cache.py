"""A disk cache of sets of files: keyed by content, bounded in size, shared by processes.

An entry is a folder, named by its key, with the files and a manifest of their digests. It is written under another name and
renamed when it is complete, so no process sees an incomplete entry or waits for a lock. If an entry is removed while a
process reads it, that counts as a miss.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.files import cache_directory, caches_allowed

DEFAULT_LIMIT = 4 << 30
"""Default limit in bytes, without ``TVM_SCHED_CACHE_LIMIT``."""
_MANIFEST = "manifest.json"
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_ABANDONED = 24 * 3600.0
"""Seconds after which an unfinished entry counts as abandoned."""


class _Manifest(msgspec.Struct):
    about: dict[str, Any]
    files: dict[str, str]
    """SHA-256 of each file by its name."""


@dataclass(frozen=True)
class Entry:
    """``size`` in bytes; ``used`` in seconds since the epoch; ``about`` is the description that was stored with it."""

    key: str
    size: int
    used: float
    about: dict[str, Any]


@dataclass(frozen=True)
class FileCache:
    """Entries under one folder."""

    folder: Path
    """Folder of the cache; the first entry creates it."""
    limit: int
    """Most bytes of all entries together; the least recently used are removed first."""

    def find(self, key: str) -> tuple[Path, dict[str, Any]] | None:
        """Return an entry's folder and description; None if there is no such entry. A damaged one is removed."""
        folder = self.folder / key
        manifest = _read_manifest(folder)
        if manifest is None:
            if folder.is_dir():
                self._remove(folder)
            return None
        try:
            whole = all(file_digest(folder / name) == digest for name, digest in manifest.files.items())
            os.utime(folder)
        except OSError:  # a file is missing, or another process removes the entry just now
            whole = False
        if not whole:
            self._remove(folder)
            return None
        return folder, manifest.about

    def keep(self, key: str, files: Mapping[str, Path], about: Mapping[str, Any]) -> bool:
        """Keep copies of files, by name, unless they exceed the limit.

        Returns
        -------
        bool
            Whether they are kept; false also if the folder cannot be written.
        """
        if sum(path.stat().st_size for path in files.values()) > self.limit:
            return False
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=".", suffix=".new", dir=self.folder))
        except OSError:
            return False
        try:
            for name, path in files.items():
                shutil.copyfile(path, folder / name)
            digests = {name: file_digest(folder / name) for name in files}
            (folder / _MANIFEST).write_bytes(msgspec.json.encode(_Manifest(dict(about), digests)))
            os.rename(folder, self.folder / key)
        except OSError:  # no room; or another process was faster, and its entry is as good
            shutil.rmtree(folder, ignore_errors=True)
            return (self.folder / key).is_dir()
        self._evict()
        return True

    def entries(self) -> list[Entry]:
        """Return all entries, the last used first."""
        entries = []
        for folder in self._folders():
            manifest = _read_manifest(folder)
            try:
                size, used = sum(file.stat().st_size for file in folder.iterdir()), folder.stat().st_mtime
            except OSError:
                continue
            entries.append(Entry(folder.name, size, used, manifest.about if manifest else {}))
        return sorted(entries, key=lambda entry: -entry.used)

    def clear(self) -> int:
        """Remove all entries; return how many there were."""
        folders = self._folders()
        for folder in folders:
            self._remove(folder)
        return len(folders)

    def _folders(self) -> list[Path]:
        try:
            return [path for path in self.folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
        except OSError:
            return []

    def _evict(self) -> None:
        total = 0
        for entry in self.entries():
            total += entry.size
            if total > self.limit:
                self._remove(self.folder / entry.key)
        for path in self.folder.glob(".*"):
            try:
                if path.stat().st_mtime < time.time() - _ABANDONED:
                    shutil.rmtree(path, ignore_errors=True)
            except OSError:
                continue

    def _remove(self, folder: Path) -> None:
        """Rename the folder before its removal, so that no process reads an incomplete entry."""
        try:
            gone = Path(tempfile.mkdtemp(prefix=".", suffix=".old", dir=self.folder))
            os.rename(folder, gone / folder.name)
        except OSError:
            return
        shutil.rmtree(gone, ignore_errors=True)


def compiled_models() -> FileCache | None:
    """Return the cache of compiled models; None if ``TVM_SCHED_NO_CACHE`` is set.

    Raises
    ------
    InputError
        ``TVM_SCHED_CACHE_LIMIT`` is not a size.
    """
    return compiled_cache() if caches_allowed() else None


def compiled_cache() -> FileCache:
    """Return the cache of compiled models even if caches are switched off."""
    return FileCache(cache_directory() / "compiled", _limit())


def _limit() -> int:
    limit = os.environ.get("TVM_SCHED_CACHE_LIMIT")
    if not limit:
        return DEFAULT_LIMIT
    text = limit.strip().lower().removesuffix("b").removesuffix("i")
    number, unit = (text[:-1], text[-1:]) if text[-1:] in _UNITS else (text, "")
    try:
        size = int(float(number) * _UNITS[unit])
    except (ValueError, OverflowError):
        size = -1
    if size < 0:
        raise InputError(
            f"TVM_SCHED_CACHE_LIMIT is {limit!r}; a number of bytes is allowed, with K, M, G or T, such as 4G"
        )
    return size


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def _read_manifest(folder: Path) -> _Manifest | None:
    try:
        return msgspec.json.decode((folder / _MANIFEST).read_bytes(), type=_Manifest)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
