"""The bound ``device work``: operators with long heads and tails must fit into the devices' time in between."""

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
    """Bound the latency by the strongest argument about work (``docs/proofs/device_work.md``, Lemmas 2 to 4)."""
    return max(argument.held.ns for argument in work_arguments(relaxation))


def work_arguments(relaxation: Relaxation) -> Iterator[Argument]:
    """Yield the arguments of Lemmas 2, 4 and 3 of ``docs/proofs/device_work.md``, for each resource in turn."""
    start, after = Side.level(relaxation.start), Side.level(relaxation.after)
    for busy in relaxation.busy:
        weights = device_weights(busy)
        yield Argument(WORK, between_ends(_least_weighted(busy, weights), start, after, weights), weights)
        ramps = between_ends(_least_weighted(busy, weights), head_side(relaxation), tail_side(relaxation), weights)
        yield Argument(WORK_ON_RAMPS, ramps, weights)
    if relaxation.work.exclusive:  # Lemma 3 needs devices that run one operator at a time
        late = Side.level(relaxation.end - relaxation.shortest)
        least = np.where(np.isfinite(relaxation.best), weights, np.inf).min(axis=1) * relaxation.shortest
        yield Argument(WORK_BEFORE_ENDS, between_ends(least, late, after, weights), weights)


def _least_weighted(busy: Array, weights: Array) -> Array:
    return np.where(np.isfinite(busy), busy * weights, np.inf).min(axis=1)
