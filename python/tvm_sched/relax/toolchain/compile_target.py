"""`CompileTarget`: the processors, the number of threads and the number format that kernels are compiled for."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import tvm

from tvm_sched_runtime.core_library import function as library_function
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.runtime.machine import check_threads

NATIVE = "native"
FLOAT32, BFLOAT16, TF32 = "float32", "bfloat16", "tf32"
PORTABLE = "portable"
LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
"""The levels of x86-64's psABI: SSE4.2; AVX2; AVX-512 F, BW, CD, DQ and VL."""
WITH_BFLOAT16 = frozenset({"avx512bf16", "amx-bf16"})


@dataclass(frozen=True)
class CompileTarget:
    """The processors and number format that kernels are compiled for; `of` converts the values of `CompileOptions`.

    Examples
    --------
    >>> from tvm_sched.relax.toolchain.compile_target import CompileTarget
    >>> CompileTarget(threads=2).threads
    2
    """

    processors: tuple[str, ...] = (NATIVE,)
    """``("native",)``, or levels of x86-64 in ascending order."""
    threads: int | None = None
    """Threads of all CPU devices together, which loading the artifact can override. None: all cores."""
    precision: str = FLOAT32
    """Number format in which float32 products and convolutions with weights multiply. Sums are in float32."""
    cache: bool = True
    """Whether the caches on disk are read and written."""

    @classmethod
    def of(
        cls, processor: str = NATIVE, threads: int | None = None, precision: str = FLOAT32, cache: bool = True
    ) -> CompileTarget:
        """Make a target from the options of the same names in `CompileOptions`.

        Raises
        ------
        InputError
            Unknown processor, invalid number of threads, or a processor without instructions for the precision.
        """
        processors = processors_of(processor)
        check_threads(threads)
        _check_precision(precision, processors[0])
        return cls(processors, threads, precision, cache)

    @property
    def host(self) -> tvm.target.Target:
        """The target of CPU code that is compiled once: the processor, or the lowest of several levels."""
        return _target(self.processors[0])

    @property
    def hosts(self) -> dict[str, tvm.target.Target]:
        """The targets of CPU kernels in ascending order, by the suffix of kernel names, empty for a single target.

        `cpp/runtime/processor.cc` chooses among them when an artifact is loaded.
        """
        return {_suffix(name) if len(self.processors) > 1 else "": _target(name) for name in self.processors}

    @property
    def host_here(self) -> tvm.target.Target:
        """The target whose kernels this machine uses: the last of `hosts` that it can run, else the first."""
        here = set(features_of(_target(NATIVE)))
        fitting = [target for target in self.hosts.values() if set(features_of(target)) <= here]
        return fitting[-1] if fitting else self.host

    def runs_here(self) -> bool:
        """Whether this machine can run code for the target."""
        return set(features_of(self.host)) <= set(features_of(_target(NATIVE)))

    def in_artifact(self) -> dict[str, int]:
        """Return ``{"threads": n}`` for a plan or a document of kernels; empty if the number of threads is not set."""
        return {"threads": self.threads} if self.threads else {}


def processors_of(option: str) -> tuple[str, ...]:
    """Return the processors that the option ``processor`` names, in ascending order.

    Examples
    --------
    >>> from tvm_sched.relax.toolchain.compile_target import processors_of
    >>> processors_of("native")
    ('native',)
    """
    if option == NATIVE:
        return (NATIVE,)
    names = LEVELS if option == PORTABLE else tuple(name.strip() for name in option.split(","))
    if platform.machine() != "x86_64" or not set(names) <= set(LEVELS):
        allowed = f"{NATIVE}, {PORTABLE}, {', '.join(LEVELS)} and several of these levels separated by commas"
        only = allowed if platform.machine() == "x86_64" else NATIVE
        raise InputError(f"processor is {option!r}; on {platform.machine()}, allowed are {only}")
    return tuple(level for level in LEVELS if level in names)


def _check_precision(precision: str, processor: str) -> None:
    if precision == BFLOAT16 and WITH_BFLOAT16.isdisjoint(features_of(_target(processor))):
        raise InputError(
            f"precision is 'bfloat16', and the processor ({processor}) has no instructions for it (AVX512-BF16 or AMX): "
            "oneDNN would emulate them, slower than float32; leave it out, or compile on and for a processor that has them"
        )


def _suffix(processor: str) -> str:
    return f"__{processor.replace('-', '_')}"


@cache
def _target(processor: str) -> tvm.target.Target:
    if processor != NATIVE:
        return tvm.target.Target({"kind": "llvm", "mcpu": processor})
    name = tvm.target.codegen.llvm_get_system_cpu()
    model = tvm.target.Target({"kind": "llvm", "mcpu": name})
    # LLVM derives features from the processor's model, but a virtual machine or the firmware may hide some.
    hidden = sorted(set(features_of(model)) - set(library_function("tvm_sched.own_features")()))
    if not hidden:
        return model
    return tvm.target.Target({"kind": "llvm", "mcpu": name, "mattr": [f"-{each}" for each in hidden]})


@cache
def features_of(target: tvm.target.Target) -> tuple[str, ...]:
    """Return a CPU target's instruction sets that the runtime knows (``cpp/runtime/processor.cc``), by LLVM's names.

    Examples
    --------
    >>> import tvm
    >>> from tvm_sched.relax.toolchain.compile_target import features_of
    >>> features_of(tvm.target.Target({"kind": "llvm", "mcpu": "haswell", "mtriple": "x86_64-linux-gnu"}))
    ('avx', 'avx2', 'bmi', 'bmi2', 'f16c', 'fma', 'lzcnt', 'movbe', 'popcnt', 'sse3', 'sse4.1', 'sse4.2', 'ssse3')
    """
    known = set(library_function("tvm_sched.known_features")())
    return tuple(sorted(known & {str(feature) for feature in tvm.target.codegen.llvm_get_cpu_features(target)}))


def needs_of(targets: Mapping[str, tvm.target.Target]) -> dict[str, Any]:
    """Return an artifact's metadata about the processor that it needs, which ``cpp/runtime/processor.cc`` reads.

    ``targets`` are those of `CompileTarget.hosts`. The artifact needs the first; ``levels`` lists all if there are several.

    Examples
    --------
    >>> import tvm
    >>> from tvm_sched.relax.toolchain.compile_target import needs_of
    >>> haswell = tvm.target.Target({"kind": "llvm", "mcpu": "haswell", "mtriple": "x86_64-linux-gnu"})
    >>> needs_of({"haswell": haswell})["processor"]["name"]
    'haswell'
    """
    first = next(iter(targets.values()))
    if first.kind.name != "llvm":
        return {}
    levels = [
        {"name": str(target.attrs.get("mcpu", "")), "features": list(features_of(target)), "suffix": suffix}
        for suffix, target in targets.items()
    ]
    least = {key: levels[0][key] for key in ("name", "features")}
    return {"processor": {**least, **({"levels": levels} if len(levels) > 1 else {})}}
