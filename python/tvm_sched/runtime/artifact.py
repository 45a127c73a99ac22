"""Loading of an artifact's file: what is checked before the dynamic loader may touch it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import mmap
import os
import shutil
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

from .. import _library
from ..errors import InputError

_WHAT = "an artifact is what `tvm-sched compile` or `export_library` wrote (.so)"
_SYMBOL = b"__tvm_ffi__library_bin"
"""Symbol of the modules inside of a library that TVM exported."""
_SEAL = b"\ntvm_sched.sha256:"
"""Behind the library, where the dynamic loader does not look; then comes the digest of all that stands before."""
_DIGEST_SIZE = hashlib.sha256().digest_size

_Version = tuple[int, int, int, int]
_loaded: dict[str, _Version] = {}
"""Device, inode, time and size of each file as this process loaded it first."""


def check_library(file: Path) -> None:
    """Refuse what is no artifact, or only a part of one: loading it could end the process with a bus error.

    Raises
    ------
    InputError
        With the file and what is wrong with it.
    """
    if not file.is_file():
        raise InputError(f"{file}: there is no such file; {_WHAT}")
    try:
        with file.open("rb") as opened:
            head = opened.read(64)
            if not head.startswith(b"\x7fELF"):
                raise InputError(f"{file}: not a shared library; {_WHAT}")
            size = os.fstat(opened.fileno()).st_size
            if len(head) < 64 or _needed_bytes(head, opened) > size:
                raise InputError(
                    f"{file}: has {size} bytes, less than its header says: it was cut off; compile it again"
                )
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if content.find(_SYMBOL) < 0:
                    raise InputError(f"{file}: a shared library, but not of TVM; {_WHAT}")
                if not _is_whole(content):
                    raise InputError(
                        f"{file}: was altered after it was compiled: its checksum is another; copy or compile it again"
                    )
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror or error})") from None


def seal(file: Path) -> None:
    """Append a checksum of the whole library, its kernels' code too, for `check_library` to look at.

    It tells damage, not malice. What TVM's own ``export_library`` wrote has none; the checksum of the plans and the
    parameters in it, which the executor looks at, is there in either case.

    Raises
    ------
    OSError
        The file cannot be read or written.
    """
    with file.open("r+b") as opened:
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            digest = hashlib.sha256(content).digest()
        opened.seek(0, os.SEEK_END)
        opened.write(_SEAL + digest)


def _is_whole(content: mmap.mmap) -> bool:
    """Whether a file is what it was when it was sealed; so is one that never was."""
    end = len(content) - _DIGEST_SIZE - len(_SEAL)
    if end < 0 or content[end : end + len(_SEAL)] != _SEAL:
        return True
    with memoryview(content) as view, view[:end] as body:
        return hashlib.sha256(body).digest() == content[end + len(_SEAL) :]


def _needed_bytes(head: bytes, opened: Any) -> int:
    """Bytes that the file must have by its ELF header: the section table comes last; segments are mapped."""
    if head[4] != 2:  # 32 bits: left to the loader, which refuses it
        return 0
    order = "<" if head[5] == 1 else ">"
    segments, sections = struct.unpack_from(f"{order}QQ", head, 32)
    segment_size, segment_count, section_size, section_count = struct.unpack_from(f"{order}HHHH", head, 54)
    needed = max(segments + segment_size * segment_count, sections + section_size * section_count)
    opened.seek(segments)
    for _ in range(segment_count):
        entry = opened.read(segment_size)
        if len(entry) < 56:
            break
        offset, in_file = struct.unpack_from(f"{order}Q", entry, 8)[0], struct.unpack_from(f"{order}Q", entry, 32)[0]
        needed = max(needed, offset + in_file)
    return int(needed)


def load_library(file: Path) -> Any:
    """Load a checked artifact; one that was written anew since this process loaded it is loaded anew.

    The dynamic loader knows libraries by name and inode, and would hand out the old one.
    """
    tvm_ffi = _library.ffi()
    _load_tvm_runtime()
    _library.function("tvm_sched.take_parallel_loops")()
    path = file.resolve()
    said = path.stat()
    version = (said.st_dev, said.st_ino, said.st_mtime_ns, said.st_size)
    if path.suffix == ".so" and _loaded.setdefault(str(path), version) == version:
        return tvm_ffi.load_module(str(path), keep_module_alive=False)
    with tempfile.TemporaryDirectory(prefix="tvm-sched-") as folder:
        return tvm_ffi.load_module(shutil.copy(path, Path(folder) / "artifact.so"), keep_module_alive=False)


@functools.cache
def _load_tvm_runtime() -> None:
    """Load TVM's runtime libraries: those of the package where TVM is installed, else those beside ours.

    Its kernels call them, and an executable of its virtual machine is read by them. Importing the package would load the
    compiler as well, which takes seconds. Two copies in one process would both register what they have.
    """
    if "tvm" in sys.modules:
        return
    package = importlib.util.find_spec("tvm")
    named = os.environ.get("TVM_LIBRARY_PATH")
    folders = [named] if named else []
    if package is None:
        folders.append(str(_library.library_path().parent))
    else:
        folders += [f"{place}/lib" for place in package.submodule_search_locations or ()]
    for name in ("libtvm_runtime.so", "libtvm_runtime_extra.so"):
        found = next((file for file in (Path(folder, name) for folder in folders) if file.is_file()), None)
        if found is not None:
            ctypes.CDLL(str(found), ctypes.RTLD_GLOBAL)
        elif package is not None and name == "libtvm_runtime.so":  # laid out in another way: TVM knows
            import tvm.runtime  # noqa: F401
