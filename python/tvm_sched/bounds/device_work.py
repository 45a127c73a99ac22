"""Lower bounds from the work of all devices, between the least times before and after it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .heads_and_tails import Side, between_ends, device_weights
from .ramp import head_side, tail_side
from .region_work import WORK, WORK_BEFORE_ENDS, WORK_ON_RAMPS, Argument
from .relaxation import Relaxation

Array = npt.NDArray[np.float64]


def device_work_bound(relaxation: Relaxation) -> float:
    """Operators with long heads and tails must fit into the time of the devices between the two."""
    return max(argument.held.ns for argument in work_arguments(relaxation))


def work_arguments(relaxation: Relaxation) -> Iterator[Argument]:
    """Bounds from work: first without waits at the ends of the run, then with devices that wait there for copies."""
    start, after = Side.level(relaxation.start), Side.level(relaxation.after)
    for busy in relaxation.busy:
        weights = device_weights(busy)
        yield Argument(WORK, between_ends(_least_weighted(busy, weights), start, after, weights), weights)
        ramps = between_ends(_least_weighted(busy, weights), head_side(relaxation), tail_side(relaxation), weights)
        yield Argument(WORK_ON_RAMPS, ramps, weights)
    if relaxation.work.exclusive:  # where operators run together one need not be busy all the time until its end
        # An operator that ends at ``end`` or later is busy for its shortest time after ``end - shortest``, even where a slow
        # device or mode lets it start before; then no more than its shortest time may be counted.
        late = Side.level(relaxation.end - relaxation.shortest)
        least = np.where(np.isfinite(relaxation.best), weights, np.inf).min(axis=1) * relaxation.shortest
        yield Argument(WORK_BEFORE_ENDS, between_ends(least, late, after, weights), weights)


def _least_weighted(busy: Array, weights: Array) -> Array:
    return np.where(np.isfinite(busy), busy * weights, np.inf).min(axis=1)
