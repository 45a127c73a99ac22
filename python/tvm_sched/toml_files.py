"""Reading and writing of versioned TOML documents: those that people write, such as topologies and clusters."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from .errors import FormatError
from .files import check_envelope, convert

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")


def parse_toml(text: bytes | str, format: str, version: int, kind: type[T], where: str) -> T:
    """Make a ``kind`` of a document's text.

    Raises
    ------
    FormatError
        It is no TOML, of another format, of a newer version, or has a field that is not allowed; says where.
    """
    try:
        data = tomllib.loads(text.decode() if isinstance(text, bytes) else text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{where}: not a TOML document ({error})") from None
    check_envelope(data, format, version, where)
    return convert(data, kind, where)


def format_toml(tables: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """The text of a document: tables in their order, each an element of the array of its title; "" is the head."""
    return "\n".join(
        (f"[[{title}]]\n" if title else "") + "".join(f"{key} = {_value(value)}\n" for key, value in table.items())
        for title, table in tables
    )


def _value(value: Any) -> str:
    """A value as TOML writes it, tables in one line."""
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
