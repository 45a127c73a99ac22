"""Load an artifact's file, after checks that must come before the dynamic loader opens it."""

from __future__ import annotations

import ctypes
import functools
import glob
import hashlib
import importlib.util
import mmap
import os
import shutil
import struct
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from .. import core_library, startup
from ..errors import InputError
from .parameters import MARK_SIZE, written_mark

_WHAT = "an artifact is what `tvm-sched compile` or `export_library` wrote (.so)"
_SYMBOL = b"__tvm_ffi__library_bin"
"""Symbol of the modules inside of a library that TVM exported."""
_SEAL = b"\ntvm_sched.sha256:"
"""Mark after the library's content, which the dynamic loader ignores; the digest of all bytes before it follows."""
_DIGEST_SIZE = hashlib.sha256().digest_size
_PARAMETERS = b"\ntvm_sched.parameters:"
"""Mark before the seal of an artifact with external parameters; the mark of their file follows."""

_Version = tuple[int, int, int, int]
_loaded: dict[str, _Version] = {}
"""Device, inode, time and size of each file at this process's first load of it."""


def check_library(file: Path) -> None:
    """Refuse files that are not a complete artifact, since loading them could end the process with a bus error.

    Raises
    ------
    InputError
        The file is incomplete or damaged; the message says how.
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


def seal(file: Path, parameters: str | None = None) -> None:
    """Append a checksum of the whole library, including its kernels' code, for `check_library`.

    It detects damage, not malice. Files of TVM's own ``export_library`` have none. The executor checks plans and embedded
    parameters by a separate checksum, which all artifacts have.

    Parameters
    ----------
    parameters : str, optional
        The mark of the parameter file that belongs to the library: the result of `write_parameters`.

    Raises
    ------
    OSError
        The file cannot be read or written.
    """
    with file.open("r+b") as opened:
        if parameters is not None:
            opened.seek(0, os.SEEK_END)
            opened.write(_PARAMETERS + parameters.encode())
            opened.flush()
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            digest = hashlib.sha256(content).digest()
        opened.seek(0, os.SEEK_END)
        opened.write(_SEAL + digest)


def move_artifact(library: Path, parameters: Path | None, target: Path) -> list[Path]:
    """Move a sealed library to ``target``, and its parameters beside it; a whole artifact exists at any moment.

    No system renames two files at once. So the old parameters keep a second, hidden name until the library is replaced;
    `parameters_beside` finds them there if this process is killed in between.

    Returns
    -------
    list of Path
        The files written, the library first.

    Raises
    ------
    OSError
    """
    beside = target.with_suffix(".safetensors")
    if parameters is not None:
        mark = written_mark(beside)
        if mark is not None:
            with suppress(OSError):  # it exists, or the file system has no links; loading detects a mismatch
                os.link(beside, _second_name(beside, mark))
        os.replace(parameters, beside)
    os.replace(library, target)
    for left in target.parent.glob(_second_name(Path(glob.escape(beside.name)), "[0-9a-f]" * MARK_SIZE).name):
        left.unlink(missing_ok=True)
    return [target, beside] if parameters is not None else [target]


def parameters_beside(file: Path) -> Path | None:
    """Return the file beside an artifact that has its parameters; None if there is none.

    A file of another program has no mark and is accepted; reading it checks names, shapes and types.

    Raises
    ------
    InputError
        The existing files are of another compilation.
    """
    beside = file.with_suffix(".safetensors")
    if not beside.is_file():
        return None
    mark, recorded = _sealed_mark(file), written_mark(beside)
    if mark is None or recorded is None or recorded == mark:
        return beside
    kept = _second_name(beside, mark)
    if kept.is_file():
        return kept
    raise InputError(
        f"{beside}: holds the parameters of another compilation than {file}; compile it again, or name the file as its "
        "parameters where it is meant"
    )


def _second_name(parameters: Path, mark: str) -> Path:
    return parameters.with_name(f".{parameters.stem}.{mark}.safetensors")


def _sealed_mark(file: Path) -> str | None:
    """Return the mark of the parameters that `seal` wrote into an artifact."""
    size = len(_PARAMETERS) + MARK_SIZE
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - size - len(_SEAL) - _DIGEST_SIZE))
        end = opened.read(size)
    return end[len(_PARAMETERS) :].decode("ascii", "replace") if end.startswith(_PARAMETERS) else None


def _is_whole(content: mmap.mmap) -> bool:
    """Return whether a file is unchanged since it was sealed; a file without a seal counts as unchanged."""
    end = len(content) - _DIGEST_SIZE - len(_SEAL)
    if end < 0 or content[end : end + len(_SEAL)] != _SEAL:
        return True
    with memoryview(content) as view, view[:end] as body:
        return hashlib.sha256(body).digest() == content[end + len(_SEAL) :]


def _needed_bytes(head: bytes, opened: Any) -> int:
    """Return the least bytes of the file by its ELF header: the section table comes last; segments are mapped."""
    if head[4] != 2:  # 32 bits: the loader refuses it
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
    """Load a checked artifact; one that was replaced since this process loaded it is loaded again.

    The dynamic loader identifies libraries by name and inode, and would return the old one.
    """
    tvm_ffi = startup.ffi()
    _load_tvm_runtime()
    core_library.function("tvm_sched.take_parallel_loops")()
    path = file.resolve()
    status = path.stat()
    version = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
    if path.suffix == ".so" and _loaded.setdefault(str(path), version) == version:
        return tvm_ffi.load_module(str(path), keep_module_alive=False)
    with tempfile.TemporaryDirectory(prefix="tvm-sched-") as folder:
        return tvm_ffi.load_module(shutil.copy(path, Path(folder) / "artifact.so"), keep_module_alive=False)


@functools.cache
def _load_tvm_runtime() -> None:
    """Load TVM's runtime libraries: from the package if TVM is installed, else from beside ours.

    TVM's kernels call them, and they read executables of its virtual machine. Importing the package would also load the
    compiler, which takes seconds. Two copies in one process would both register their functions.
    """
    if "tvm" in sys.modules:
        return
    package = importlib.util.find_spec("tvm")
    named = os.environ.get("TVM_LIBRARY_PATH")
    folders = [named] if named else []
    if package is None:
        folders.append(str(core_library.library_path().parent))
    else:
        folders += [f"{place}/lib" for place in package.submodule_search_locations or ()]
    for name in ("libtvm_runtime.so", "libtvm_runtime_extra.so"):
        library = next((file for file in (Path(folder, name) for folder in folders) if file.is_file()), None)
        if library is not None:
            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
        elif package is not None and name == "libtvm_runtime.so":  # in another layout, which TVM knows
            import tvm.runtime  # noqa: F401
