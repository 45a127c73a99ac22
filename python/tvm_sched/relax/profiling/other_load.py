"""Detect load of other processes, which makes measurements unreliable."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...cost_model.profile import QUIET_LOAD

_STAT = Path("/proc/stat")
FEWEST_RUNS, DISTURBED = 10, 1.15
"""Sufficient number of quiet runs, and the slowdown from which a run counts as disturbed."""


class OtherLoad:
    """The load of other processes between calls of `share`; always 0 if the system does not report it."""

    def __init__(self) -> None:
        self._last = _read()

    def share(self) -> float:
        """Return the mean number of cores that others used since the last call, exact to 10 ms of one core."""
        before, self._last = self._last, _read()
        wall = max(self._last[2] - before[2], 1e-9)
        return max((self._last[0] - before[0]) - (self._last[1] - before[1]), 0.0) / wall


def undisturbed(latencies: npt.NDArray[np.float64], loads: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
    """Return the positions of the runs that no other process slowed down.

    A process on the same core, or on the other thread of it, halves a run's speed for seconds. So only runs on a quiet
    machine count, if there are `FEWEST_RUNS` of them, and among these only runs within `DISTURBED` times the latency of the
    fastest tenth.

    Parameters
    ----------
    latencies : array of float
        Seconds of each run.
    loads : array of float
        Cores that other processes used during each run.
    """
    quiet = np.flatnonzero(loads <= QUIET_LOAD)
    rows = quiet if len(quiet) >= FEWEST_RUNS else np.arange(len(latencies))
    return rows[latencies[rows] <= DISTURBED * np.quantile(latencies[rows], 0.1)]


def _read() -> tuple[float, float, float]:
    """Return the busy seconds of all cores, the busy seconds of this process, and the time."""
    own, now = time.process_time(), time.perf_counter()
    if _STAT.is_file():
        user, nice, system, _, _, *interrupts = map(int, _STAT.read_text().split("\n", 1)[0].split()[1:9])
        busy = (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")
    else:
        busy = own
    return busy, own, now
