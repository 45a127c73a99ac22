"""Heads and tails on devices that run no seed (``docs/proofs/device_work.md``, Lemma 4).

Seeds are the operators without predecessors for heads, and those without successors for tails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from .heads_and_tails import Side
from .neighbours import Neighbour, together_or_apart
from .relaxation import Relaxation

Array = npt.NDArray[np.float64]


def head_side(relaxation: Relaxation) -> Side:
    """Return the heads; seeds are the operators without predecessors."""
    index, passed = relaxation.problem.graph.index, np.maximum(relaxation.end, relaxation.start + relaxation.shortest)
    copies = relaxation.copies
    return _side(relaxation, index.order, index.predecessors, relaxation.start, passed, lambda o, p: copies[p, o])


def tail_side(relaxation: Relaxation) -> Side:
    """Return the tails; seeds are the operators without successors."""
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
