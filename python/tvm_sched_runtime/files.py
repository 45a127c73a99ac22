"""Read and write versioned JSON documents (one envelope for all); the cache folder."""

from __future__ import annotations

import ctypes
import fcntl
import glob
import gzip
import hashlib
import os
import re
import shutil
import socket
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args, get_type_hints

import msgspec

from .checks import path_text
from .errors import FormatError

T = TypeVar("T")
DocumentT = TypeVar("DocumentT", bound="Document")


def convert(data: Any, kind: type[T], where: str) -> T:
    """Convert plain data to a ``kind``; an error names a wrong field by its path in the document.

    Raises
    ------
    FormatError
        A field is wrong; the message has its place (``where`` and the path), its value and what is allowed.
    """
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise FormatError(f"{where}: {error}{_value_or_allowed_fields(str(error), data, kind)}") from None


def _value_or_allowed_fields(message: str, data: Any, kind: Any) -> str:
    """Return the value at the position in a message of msgspec, or the fields allowed there."""
    place = re.search(r"at `(\$[^`]*)`", message)
    steps = re.findall(r"\.([^.\[\]]+)|\[(\d+)\]", place.group(1)) if place else []
    if "unknown field" in message:
        fields = _fields_at(kind, [name for name, _ in steps if name])
        return f"; the fields are {', '.join(fields)}" if fields else ""
    for name, position in steps:
        try:
            data = data[name] if name else data[int(position)]
        except (KeyError, IndexError, TypeError):  # a place inside of a mapping's key, which msgspec writes as [...]
            return ""
    plain = data is None or isinstance(data, (str, int, float))
    return f"; found {data!r}" if plain and "Expected" in message else ""


def _fields_at(kind: Any, names: list[str]) -> tuple[str, ...]:
    """Return the fields of the record at the end of a path of field names below ``kind``."""
    for name in names:
        hint = get_type_hints(kind).get(name)
        while hint is not None and not hasattr(hint, "__struct_fields__"):
            inner = [part for part in get_args(hint) if part is not type(None) and part is not Ellipsis]
            hint = inner[0] if inner else None
        kind = hint
        if kind is None:
            return ()
    return tuple(getattr(kind, "__struct_encode_fields__", ()))


UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors of decoding a document."""


def why_unreadable(error: BaseException) -> str:
    """Describe an error among `UNREADABLE` for a message."""
    if isinstance(error, RecursionError):
        return "its lists and objects are nested too deeply"
    # msgspec tells wrong bytes by `UnicodeDecodeError` up to 0.22, by an error of its own from 0.23 on.
    wrong_bytes = isinstance(error, UnicodeDecodeError) or "Invalid UTF-8" in str(error)
    return f"it is no text in UTF-8: {error}" if wrong_bytes else str(error)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Read a file, and decompress it if its name ends with ``.gz``; raise `FormatError` if it is unreadable."""
    path = path_text("the file", path)
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise FormatError(f"{os.fspath(path)}: cannot be read ({error.strerror or error})") from None
    if not os.fspath(path).endswith(".gz"):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError(f"{os.fspath(path)}: not a whole gzip file ({error})") from None


def decode_document(text: bytes | str, format: str, version: int, where: str) -> dict[str, Any]:
    """Parse a JSON document, check its ``format`` and ``version``, and return its other fields."""
    try:
        data = msgspec.json.decode(text)
    except UNREADABLE as error:
        raise FormatError(f"{where}: not a JSON document ({why_unreadable(error)})") from None
    if not isinstance(data, dict):
        raise FormatError(f"{where}: found a JSON {type(data).__name__}, expected an object of format {format!r}")
    check_envelope(data, format, version, where)
    return data


def check_envelope(data: dict[str, Any], format: str, version: int, where: str) -> None:
    """Take ``format`` and ``version`` out of a parsed document and check them."""
    actual = data.pop("format", None)
    if actual != format:
        raise FormatError(f"{where}: field `$.format` is {actual!r}, expected {format!r}")
    actual_version = data.pop("version", None)
    if type(actual_version) is not int or actual_version < version:
        raise FormatError(f"{where}: field `$.version` is {actual_version!r}, expected {version}")
    if actual_version > version:
        raise FormatError(
            f"{where}: version {actual_version} of {format} is newer than this tvm_sched reads (version {version}); "
            "upgrade tvm_sched, or write the file with the older one"
        )


def encode_document(body: Any, format: str, version: int) -> bytes:
    """Return the JSON text of a document, one field a line down to the third level of nesting."""
    data = {"format": format, "version": version, **msgspec.to_builtins(body)}
    return _pretty(data, 0).encode() + b"\n"


