"""How fast one core of this processor computes and moves data: measured once, and kept by processor."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import msgspec

from .._library import function as library_function
from ..cores import processor_name
from ..errors import InputError
from ..files import cache_directory, caches_allowed, write_atomically

VARIABLE = "TVM_SCHED_CORE_SPEED"
"""Environment variable with the speed of a core, ``GFLOP/s,GB/s``, which is then not measured."""


class CoreSpeed(msgspec.Struct, frozen=True):
    """Rates of one core."""

    flops: float
    """Floating-point operations (float32) a second."""
    bandwidth: float
    """Bytes a second that are read and written, of arrays of some MiB."""


ASSUMED = CoreSpeed(255e9, 40e9)
"""An AMD EPYC server CPU at 2.6 GHz (AVX-512), for where nothing can be measured."""


def core_speed() -> CoreSpeed:
    """Return the speed of one core: that of `VARIABLE`, else the kept one, else measure it within a tenth of a second.

    Raises
    ------
    InputError
        `VARIABLE` is not two positive numbers.

    Examples
    --------
    >>> from tvm_sched.problem.core_speed import core_speed
    >>> core_speed().flops > 0
    True
    """
    if text := os.environ.get(VARIABLE):
        return _of_text(text)
    return _kept(cache_directory() / "core_speed.json" if caches_allowed() else None, processor_name())


def _of_text(text: str) -> CoreSpeed:
    try:
        flops, bandwidth = (float(part) * 1e9 for part in text.split(","))
    except ValueError:
        flops = bandwidth = 0.0
    if not (0 < flops < float("inf") and 0 < bandwidth < float("inf")):
        raise InputError(f"the environment variable {VARIABLE} is {text!r}; it must be GFLOP/s,GB/s, such as 255,40")
    return CoreSpeed(flops, bandwidth)


@lru_cache
def _kept(file: Path | None, processor: str) -> CoreSpeed:
    known: dict[str, CoreSpeed] = {}
    if file is not None and file.is_file():
        try:
            known = msgspec.json.decode(file.read_bytes(), type=dict[str, CoreSpeed])
        except (OSError, msgspec.DecodeError):  # damaged: measured and written anew
            known = {}
    if processor not in known:
        measured = _measured()
        if measured is None:
            return ASSUMED
        known[processor] = measured
        if file is not None:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(file, msgspec.json.encode(known))
            except OSError:
                pass  # measured again by the next process
    return known[processor]


def _measured() -> CoreSpeed | None:
    try:
        flops, bandwidth = library_function("tvm_sched.core_speed")()
    except (FileNotFoundError, RuntimeError, ValueError):  # no C++ library, or an old one
        return None
    return CoreSpeed(float(f"{flops:.3g}"), float(f"{bandwidth:.3g}")) if flops > 0 and bandwidth > 0 else None
