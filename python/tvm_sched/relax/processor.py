"""For which processor and how many threads kernels are compiled."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

import tvm

from .._library import function as library_function
from .._library import use_cores
from ..errors import InputError
from ..runtime.machine import check_threads

NATIVE = "native"
LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
"""The levels of x86-64's psABI: SSE4.2; AVX2; AVX-512 F, BW, CD, DQ and VL."""


@dataclass(frozen=True)
class _Machine:
    """``processor``: a name of LLVM's; ``threads``: 0 for all cores that there are when the artifact is loaded."""

    processor: str = NATIVE
    threads: int = 0


_HERE = _Machine()
_chosen: ContextVar[_Machine] = ContextVar("tvm_sched_machine", default=_HERE)


@contextmanager
def compiling_for(processor: str = NATIVE, threads: int | None = None) -> Iterator[None]:
    """Compile kernels for a processor, and modules that use this many threads where loading says nothing else.

    Parameters
    ----------
    processor : {"native", "x86-64-v2", "x86-64-v3", "x86-64-v4"}
        This machine's, or any of a level.
    threads : int, optional
        Of all devices of a topology of CPUs together, at least 1.

    Raises
    ------
    InputError
        For another processor or number.
    """
    allowed = (NATIVE, *LEVELS) if platform.machine() == "x86_64" else (NATIVE,)
    if processor not in allowed:
        raise InputError(f"processor is {processor!r}; on {platform.machine()}, allowed are {', '.join(allowed)}")
    check_threads(threads)
    token = _chosen.set(_Machine(processor, threads or 0))
    try:
        with use_cores(threads):
            yield
    finally:
        _chosen.reset(token)


def threads_in_artifact() -> dict[str, int]:
    """``{"threads": n}`` for a plan or a document of kernels, where a number was asked for."""
    threads = _chosen.get().threads
    return {"threads": threads} if threads else {}


def host_target() -> tvm.target.Target:
    """The target of kernels for CPUs: of the processor that was chosen."""
    return _target(_chosen.get().processor)


def runs_here() -> bool:
    """Whether this machine can run what is compiled for the processor that was chosen."""
    needed, here = (needs_of(target)["processor"]["features"] for target in (host_target(), _target(NATIVE)))
    return set(needed) <= set(here)


@cache
def _target(processor: str) -> tvm.target.Target:
    name = tvm.target.codegen.llvm_get_system_cpu() if processor == NATIVE else processor
    return tvm.target.Target({"kind": "llvm", "mcpu": name})


def needs_of(target: tvm.target.Target) -> dict[str, Any]:
    """What an artifact says of the processor that kernels for a target need; ``cpp/runtime/processor.cc`` reads it."""
    if target.kind.name != "llvm":
        return {}
    known = set(library_function("tvm_sched.known_features")())
    features = {str(feature) for feature in tvm.target.codegen.llvm_get_cpu_features(target)}
    return {"processor": {"name": str(target.attrs.get("mcpu", "")), "features": sorted(features & known)}}
