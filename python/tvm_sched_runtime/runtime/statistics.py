"""Statistics of the latencies of repeated runs: mean, median, percentiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LatencyStatistics:
    """Statistics of measured latencies, in seconds.

    Examples
    --------
    >>> from tvm_sched_runtime.runtime import LatencyStatistics
    >>> LatencyStatistics.of([0.002, 0.001, 0.003]).median
    0.002
    """

    repeat: int
    min: float
    mean: float
    median: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> LatencyStatistics:
        """Return the statistics of the latencies of at least one run."""
        if not seconds:
            raise ValueError("no latencies: at least one run is needed")
        values = np.asarray(seconds, dtype=np.float64)
        median, p90, p99 = (float(value) for value in np.percentile(values, [50, 90, 99]))
        return cls(len(values), float(values.min()), float(values.mean()), median, p90, p99, float(values.max()))