def _pretty(value: Any, depth: int) -> str:
    """Break lines near the root only, so that lists of 10,000 records read as a table and stay small."""
    pad = " " * (depth + 1)
    if depth < 3 and isinstance(value, dict) and value:
        rows = (f"{pad}{msgspec.json.encode(k).decode()}: {_pretty(v, depth + 1)}" for k, v in value.items())
        return "{\n" + ",\n".join(rows) + "\n" + " " * depth + "}"
    if depth < 3 and isinstance(value, (list, tuple)) and value and isinstance(value[0], (dict, list, tuple)):
        return "[\n" + ",\n".join(f"{pad}{msgspec.json.encode(v).decode()}" for v in value) + "\n" + " " * depth + "]"
    return msgspec.json.encode(value).decode()


def content_digest(content: bytes) -> str:
    """Return the first 16 hexadecimal digits of the content's SHA-256."""
    return hashlib.sha256(content).hexdigest()[:16]


def write_document(path: str | os.PathLike[str], body: Any, format: str, version: int) -> None:
    """Write a document so that an interrupted write leaves the old file whole."""
    write_atomically(path, encode_document(body, format, version))


class Document:
    """A class, usually a struct, whose objects are stored as versioned JSON documents."""

    __slots__ = ()
    kept_as: ClassVar[tuple[str, str, int]]
    """Name of the object in messages, the format and its version."""

    def document_fields(self) -> Any:
        """Return the fields that are written after ``format`` and ``version``."""
        return self

    @classmethod
    def of_fields(cls: type[DocumentT], fields: dict[str, Any], where: str) -> DocumentT:
        """Make an object of the fields of a document; ``where`` names the document in errors."""
        return convert(fields, cls, where)

    def to_json(self) -> bytes:
        """Return the object as a JSON document; ``docs/formats`` describes it."""
        _, format, version = self.kept_as
        return encode_document(self.document_fields(), format, version)

    @classmethod
    def from_json(cls: type[DocumentT], text: bytes | str, where: str = "") -> DocumentT:
        """Read a document and check its form; ``where`` names it in errors. Any error refuses all of it."""
        kind, format, version = cls.kept_as
        where = where or kind
        return cls.of_fields(decode_document(text, format, version, where), where)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON document; an interrupted write leaves the old file whole."""
        write_atomically(path, self.to_json())

    @classmethod
    def load(cls: type[DocumentT], path: str | os.PathLike[str]) -> DocumentT:
        """Read a JSON document, as `from_json` does."""
        return cls.from_json(read_bytes(path), str(path))


@contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Lock a file against other processes within the context, for reading and writing it.

    The lock is a file beside it, ``.NAME.lock``, since an atomic write replaces the file itself.
    """
    lock = Path(path).absolute()
    try:
        held = os.open(lock.with_name(f".{lock.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise FormatError(f"{os.fspath(path)}: cannot be locked for writing: {error.strerror}") from None
    try:
        fcntl.flock(held, fcntl.LOCK_EX)  # the system releases it when the process ends
        yield
    finally:
        os.close(held)


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file through a temporary neighbour and a rename."""
    target = Path(path)
    try:
        with folder_beside(target) as folder:
            (folder / "new").write_bytes(content)
            os.replace(folder / "new", target)
    except OSError as error:
        raise FormatError(f"{target}: cannot be written ({error.strerror or error})") from None


@contextmanager
def folder_beside(target: Path) -> Iterator[Path]:
    """Make an empty folder beside ``target``, from which files can be moved to it atomically; remove it at the end.

    It also removes folders that killed processes left for the same target.

    Raises
    ------
    OSError
        The folder cannot be created.
    """
    parent, begin = target.absolute().parent, f".{target.name[:100]}.{socket.gethostname()[:60]}-"
    for left in parent.glob(f"{glob.escape(begin)}*"):
        owner = left.name[len(begin) :].partition(".")[0]
        if owner.isdecimal() and not _process_exists(int(owner)):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{begin}{os.getpid()}.", dir=parent) as folder:
        yield Path(folder)


def _process_exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        pass
    return True


def exchange(new: Path, old: Path) -> None:
    """Exchange the names of two files or folders of one file system, atomically if Linux can.

    Raises
    ------
    OSError
    """
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    here, both = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if renameat2 is None or renameat2(here, os.fsencode(new), here, os.fsencode(old), both) != 0:
        aside = new.with_name(f"{new.name}.aside")  # not every file system can
        old.rename(aside)
        new.rename(old)
        aside.rename(new)


def cache_directory() -> Path:
    """Return the cache folder: ``TVM_SCHED_CACHE``, or the user's cache."""
    named = os.environ.get("TVM_SCHED_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tvm_sched"


def caches_allowed() -> bool:
    """Return whether the disk caches may be used: ``TVM_SCHED_NO_CACHE`` is not set, empty or 0."""
    return os.environ.get("TVM_SCHED_NO_CACHE", "0") in ("", "0")
