"""Whether a shared object is all there: the loader of the system maps one that was cut off, and the process dies."""

from __future__ import annotations

import struct
from pathlib import Path

from ..errors import InputError

_MAGIC = b"\x7fELF\x02\x01"
_SEGMENT = struct.Struct("<IIQQQQQQ")


def check_complete(file: Path) -> None:
    """Compare the size of a 64-bit little-endian ELF file with what its headers say; other files are not judged.

    Raises
    ------
    InputError
        The file is shorter.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        header = stream.read(64)
        if not header.startswith(_MAGIC):
            return
        end = 64
        if len(header) == 64:
            segments, sections = struct.unpack_from("<QQ", header, 32)
            entry, count, section_entry, section_count = struct.unpack_from("<HHHH", header, 54)
            end = max(end, sections + section_entry * section_count, segments + entry * count)
            stream.seek(segments)
            table = stream.read(entry * count)
            for k in range(len(table) // _SEGMENT.size if entry == _SEGMENT.size else 0):
                _, _, offset, _, _, length, _, _ = _SEGMENT.unpack_from(table, k * _SEGMENT.size)
                end = max(end, offset + length)
    if size < end:
        raise InputError(f"{file}: has {size} bytes of at least {end}: it was cut off; copy or compile it again")
