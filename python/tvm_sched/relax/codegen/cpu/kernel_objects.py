"""CPU kernels as separate object files: compiled once, cached on disk, and linked into the modules that call them.

The cache key consists of the kernel's content, the target and the compiler, but not the kernel's name, so models share
objects. Linking sets the names.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx.build import codegen_build

from tvm_sched_runtime.core_library import library_path
from tvm_sched_runtime.cores import cores

from ....blob_cache import BlobCache, kernel_cache
from ....progress import report_progress
from ...toolchain.failures import explained
from ...toolchain.linking import can_link, link
from .kernels import compile_kernels, has_assertions, lower_kernels

_SYMBOL = "__tvm_ffi_"
"""Prefix that TVM's code generator gives to the names of exported functions."""


def load_kernels(
    functions: Mapping[str, tirx.PrimFunc], host: tvm.target.Target, cache: bool = True
) -> tvm.runtime.Module:
    """Return kernels as a loaded module; ``cache``: whether to use the cache on disk."""
    if not can_link():
        return compile_kernels(functions, host)
    return _linked(functions, host, kernel_cache(cache), "kernels.so", "-shared", tvm.runtime.load_module)


def static_kernels(
    functions: Mapping[str, tirx.PrimFunc], host: tvm.target.Target, cache: bool = True
) -> tvm.runtime.Module:
    """Return kernels as a module that an executable can export but that cannot run; ``cache`` as in `load_kernels`."""
    if not can_link():
        return compile_kernels(functions, host)
    names = list(functions)
    kept = kernel_cache(cache)
    return _linked(functions, host, kept, "kernels.o", "-r", lambda path: tvm.runtime.load_static_library(path, names))


def _linked(
    functions: Mapping[str, tirx.PrimFunc],
    host: tvm.target.Target,
    kept: BlobCache,
    name: str,
    how: str,
    read: Callable[[str], tvm.runtime.Module],
) -> tvm.runtime.Module:
    """Link the kernels' objects to a file, and return the module that ``read`` loads from it."""
    keys = {name: _key(function, host) for name, function in functions.items()}
    by_key = {key: functions[name] for name, key in keys.items()}
    objects = objects_of(by_key, host, kept, {key: name for name, key in keys.items()})
    with tempfile.TemporaryDirectory(prefix="tvm_sched_kernels_") as folder:
        for key, content in objects.items():
            Path(folder, f"{key}.o").write_bytes(content)
        symbols = [f"--defsym={_SYMBOL}{name}={_SYMBOL}{_name(key)}" for name, key in keys.items()]
        response = Path(folder, "arguments")
        response.write_text("\n".join([*symbols, *(f"{key}.o" for key in objects)]))
        link([how, "-o", name, f"@{response}"], Path(folder))
        return read(str(Path(folder, name)))


def objects_of(
    functions: Mapping[str, tirx.PrimFunc], host: tvm.target.Target, kept: BlobCache, names: Mapping[str, str]
) -> Mapping[str, bytes]:
    """Return the object files of kernels by key, from the cache or newly compiled.

    The objects of the last call are also kept in memory, since kernels are measured and then become part of an artifact.
    ``names`` are the kernels' names by key, for messages.
    """
    global latest_objects
    held = latest_objects  # another thread may replace it
    objects = {key: held[key] for key in functions if key in held}
    objects |= kept.find(functions.keys() - objects.keys())
    compiled = compile_objects(
        {key: function for key, function in functions.items() if key not in objects}, host, kept, names
    )
    latest_objects = objects | compiled
    return latest_objects


latest_objects: Mapping[str, bytes] = {}

KEPT_AT_ONCE = 16
"""Kernels that go into the cache in one transaction."""


