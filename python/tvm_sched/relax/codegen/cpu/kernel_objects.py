"""CPU kernels as separate object files: compiled once, cached on disk, and linked into the modules that call them.

An object is known by the kernel's content, the target and the compiler, and not by the kernel's name, which depends on the
model that it stands in: so models share them. Linking gives the names.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import tvm
import tvm_ffi
from tvm import tirx

from ...._library import library_path
from ....blob_cache import kernel_cache
from ...toolchain.failures import explained
from ...toolchain.linking import can_link, link
from .kernels import compile_kernels

_SYMBOL = "__tvm_ffi_"
"""What TVM's code generator puts before the name of a function that other modules can call."""


def load_kernels(functions: Mapping[str, tirx.PrimFunc], host: tvm.target.Target) -> tvm.runtime.Module:
    """Kernels as loaded code, by their names."""
    if not can_link():
        return compile_kernels(functions, host)
    return _linked(functions, host, "kernels.so", "-shared", tvm.runtime.load_module)


def static_kernels(functions: Mapping[str, tirx.PrimFunc], host: tvm.target.Target) -> tvm.runtime.Module:
    """Kernels as a module for an executable that is exported: it holds their code, and cannot run it."""
    if not can_link():
        return compile_kernels(functions, host)
    names = list(functions)
    return _linked(functions, host, "kernels.o", "-r", lambda path: tvm.runtime.load_static_library(path, names))


def _linked(
    functions: Mapping[str, tirx.PrimFunc],
    host: tvm.target.Target,
    name: str,
    how: str,
    read: Callable[[str], tvm.runtime.Module],
) -> tvm.runtime.Module:
    """What ``read`` makes of the file that the linker makes of the kernels' objects."""
    keys = {name: _key(function, host) for name, function in functions.items()}
    objects = _objects(
        {key: functions[name] for name, key in keys.items()}, host, {k: name for name, k in keys.items()}
    )
    with tempfile.TemporaryDirectory(prefix="tvm_sched_kernels_") as folder:
        for key, content in objects.items():
            Path(folder, f"{key}.o").write_bytes(content)
        given = [f"--defsym={_SYMBOL}{name}={_SYMBOL}{_name(key)}" for name, key in keys.items()]
        response = Path(folder, "arguments")
        response.write_text("\n".join([*given, *(f"{key}.o" for key in objects)]))
        link([how, "-o", name, f"@{response}"], Path(folder))
        return read(str(Path(folder, name)))


def _objects(
    functions: Mapping[str, tirx.PrimFunc], host: tvm.target.Target, names: Mapping[str, str]
) -> Mapping[str, bytes]:
    """The object file of each kernel, by its key: from the cache, or compiled now and kept there.

    Those of the last call are held, too: the same kernels are measured, and then become part of an artifact. ``names`` are
    the kernels' own, by key, for messages.
    """
    global _latest
    held = _latest  # another thread may replace it
    found = {key: held[key] for key in functions if key in held}
    kept = kernel_cache()
    found |= kept.find(functions.keys() - found.keys())
    made = {}
    for key in [key for key in functions if key not in found]:
        with explained(f"kernel {names[key]!r}"):
            made[key] = _compile(_name(key), functions[key], host)
    kept.keep(made)
    _latest = found | made
    return _latest


_latest: Mapping[str, bytes] = {}


def _compile(name: str, function: tirx.PrimFunc, host: tvm.target.Target) -> bytes:
    module = compile_kernels({name: function}, host)
    with tempfile.NamedTemporaryFile(suffix=".o") as file:
        module.write_to_file(file.name)
        return Path(file.name).read_bytes()


def _name(key: str) -> str:
    return f"tvm_sched_kernel_{key[:32]}"


def _key(function: tirx.PrimFunc, host: tvm.target.Target) -> str:
    """Digest of all that a kernel's machine code depends on.

    The text of a function leaves out large constants, and the structural hash has 64 bits; both together have neither fault.
    """
    bare = function.without_attr("global_symbol")
    content = (tvm_ffi.structural_hash(bare, map_free_vars=True), bare.script(), str(host), compiler_digest())
    return hashlib.sha256("\n".join(map(str, content)).encode()).hexdigest()


@cache
def compiler_digest() -> str:
    """Digest of what makes code of a kernel's description: TVM's version, our libraries and all of `tvm_sched.relax`."""
    digest = hashlib.sha256(f"{tvm.__version__} {tvm.target.codegen.llvm_version_major()}".encode())
    for file in _sources():
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _sources() -> list[Path]:
    return sorted([*library_path().parent.glob("*.so"), *Path(__file__).parents[2].rglob("*.py")])
