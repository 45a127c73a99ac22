"""Read and write versioned TOML documents, such as topologies and clusters."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import msgspec

from .errors import FormatError
from .files import check_envelope, convert, why_unreadable

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")
R = TypeVar("R")


def parse_toml(text: bytes | str, format: str, version: int, kind: type[T], where: str) -> T:
    """Convert a document's text to a ``kind``.

    Raises
    ------
    FormatError
        The text is not TOML, has another format or a newer version, or a field is not allowed; the message says where.
    """
    try:
        data = tomllib.loads(text.decode() if isinstance(text, bytes) else text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{where}: not a TOML document ({why_unreadable(error)})") from None
    check_envelope(data, format, version, where)
    return convert(data, kind, where)


class Table(NamedTuple):
    """One of a document's tables: an element of the array ``title``, or the head, whose title is empty."""

    title: str
    fields: Mapping[str, Any]
    comments: Sequence[str] = ()


def format_toml(tables: Iterable[Table]) -> str:
    """Return the text of a document: tables in their order, the comments of each below its title."""
    return "\n".join(
        (f"[[{table.title}]]\n" if table.title else "")
        + "".join(f"# {_one_line(comment)}\n" for comment in table.comments)
        + "".join(f"{key} = {_value(value)}\n" for key, value in table.fields.items())
        for table in tables
    )


def neighbours(records: Iterable[R], key: Callable[[R], Any]) -> list[list[R]]:
    """Group neighbours with equal keys, which share a table of a file."""
    return [list(group) for _, group in groupby(records, key)]


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


def _value(value: Any) -> str:
    """Return a value as TOML writes it, tables in one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + " }"
    return repr(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _value(name)
