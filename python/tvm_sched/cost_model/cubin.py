"""Read the registers, shared memory and launch bounds of a compiled CUDA kernel from its cubin; no GPU is needed."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tvm_sched_runtime.errors import FormatError

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_NO_BITS = 8
_MAX_THREADS, _REQUIRED_THREADS, _REGISTERS, _SIZED = 0x05, 0x10, 0x2F, 0x04
_RESERVED, _RESERVED_BYTES = ".nv.shared.reserved.0", 1024
"""The section that marks cubins (such as of sm_90) whose sizes of shared memory include the system's part, and that part."""

Sections = dict[str, tuple[int, int, bytes]]


class CompiledKernel(msgspec.Struct, frozen=True):
    """A kernel of a cubin."""

    registers: int
    """Registers of each thread."""
    shared_memory: int
    """Static bytes of each block; the cubin does not contain the bytes that a launch adds."""
    threads: int
    """Largest number of threads of a block for which it was compiled (``__launch_bounds__``); 0 if unknown."""


def read_cubin(path: str | os.PathLike[str]) -> dict[str, CompiledKernel]:
    """Read the kernels, by name, of a cubin that ``nvcc -cubin`` wrote.

    A cubin is an ELF file. Each kernel has a section ``.text.NAME``. The size of ``.nv.shared.NAME``, if it exists, is the
    static shared memory, and ``.nv.info.NAME`` has the launch bounds. ``.nv.info`` has the registers of a thread, by the
    kernel's symbol; in cubins without it they are the highest byte of the ``sh_info`` of ``.text.NAME``.

    Raises
    ------
    FormatError
        The file is no cubin of 64 bits.
    """
    where = os.fspath(path)
    data = Path(path).read_bytes()
    try:
        sections = _sections(data)
        registers = _registers(sections)
    except (struct.error, ValueError, UnicodeDecodeError) as error:
        raise FormatError(f"{where} is not a cubin ({error}); make one with nvcc -cubin") from None
    kernels = {}
    reserved = _RESERVED_BYTES if _RESERVED in sections else 0
    for name, (info, _, _) in sections.items():
        if name.startswith(".text."):
            kernel = name.removeprefix(".text.")
            shared = sections.get(f".nv.shared.{kernel}", (0, reserved, b""))[1] - reserved
            threads = _threads(sections.get(f".nv.info.{kernel}", (0, 0, b""))[2])
            kernels[kernel] = CompiledKernel(registers.get(kernel, info >> 24), shared, threads)
    return kernels


def _sections(data: bytes) -> Sections:
    """Return ``sh_info``, size and content of each section, by name."""
    header = _HEADER.unpack_from(data)
    if header[0][:5] != b"\x7fELF\x02":
        raise ValueError("it does not begin as an ELF file of 64 bits does")
    offset, count, names = header[6], header[12], header[13]
    rows = [_SECTION.unpack_from(data, offset + i * _SECTION.size) for i in range(count)]
    texts = data[rows[names][4] : rows[names][4] + rows[names][5]]
    by_name = {}
    for name, kind, _, _, start, size, _, info, _, _ in rows:
        text = texts[name : texts.index(b"\0", name)].decode()
        by_name[text] = (info, size, b"" if kind == _NO_BITS else data[start : start + size])
    return by_name


def _registers(sections: Sections) -> dict[str, int]:
    """Return the registers of the kernels that ``.nv.info`` refers to by symbol."""
    _, _, symbols = sections.get(".symtab", (0, 0, b""))
    _, _, texts = sections.get(".strtab", (0, 0, b""))
    names = [_SYMBOL.unpack_from(symbols, at)[0] for at in range(0, len(symbols), _SYMBOL.size)]
    counts = {}
    for kind, value in _attributes(sections.get(".nv.info", (0, 0, b""))[2]):
        if kind == _REGISTERS and len(value) >= 8:
            symbol, count = struct.unpack_from("<II", value)
            if symbol < len(names):
                text = texts[names[symbol] :]
                counts[text[: text.index(b"\0")].decode()] = count
    return counts


def _threads(info: bytes) -> int:
    """Return the launch bounds among the attributes of ``.nv.info``."""
    most = 0
    for kind, value in _attributes(info):
        if kind in (_MAX_THREADS, _REQUIRED_THREADS) and len(value) >= 12:
            x, y, z = struct.unpack_from("<III", value)
            most = x * y * z
    return most


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield kind and value of each attribute; it stores its format, its kind, and the value or the value's size."""
    at = 0
    while at + 4 <= len(info):
        form, kind, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == _SIZED:
            yield kind, info[at : at + size]
            at += size
