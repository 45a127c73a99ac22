"""The bound ``device work``: operators with long heads and tails must fit into the devices' time in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from .heads_and_tails import Side, between_ends, device_weights
from .neighbours import Neighbour, together_or_apart
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


def head_side(relaxation: Relaxation) -> Side:
    """Return the heads on devices that run no seed; seeds are the operators without predecessors (Lemma 4)."""
    index, passed = relaxation.problem.graph.index, np.maximum(relaxation.end, relaxation.start + relaxation.shortest)
    copies = relaxation.copies
    return _side(relaxation, index.order, index.predecessors, relaxation.start, passed, lambda o, p: copies[p, o])


def tail_side(relaxation: Relaxation) -> Side:
    """Return the tails on devices that run no seed; seeds are the operators without successors (Lemma 4)."""
    index, passed = relaxation.problem.graph.index, relaxation.after + relaxation.shortest
    copies = relaxation.copies
    order = list(reversed(index.order))
    return _side(relaxation, order, index.successors, relaxation.after, passed, lambda o, s: copies[o, s])


def _side(
    relaxation: Relaxation,
    order: Iterable[int],
    neighbours: Sequence[Sequence[int]],
    anywhere: Array,
    passed: Array,
    copy: Callable[[int, int], float],
) -> Side:
    """Compute the times on devices that run no seed, in ``order``, which begins with seeds.

    ``passed`` are least ends (tails: least times from the start of each operator to the end of the run). Proof: Lemma 4 of
    ``docs/proofs/device_work.md``.
    """
    elsewhere, seeds = anywhere.copy(), 0
    for o in order:
        if not neighbours[o]:
            elsewhere[o] = np.inf
            seeds += 1
            continue
        beside = [Neighbour(elsewhere[p], relaxation.share[p], passed[p] + copy(o, p)) for p in neighbours[o]]
        paths = [min(b.head + relaxation.shortest[p], b.apart) for b, p in zip(beside, neighbours[o], strict=True)]
        elsewhere[o] = max(elsewhere[o], together_or_apart(beside), *paths)
    return Side(anywhere, elsewhere, seeds)
