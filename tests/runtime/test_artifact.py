"""Files that are no artifact, or half of one, are refused before the dynamic loader sees them."""

from __future__ import annotations

import struct
import sys

import pytest

from tvm_sched_runtime import runtime
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.runtime.artifact import check_library

SYMBOL = b"__tvm_ffi__library_bin"


def elf(size: int, content: bytes = SYMBOL) -> bytes:
    """A 64-bit ELF file with one segment of ``size`` bytes in the file and no sections."""
    head = bytearray(64)
    head[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<QQ", head, 32, 64, 0)
    struct.pack_into("<HHHH", head, 54, 56, 1, 64, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, size, size, 4096)
    return bytes(head) + segment + content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a shared library"),
        (b"PK\x03\x04 zip", "not a shared library"),
        (b"\x7fELF", "cut off"),
        (elf(1000), "has 142 bytes.*cut off"),
        (elf(120, b"something else"), "not of TVM"),
    ],
)
def test_refused(tmp_path, content, message):
    path = tmp_path / "model.so"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        runtime.load(path)


def test_accepted(tmp_path):
    path = tmp_path / "model.so"
    path.write_bytes(elf(142))
    check_library(path)


def test_missing(tmp_path):
    for path in (tmp_path / "none.so", tmp_path):
        with pytest.raises(InputError, match="there is no such file"):
            runtime.load(path)


@pytest.mark.skipif(sys.platform != "linux", reason="ELF")
def test_a_library_of_somebody_else(tmp_path):
    import numpy.linalg._umath_linalg as somebody

    with pytest.raises(InputError, match="not of TVM"):
        runtime.load(somebody.__file__)
