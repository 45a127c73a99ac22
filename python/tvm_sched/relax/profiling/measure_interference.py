"""Measure interference: kernels that run in parallel on two cores, or on two streams."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from ...cost_model.device_properties import DeviceProperties
from ...cost_model.features import KernelWork
from ...cost_model.profile import QUIET_LOAD, Pair
from .other_load import OtherLoad
from .single_kernels import SingleKernel

_SLICE_MS = 2
"""Milliseconds that the other kernel runs between checks whether to stop."""
_ATTEMPTS = 3
"""Largest number of measurements of a pair while other processes keep the machine busy; the quietest counts."""


def choose_pairs(
    work: KernelWork, device: DeviceProperties, seconds: npt.NDArray[np.float64], count: int
) -> list[tuple[int, int]]:
    """Choose at most ``count`` informative pairs of kernels for interference; return positions, best first.

    The longest kernels that are bound by arithmetic, and the longest that are bound by memory (at the device's rates), are
    paired with each other and with themselves. ``work`` holds distinct kernels, ``seconds`` the total time of each in a run.
    """
    arithmetic = work.flops / device.peak("float32") >= work.bytes / device.bandwidth
    order = np.argsort(-seconds, kind="stable")
    ranks = [order[arithmetic[order] == kind][: isqrt(count) + 1].tolist() for kind in (True, False)]
    entries = [(rank, kernel) for kernels in ranks for rank, kernel in enumerate(kernels)]
    pairs = [(i + j, a, b) for n, (i, a) in enumerate(entries) for j, b in entries[n:]]
    return [(a, b) for _, a, b in sorted(pairs, key=lambda pair: pair[0])[:count]]


def measure_pairs(
    pairs: Iterable[tuple[str, str]],
    kernels: Mapping[str, SingleKernel],
    others: Mapping[str, SingleKernel],
    threads: int,
) -> list[Pair]:
    """Measure CPU kernels alone and in pairs; repeat a pair if other processes used more than `QUIET_LOAD` cores.

    A kernel alone runs on the cores that it has in a pair. A pair's load is that of all its measurements.

    Parameters
    ----------
    pairs : iterable of (signature, signature)
    kernels, others : mapping of str to SingleKernel
        The same kernels twice, with separate tensors and state; pairs of other kernels are omitted.
    threads : int
        Threads of each kernel.
    """
    result = []
    for first, second in pairs:
        if first not in kernels or second not in others:
            continue
        attempts: list[Pair] = []
        while len(attempts) < _ATTEMPTS and all(each.load > QUIET_LOAD for each in attempts):
            load = OtherLoad()
            alone = (measure_alone(kernels[first], threads), measure_alone(others[second], threads))
            beside = (
                measure_beside(kernels[first], others[second], threads),
                measure_beside(others[second], kernels[first], threads),
            )
            attempts.append(Pair(first, second, alone, beside, threads, round(load.share(), 3)))
        result.append(min(attempts, key=lambda pair: pair.load))
    return result


def measure_alone(kernel: SingleKernel, threads: int) -> float:
    """Measure the seconds of a kernel alone, on the cores that it has in a pair."""
    with _on_half(threads):
        return measure_kernel(kernel)


def measure_beside(kernel: SingleKernel, other: SingleKernel, threads: int) -> float:
    """Measure the seconds of a kernel while another one runs all the time, each on its own cores.

    Without pinning, one pair in ten has both threads on one core for a while, which at least doubles their times. Only
    kernels of one thread are pinned.
    """
    with running_beside(lambda: measure_kernel(other, repeat=1), partial(_take_cores, 1, threads)), _on_half(threads):
        return measure_kernel(kernel)


@contextmanager
def _on_half(threads: int) -> Iterator[None]:
    """Keep this thread on the first half of the cores while the block runs."""
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    _take_cores(0, threads)
    try:
        yield
    finally:
        if before is not None:
            os.sched_setaffinity(0, before)


def _take_cores(half: int, threads: int) -> None:
    """Keep this thread on the first or the second half of the cores."""
    if threads == 1 and hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        middle = len(allowed) // 2
        os.sched_setaffinity(0, set(allowed[middle:] if half else allowed[:middle]) or set(allowed))


def measure_kernel(kernel: SingleKernel, repeat: int = 7) -> float:
    """Measure the seconds of a kernel in repeated calls."""
    return kernel.seconds(repeat, number=1, min_repeat_ms=_SLICE_MS)


@contextmanager
def running_beside(work: Callable[[], Any], prepare: Callable[[], Any] | None = None) -> Iterator[None]:
    """Repeat ``work`` in another thread, after ``prepare``, while the block runs; it has begun when the block starts.

    ``work`` must release Python's lock while it computes, as kernel calls and large copies do.
    """
    begun, stop, errors = threading.Event(), threading.Event(), list[BaseException]()

    def repeat() -> None:
        try:
            if prepare is not None:
                prepare()
            while not stop.is_set():
                work()
                begun.set()
        except BaseException as error:
            errors.append(error)
            begun.set()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if errors:
        raise errors[0]
