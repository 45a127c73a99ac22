"""Least idle times of devices at both ends of a run, while their first inputs arrive and their last results leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from .heads_and_tails import Side
from .neighbours import Neighbour, together_or_apart
from .relaxation import Relaxation

Array = npt.NDArray[np.float64]


def head_side(relaxation: Relaxation) -> Side:
    """Times before operators start; seeds are those that no other operator precedes."""
    index, passed = relaxation.problem.graph.index, np.maximum(relaxation.end, relaxation.start + relaxation.shortest)
    copies = relaxation.copies
    return _side(relaxation, index.order, index.predecessors, relaxation.start, passed, lambda o, p: copies[p, o])


def tail_side(relaxation: Relaxation) -> Side:
    """Times after operators end; seeds are those that no other operator follows."""
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
    """Walk away from the seeds: on a device without one, some copy lies on every path that leads from it to the seeds.

    So each neighbour of an operator either runs on the same device, and no sooner than a device without seeds allows, or
    its time has ``passed`` and a copy follows.
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
