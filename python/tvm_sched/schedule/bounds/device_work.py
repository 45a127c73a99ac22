"""Work that devices must do between what precedes and what follows it."""

from __future__ import annotations

import numpy as np

from .heads_and_tails import Side, between_ends, device_weights
from .ramp import before, behind
from .relaxation import Relaxation


def device_work_bound(relaxation: Relaxation) -> float:
    """Operators that start late and must be followed by much fill the devices between these two."""
    best, start, after = 0.0, before(relaxation), behind(relaxation)
    for busy in relaxation.busy:
        weights = device_weights(busy)
        work = np.where(np.isfinite(busy), busy * weights, np.inf).min(axis=1)
        for first, last in ((start, after), (Side.level(start.anywhere), Side.level(after.anywhere))):
            best = max(best, between_ends(work, first, last, weights))
    if relaxation.problem.costs.concurrency is not None:  # then an operator need not be busy all the time until its end
        return best
    # An operator that ends at ``end`` or later is busy for its shortest time after ``end - shortest``, even where a slow
    # device or mode lets it start before; then no more than its shortest time may be counted.
    late = Side.level(relaxation.end - relaxation.shortest)
    least = np.where(np.isfinite(relaxation.best), weights, np.inf).min(axis=1) * relaxation.shortest
    return max(best, between_ends(least, late, Side.level(after.anywhere), weights))
