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
"""How many undisturbed runs are enough, and which slowness makes runs that do not count."""


class OtherLoad:
    """Cores that others use, between calls of `share`; always 0 where the system does not tell."""

    def __init__(self) -> None:
        self._last = _read()

    def share(self) -> float:
        """Cores in use beside this process since the last call, in the mean; it is exact to 10 ms of one core."""
        before, self._last = self._last, _read()
        wall = max(self._last[2] - before[2], 1e-9)
        return max((self._last[0] - before[0]) - (self._last[1] - before[1]), 0.0) / wall


def undisturbed(latencies: npt.NDArray[np.float64], loads: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
    """Which runs nothing else on the machine slowed down.

    Another process beside the run, on another core, costs it up to half its speed where the two cores are threads of one;
    one that takes turns with it on its core costs as much, for seconds. A median over such runs says more of that process
    than of the kernels. So those count that had a quiet machine, if there are a few; and of these, those within `DISTURBED`
    of the fastest tenth.

    Parameters
    ----------
    latencies : array of float
        Seconds of each run.
    loads : array of float
        Cores that other processes used then.
    """
    quiet = np.flatnonzero(loads <= QUIET_LOAD)
    rows = quiet if len(quiet) >= FEWEST_RUNS else np.arange(len(latencies))
    return rows[latencies[rows] <= DISTURBED * np.quantile(latencies[rows], 0.1)]


def _read() -> tuple[float, float, float]:
    """Seconds of all cores that were not idle, of this process, and of the clock."""
    busy = 0.0
    own, now = time.process_time(), time.perf_counter()
    if _STAT.is_file():
        user, nice, system, _, _, *interrupts = map(int, _STAT.read_text().split("\n", 1)[0].split()[1:9])
        busy = (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")
    else:
        busy = own
    return busy, own, now
