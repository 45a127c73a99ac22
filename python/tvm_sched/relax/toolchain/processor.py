"""The processor levels and the number of threads that kernels are compiled for."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

import tvm

from ..._library import function as library_function
from ..._library import use_cores
from ...errors import InputError
from ...runtime.machine import check_threads

NATIVE = "native"
FLOAT32, BFLOAT16, TF32 = "float32", "bfloat16", "tf32"
PORTABLE = "portable"
LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
"""The levels of x86-64's psABI: SSE4.2; AVX2; AVX-512 F, BW, CD, DQ and VL."""


_WITH_BFLOAT16 = frozenset({"avx512bf16", "amx-bf16"})


@dataclass(frozen=True)
class _Machine:
    """``processors``: LLVM's names, each of more than the one before; ``threads``: 0 for all cores of where it is loaded."""

    processors: tuple[str, ...] = (NATIVE,)
    threads: int = 0
    precision: str = FLOAT32


_HERE = _Machine()
_chosen: ContextVar[_Machine] = ContextVar("tvm_sched_machine", default=_HERE)


@contextmanager
def compiling_for(processor: str = NATIVE, threads: int | None = None, precision: str = FLOAT32) -> Iterator[None]:
    """Compile kernels for a processor, and modules that use this many threads where loading says nothing else.

    Parameters
    ----------
    processor : str
        ``"native"``, this machine's; a level (`LEVELS`), any of it; several levels with commas, or ``"portable"`` for all:
        kernels for each, of which those of the highest that a machine has run there.
    threads : int, optional
        Of all devices of a topology of CPUs together, at least 1.
    precision : {"float32", "bfloat16", "tf32"}
        In which products and convolutions with weights multiply: bfloat16 is for CPUs, TF32 for GPUs.

    Raises
    ------
    InputError
        For another processor or number, or where the processor has no instructions for the precision.
    """
    processors = _processors(processor)
    check_threads(threads)
    _check_precision(precision, processors[0])
    token = _chosen.set(_Machine(processors, threads or 0, precision))
    try:
        with use_cores(threads):
            yield
    finally:
        _chosen.reset(token)


def _processors(given: str) -> tuple[str, ...]:
    """What `compiling_for` takes, as names in ascending order."""
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


def precision() -> str:
    """The type in which products and convolutions with weights multiply; their sums are float32."""
    return _chosen.get().precision


def threads_in_artifact() -> dict[str, int]:
    """``{"threads": n}`` for a plan or a document of kernels, if a number was given."""
    threads = _chosen.get().threads
    return {"threads": threads} if threads else {}


def host_target() -> tvm.target.Target:
    """The target of code for CPUs that is there once: of the processor that was chosen, the least of several."""
    return _target(_chosen.get().processors[0])


def kernel_targets() -> dict[str, tvm.target.Target]:
    """The targets of kernels for CPUs, by what is added to the kernels' names; nothing is where there is one target.

    Each needs more than the one before it; `cpp/runtime/processor.cc` chooses among them where an artifact is loaded.
    """
    names = _chosen.get().processors
    return {_suffix(name) if len(names) > 1 else "": _target(name) for name in names}


def target_here() -> tvm.target.Target:
    """The target whose kernels run on this machine: the last of `kernel_targets` that it can run, or the first of them."""
    here = set(features_of(_target(NATIVE)))
    fitting = [target for target in kernel_targets().values() if set(features_of(target)) <= here]
    return fitting[-1] if fitting else host_target()


def runs_here() -> bool:
    """Whether this machine can run what is compiled for the processor that was chosen."""
    return set(features_of(host_target())) <= set(features_of(_target(NATIVE)))


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

    ``targets`` are as `kernel_targets` gives them. Of several, the artifact needs the first, and ``levels`` are all.
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
