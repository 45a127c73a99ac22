"""What a compiled CUDA kernel takes of a multiprocessor, read from its cubin: no GPU is needed."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import msgspec

from ..errors import FormatError

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NO_BITS = 8
_MAX_THREADS, _REQUIRED_THREADS, _SIZED = 0x05, 0x10, 0x04


class CompiledKernel(msgspec.Struct, frozen=True):
    """A kernel of a cubin.

    Parameters
    ----------
    registers : int
        Of each thread.
    shared_memory : int
        Static bytes of each block; what a launch adds is not in the cubin.
    threads : int
        Most threads of a block for which it was compiled (``__launch_bounds__``); 0 where it does not say.
    """

    registers: int
    shared_memory: int
    threads: int


def read_cubin(path: str | os.PathLike[str]) -> dict[str, CompiledKernel]:
    """The kernels of a cubin by name, as ``nvcc -cubin`` writes it.

    A cubin is an ELF file. Each kernel has a section ``.text.NAME``, whose ``sh_info`` holds the registers of a thread in
    its highest byte, perhaps ``.nv.shared.NAME``, whose size is the static shared memory, and ``.nv.info.NAME`` with its
    launch bounds.

    Raises
    ------
    FormatError
        The file is no cubin of 64 bits.
    """
    where = os.fspath(path)
    data = Path(path).read_bytes()
    try:
        sections = _sections(data)
    except (struct.error, ValueError, UnicodeDecodeError) as error:
        raise FormatError(f"{where} is no cubin ({error}); make one with nvcc -cubin") from None
    kernels = {}
    for name, (info, _, _) in sections.items():
        if name.startswith(".text."):
            kernel = name.removeprefix(".text.")
            shared = sections.get(f".nv.shared.{kernel}", (0, 0, b""))[1]
            threads = _threads(sections.get(f".nv.info.{kernel}", (0, 0, b""))[2])
            kernels[kernel] = CompiledKernel(info >> 24, shared, threads)
    return kernels


def _sections(data: bytes) -> dict[str, tuple[int, int, bytes]]:
    """``sh_info``, size and content of each section by name."""
    header = _HEADER.unpack_from(data)
    if header[0][:5] != b"\x7fELF\x02":
        raise ValueError("it does not begin as an ELF file of 64 bits does")
    offset, count, names = header[6], header[12], header[13]
    rows = [_SECTION.unpack_from(data, offset + i * _SECTION.size) for i in range(count)]
    texts = data[rows[names][4] : rows[names][4] + rows[names][5]]
    found = {}
    for name, kind, _, _, start, size, _, info, _, _ in rows:
        text = texts[name : texts.index(b"\0", name)].decode()
        found[text] = (info, size, b"" if kind == _NO_BITS else data[start : start + size])
    return found


def _threads(info: bytes) -> int:
    """Launch bounds among the attributes of ``.nv.info``: each has a format, a kind and a value or the size of one."""
    at, most = 0, 0
    while at + 4 <= len(info):
        form, kind, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == _SIZED:
            if kind in (_MAX_THREADS, _REQUIRED_THREADS) and size >= 12:
                x, y, z = struct.unpack_from("<III", info, at)
                most = x * y * z
            at += size
    return most