def compile_objects(
    functions: Mapping[str, tirx.PrimFunc], host: tvm.target.Target, kept: BlobCache, names: Mapping[str, str]
) -> dict[str, bytes]:
    """Return the object files of kernels by key, compiled by as many threads as there are cores.

    Objects go into the cache while others are compiled, so that an interrupted compilation goes on where it was.
    """
    lowered: dict[str, tvm.IRModule] = {}
    if functions:
        report_progress("compiling kernels", 0, len(functions))
    for asserts in (False, True):
        alike = {key: function for key, function in functions.items() if has_assertions(function) == asserts}
        lowered |= _lower(alike, host, names)

    def compile_one(key: str) -> bytes:
        with explained(f"kernel {names[key]!r}"), tempfile.NamedTemporaryFile(suffix=".o") as file:
            codegen_build(lowered[key], host).write_to_file(file.name)
            return Path(file.name).read_bytes()

    compiled: dict[str, bytes] = {}
    new: dict[str, bytes] = {}
    with ThreadPoolExecutor(cores()) as pool:
        for key, content in zip(lowered, pool.map(compile_one, lowered), strict=True):
            compiled[key] = new[key] = content
            if len(new) == KEPT_AT_ONCE:
                kept.keep(new)
                new = {}
            report_progress("compiling kernels", len(compiled), len(lowered))
    kept.keep(new)
    return compiled


def _lower(
    functions: Mapping[str, tirx.PrimFunc], host: tvm.target.Target, names: Mapping[str, str]
) -> dict[str, tvm.IRModule]:
    """Return a module for the code generator for each kernel, by key."""
    if not functions:
        return {}
    keys = {_name(key): key for key in functions}
    try:
        module = lower_kernels({name: functions[key] for name, key in keys.items()}, host)
    except Exception:  # find the kernel that cannot be lowered
        for name, key in keys.items():
            with explained(f"kernel {names[key]!r}"):
                lower_kernels({name: functions[key]}, host)
        raise
    modules: dict[str, dict[tvm.ir.GlobalVar, tirx.PrimFunc]] = {key: {} for key in functions}
    for variable, function in module.functions_items():
        # A kernel for a GPU leaves a second function, whose name begins with the kernel's.
        key = keys[str(variable.name_hint)[:_NAME_LENGTH]]
        # A kernel that is lowered alone is marked as the entry of its module, for which TVM would generate a function.
        modules[key][variable] = function.without_attr("tirx.is_entry_func")
    return {key: tvm.IRModule(module) for key, module in modules.items()}


def _name(key: str) -> str:
    return f"tvm_sched_kernel_{key[:32]}"


_NAME_LENGTH = len(_name("0" * 64))


def _key(function: tirx.PrimFunc, host: tvm.target.Target) -> str:
    """Return a digest of everything that a kernel's machine code depends on.

    The text of a function omits large constants, and the structural hash has only 64 bits, so the digest covers both.
    """
    bare = function.without_attr("global_symbol")
    content = (tvm_ffi.structural_hash(bare, map_free_vars=True), bare.script(), str(host), compiler_digest())
    return hashlib.sha256("\n".join(map(str, content)).encode()).hexdigest()


@cache
def compiler_digest() -> str:
    """Return a digest of the compiler: TVM's and LLVM's versions, our libraries, and the sources in `_COMPILER`."""
    return digest_of_compiler(Path(__file__).parents[2])


_COMPILER = ("ir", "codegen")
"""Folders of `tvm_sched.relax` whose code determines the content of object files."""


def digest_of_compiler(relax: Path) -> str:
    """Return `compiler_digest` for the sources in a folder, a copy of `tvm_sched.relax`."""
    digest = hashlib.sha256(f"{tvm.__version__} {tvm.target.codegen.llvm_version_major()}".encode())
    for file in compiler_sources(relax):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def compiler_sources(relax: Path) -> list[Path]:
    """Return the files in a copy of `tvm_sched.relax`, and the libraries, that determine the content of object files."""
    sources = [file for folder in _COMPILER for file in (relax / folder).rglob("*.py")]
    return [*sorted(library_path().parent.glob("*.so")), *sorted(sources)]
