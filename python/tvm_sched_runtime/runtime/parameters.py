"""Write parameter files that the executor can map into memory, and report missing parameters."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import core_library
from ..errors import InputError

_ALIGNMENTS = (256, 64)
"""Alignments in bytes: the best one for GPU libraries, and the one that all kernels need."""
_MARK = "tvm_sched.content"
MARK_SIZE = 32
"""Characters of the digest in a file's header, see `write_parameters`."""
_CHECKSUM = '","tvm_sched.crc32c":"'
"""Behind the digest; the checksum of the whole file follows, which `verify_parameters` compares."""
_CHECKSUM_SIZE = 8
NO_CHECKSUM = (
    "cannot be verified, since it has no checksum: another program or an older version wrote it; compile the model again to "
    "have one"
)
_NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip


def write_parameters(
    path: str | os.PathLike[str], parameters: Mapping[str, np.ndarray[Any, Any]], first: Sequence[str] = ()
) -> str:
    """Write a safetensors file whose tensors the executor can map rather than copy.

    The format allows no gaps between tensors. So the header is padded to a multiple of 256 bytes; tensors whose size is a
    multiple of 256 bytes come first, then multiples of 64 bytes. Only the few others are copied when the file is loaded.
    The header holds a checksum of the whole file (`verify_parameters`).
    The file is written one tensor at a time under another name, and renamed when it is complete.

    Parameters
    ----------
    path
    parameters : mapping of str to numpy.ndarray
    first : sequence of str
        Names in the order in which a run needs them; they come before others of the same alignment.

    Returns
    -------
    str
        The digest of names and values at the beginning of the file (see `written_mark`).

    Raises
    ------
    ValueError
        An array's data type has no name in the format; the message names the parameter.

    Examples
    --------
    >>> import numpy
    >>> from pathlib import Path
    >>> from tvm_sched_runtime.runtime import write_parameters
    >>> key = write_parameters("weights.safetensors", {"w": numpy.ones(4, "float32")})
    >>> Path("weights.safetensors").stat().st_size > 16
    True
    """
    from ..files import folder_beside  # the import takes 10 ms, which loading an artifact need not pay

    place = {name: k for k, name in enumerate(first)}

    def order_of(name: str) -> tuple[list[bool], int, str]:
        size = parameters[name].nbytes
        return [size % alignment != 0 for alignment in _ALIGNMENTS], place.get(name, len(place)), name

    order = sorted(parameters, key=order_of)
    target = Path(path)
    header, mark = _header(order, parameters)
    with folder_beside(target) as folder:
        with (folder / "new").open("wb") as file:
            file.write(header)
            for name in order:
                file.write(_bytes(parameters[name]))
        checksum = _computed_checksum(folder / "new")
        with (folder / "new").open("r+b") as written:
            written.seek(_checksum_place())
            written.write(checksum.encode())
        (folder / "new").replace(target)
    return mark


def verify_parameters(path: Path) -> bool:
    """Compare a file's content with the checksum in its header; return False if it has none.

    The checksum detects damage, not malice: CRC-32C of pieces of 64 KiB, which several threads compute at the speed of
    memory.

    Raises
    ------
    InputError
        The file was altered after it was written, or cannot be read.
    """
    prefix = _beginning("0" * MARK_SIZE) + _CHECKSUM.encode()
    try:
        with path.open("rb") as file:
            head = file.read(_checksum_place() + _CHECKSUM_SIZE)[8:]
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    recorded = head[len(prefix) :]
    begin = len(_beginning(""))
    if not head.startswith(prefix[:begin]) or head[begin + MARK_SIZE : len(prefix)] != _CHECKSUM.encode():
        return False
    if recorded != _computed_checksum(path).encode():
        raise InputError(
            f"{path}: was altered after it was written: its checksum is another; copy it again, or compile the model again"
        )
    return True


def _computed_checksum(path: Path) -> str:
    """Return the checksum of a file; the characters of the checksum itself count as zeros."""
    try:
        value = core_library.function("tvm_sched.file_checksum")(os.fspath(path), _checksum_place(), _CHECKSUM_SIZE)
    except (RuntimeError, ValueError) as error:
        raise InputError(str(error)) from None
    return f"{value:0{_CHECKSUM_SIZE}x}"


def _checksum_place() -> int:
    return 8 + len(_beginning("")) + MARK_SIZE + len(_CHECKSUM)


def written_mark(path: Path) -> str | None:
    """Return the digest that `write_parameters` put into a file; None if another program wrote it or it is missing."""
    begin = _beginning("")
    try:
        with path.open("rb") as file:
            head = file.read(8 + len(begin) + MARK_SIZE)[8:]
    except OSError:
        return None
    return head[len(begin) :].decode("ascii", "replace") if head.startswith(begin) else None


def _beginning(mark: str) -> bytes:
    """Return the beginning of our header: the mark is its first entry, to be read without parsing the header."""
    return f'{{"__metadata__":{{"{_MARK}":"{mark}'.encode()


def _bytes(array: np.ndarray[Any, Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def require_parameters(artifact: Path, parameters: Sequence[Mapping[str, Any]]) -> None:
    """Refuse to run an artifact whose ``parameters`` (`ScheduledModule.parameters`) do not all have values.

    Raises
    ------
    InputError
        A value is missing; the message names the parameter and the expected file.
    """
    missing = [parameter["name"] for parameter in parameters if not parameter["loaded"]]
    if missing:
        raise InputError(
            f"{artifact}: {len(missing)} parameters have no values ({missing[0]!r}, ...): there is no file "
            f"{artifact.with_suffix('.safetensors')}, which `compile` wrote beside the artifact; name "
            "it with --parameter-file"
        )


def _header(order: list[str], parameters: Mapping[str, np.ndarray[Any, Any]]) -> tuple[bytes, str]:
    """Return the file's length and header, and the mark in it."""
    entries = {}
    offset = 0
    content = hashlib.blake2b(digest_size=MARK_SIZE // 2)
    for name in order:
        array = parameters[name]
        stored = _NAMES.get(array.dtype.name)
        if stored is None:
            raise ValueError(f"parameter {name!r} is {array.dtype}; safetensors has {', '.join(_NAMES)}")
        entries[name] = {
            "dtype": stored,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
        content.update(_bytes(array))
    listed = json.dumps(entries, separators=(",", ":"))
    content.update(listed.encode())
    mark = content.hexdigest()
    begin = _beginning(mark) + f"{_CHECKSUM}{'0' * _CHECKSUM_SIZE}".encode()
    text = begin + (f'"}},{listed[1:]}' if entries else '"}}').encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENTS[0])
    return len(text).to_bytes(8, "little") + text, mark
