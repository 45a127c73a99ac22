"""How fast one core of this processor computes and moves data: measured once, and kept by processor."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import msgspec

from ..core_library import function as library_function
from ..cores import processor_fields, processor_name
from ..errors import FormatError, InputError
from ..files import UNREADABLE, cache_directory, caches_allowed, locked, write_atomically

VARIABLE = "TVM_SCHED_CORE_SPEED"
"""Environment variable with the speed of a core, ``GFLOP/s,GB/s``, which is then not measured."""


_MEASUREMENTS = 4
"""Measurements, of which the best counts: other work on the machine only makes a core slower."""
_LEAST, _MOST = 1e6, 1e15
"""Rates outside of these limits are no core's; kept ones are then measured again."""


class CoreSpeed(msgspec.Struct, frozen=True):
    """Rates of one core."""

    flops: float
    """Floating-point operations (float32) a second."""
    bandwidth: float
    """Bytes a second that are read and written, of arrays of some MiB."""


ASSUMED = CoreSpeed(255e9, 40e9)
"""An AMD EPYC server CPU at 2.6 GHz (AVX-512), for where nothing can be measured."""


def core_speed() -> CoreSpeed:
    """Return the speed of one core: that of `VARIABLE`, else the kept one, else measure it within a third of a second.

    Raises
    ------
    InputError
        `VARIABLE` is not two positive numbers.

    Examples
    --------
    >>> from tvm_sched_runtime.problem.core_speed import core_speed
    >>> core_speed().flops > 0
    True
    """
    if text := os.environ.get(VARIABLE):
        return _of_text(text)
    return kept_speed(cache_directory() / "core_speed.json" if caches_allowed() else None, processor_key())


def _of_text(text: str) -> CoreSpeed:
    try:
        flops, bandwidth = (float(part) * 1e9 for part in text.split(","))
    except ValueError:
        flops = bandwidth = 0.0
    if not (0 < flops < float("inf") and 0 < bandwidth < float("inf")):
        raise InputError(f"the environment variable {VARIABLE} is {text!r}; it must be GFLOP/s,GB/s, such as 255,40")
    return CoreSpeed(flops, bandwidth)


def processor_key() -> str:
    """Return the processor's name with what tells generations of the same name apart."""
    fields = processor_fields()
    return ", ".join([processor_name(), *(f"{key} {fields[key]}" for key in ("model", "stepping") if key in fields)])


@lru_cache
def kept_speed(file: Path | None, processor: str) -> CoreSpeed:
    """Return the speed that a file keeps for a processor; measure it and write it there if the file has none."""
    if file is None:
        return measured_speed() or ASSUMED
    if found := _read(file).get(processor):
        return found
    found = None
    with suppress(OSError, FormatError):  # not writable: the next process measures again
        file.parent.mkdir(parents=True, exist_ok=True)
        with locked(file):  # a process that starts at the same time waits, and takes what this one measures
            known = _read(file)
            found = known.get(processor) or measured_speed()
            if found is not None and processor not in known:
                write_atomically(file, msgspec.json.encode({**known, processor: found}))
    return found or measured_speed() or ASSUMED


def _read(file: Path) -> dict[str, CoreSpeed]:
    """Return the kept speeds that a core can have; none of a missing or damaged file."""
    try:
        known = msgspec.json.decode(file.read_bytes(), type=dict[str, CoreSpeed])
    except (OSError, *UNREADABLE):
        return {}
    return {
        processor: speed
        for processor, speed in known.items()
        if _LEAST <= speed.flops <= _MOST and _LEAST <= speed.bandwidth <= _MOST
    }


def measured_speed() -> CoreSpeed | None:
    """Measure the speed of a core; None if the C++ library is missing or a rate is none that a core has."""
    try:
        measure = library_function("tvm_sched.core_speed")
        flops, bandwidth = (max(rates) for rates in zip(*(measure() for _ in range(_MEASUREMENTS)), strict=True))
    except (FileNotFoundError, RuntimeError, ValueError):  # no C++ library, or an old one
        return None
    return CoreSpeed(float(f"{flops:.3g}"), float(f"{bandwidth:.3g}")) if flops > 0 and bandwidth > 0 else None
