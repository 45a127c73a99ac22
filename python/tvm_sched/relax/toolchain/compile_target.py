"""`CompileTarget`: the processors, the number of threads and the number format that kernels are compiled for."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import tvm

from ..._library import function as library_function
from ...errors import InputError
from ...runtime.machine import check_threads

NATIVE = "native"
FLOAT32, BFLOAT16, TF32 = "float32", "bfloat16", "tf32"
PORTABLE = "portable"
LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
"""The levels of x86-64's psABI: SSE4.2; AVX2; AVX-512 F, BW, CD, DQ and VL."""


_WITH_BFLOAT16 = frozenset({"avx512bf16", "amx-bf16"})


@dataclass(frozen=True)
class CompileTarget:
    """What the kernels of a module are compiled for; `of` makes it of the values that `CompileOptions` takes.

    Attributes
    ----------
    processors : tuple of str
        ``("native",)``, or levels of x86-64, each of which has more instructions than the one before it.
    threads : int, optional
        Threads of all CPU devices together, unless loading the artifact sets another number. None: all cores.
    precision : {"float32", "bfloat16", "tf32"}
        Number format in which float32 products and convolutions with weights multiply. Their sums are float32.
    cache : bool
        Whether the caches on disk are read and written.
    """

    processors: tuple[str, ...] = (NATIVE,)
    threads: int | None = None
    precision: str = FLOAT32
    cache: bool = True

    @classmethod
    def of(
        cls, processor: str = NATIVE, threads: int | None = None, precision: str = FLOAT32, cache: bool = True
    ) -> CompileTarget:
        """Make a target of the options of the same names in `CompileOptions`.

        Raises
        ------
        InputError
            For another processor or number, or where the processor has no instructions for the precision.
        """
        processors = _processors(processor)
        check_threads(threads)
        _check_precision(precision, processors[0])
        return cls(processors, threads, precision, cache)

    @property
    def host(self) -> tvm.target.Target:
        """The target of code for CPUs that exists once: of the processor, or of the least of several levels."""
        return _target(self.processors[0])

    @property
    def hosts(self) -> dict[str, tvm.target.Target]:
        """The targets of kernels for CPUs, by the suffix of the kernels' names, which is empty if there is one target.

        Each has more instructions than the one before it; `cpp/runtime/processor.cc` chooses among them where an artifact
        is loaded.
        """
        return {_suffix(name) if len(self.processors) > 1 else "": _target(name) for name in self.processors}

    @property
    def host_here(self) -> tvm.target.Target:
        """The target whose kernels run on this machine: the last of `hosts` that it can run, or the first of them."""
        here = set(features_of(_target(NATIVE)))
        fitting = [target for target in self.hosts.values() if set(features_of(target)) <= here]
        return fitting[-1] if fitting else self.host

    def runs_here(self) -> bool:
        """Whether this machine can run what is compiled for the target."""
        return set(features_of(self.host)) <= set(features_of(_target(NATIVE)))

    def in_artifact(self) -> dict[str, int]:
        """Return ``{"threads": n}`` for a plan or a document of kernels, if a number was given."""
        return {"threads": self.threads} if self.threads else {}


def _processors(given: str) -> tuple[str, ...]:
    """Return the processors that the option ``processor`` names, in ascending order."""
    if given == NATIVE:
        return (NATIVE,)
    names = LEVELS if given == PORTABLE else tuple(name.strip() for name in given.split(","))
    if platform.machine() != "x86_64" or not set(names) <= set(LEVELS):
        allowed = f"{NATIVE}, {PORTABLE}, {', '.join(LEVELS)} and several of these levels separated by commas"
        only = allowed if platform.machine() == "x86_64" else NATIVE
        raise InputError(f"processor is {given!r}; on {platform.machine()}, allowed are {only}")
    return tuple(level for level in LEVELS if level in names)


def _check_precision(precision: str, processor: str) -> None:
    if precision == BFLOAT16 and _WITH_BFLOAT16.isdisjoint(features_of(_target(processor))):
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
    # LLVM goes by the model of the processor, of which a virtual machine or the firmware may hide a part.
    hidden = sorted(set(features_of(model)) - set(library_function("tvm_sched.own_features")()))
    if not hidden:
        return model
    return tvm.target.Target({"kind": "llvm", "mcpu": name, "mattr": [f"-{each}" for each in hidden]})


@cache
def features_of(target: tvm.target.Target) -> tuple[str, ...]:
    """The instruction sets of a target for CPUs that the runtime knows (``cpp/runtime/processor.cc``), by LLVM's names."""
    known = set(library_function("tvm_sched.known_features")())
    return tuple(sorted(known & {str(feature) for feature in tvm.target.codegen.llvm_get_cpu_features(target)}))


def needs_of(targets: Mapping[str, tvm.target.Target]) -> dict[str, Any]:
    """Metadata of an artifact on the processor that its kernels need; ``cpp/runtime/processor.cc`` reads it.

    ``targets`` are as `CompileTarget.hosts` has them. Of several, the artifact needs the first, and ``levels`` are all.
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
