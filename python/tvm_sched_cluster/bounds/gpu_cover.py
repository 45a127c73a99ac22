"""`Cover`: the inequalities that the GPUs of every placement of a service satisfy.

The lemmas named here are those of ``docs/proofs/cluster_mixes.md``.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np

from ..problem.service import Edge, Service, operator_ns
from ..search.cluster_search import ClusterSearch, Integers


class Cover(NamedTuple):
    """Inequalities on how often a placement holds certain sets of GPUs."""

    gpus: Integers
    """GPUs of each set."""
    needs: list[tuple[Integers, int]]
    """Inequalities: coefficients, one for each set, and the right-hand side. The sum of coefficient times the number of
    times that a placement holds the set is at least the right-hand side."""
    joined: bool
    """Whether circuits join all kinds of GPUs of a placement."""


MOST_STAGES_OF_CHAINS = 256
"""For chains with more operators, `any_cover` uses sums instead of mixes."""


def mixes_cover(search: ClusterSearch, service: Service) -> Cover:
    """Return the cover of placements that cut a service between its blocks: each holds one of the smallest mixes."""
    return _cover_of_mixes(search.mixes(service).gpus)


def _cover_of_mixes(mixes: Integers) -> Cover:
    return Cover(mixes, [(np.ones(len(mixes), dtype=np.int64), 1)], True)


def any_cover(search: ClusterSearch, service: Service) -> Cover:
    """Return the cover of every placement that `verify` accepts.

    If each operator hands data to the next one, it consists of the smallest mixes of the chain (Lemma 1). Of several edges
    between two neighbours the largest counts. Other graphs, and long chains, have the cover of Lemma 2.
    """
    order = [operator.name for operator in service.operators]
    between: dict[tuple[str, str], int] = {}
    for edge in service.all_edges:
        ends = edge.source, edge.target
        between[ends] = max(between.get(ends, 0), edge.bytes)
    most = min(len(order), int(search.kind_gpus.sum()))
    if all(ends in between for ends in pairwise(order)) and most <= MOST_STAGES_OF_CHAINS:
        edges = tuple(Edge(*ends, between[ends]) for ends in pairwise(order))
        chain = search.chain(msgspec.structs.replace(service, edges=edges))
        return _cover_of_mixes(search.mixes_of(chain, search.kind_gpus, most_stages=most).gpus)
    return _cover_by_sums(search, service)


def _cover_by_sums(search: ClusterSearch, service: Service) -> Cover:
    """Return the cover of Lemma 2: time and memory of single GPUs, summed over all operators.

    The kinds have two sets of weights: equal ones, and weights by their speed. Equal weights give a number of GPUs, which is
    rounded up.
    """
    kinds = search.cluster.kinds
    limit = max(1, service.cycle_limit_ns)  # 0 where more than an input a nanosecond is asked for
    there = search.kind_gpus > 0
    times = np.array([[operator_ns(operator, kind) for kind in kinds] for operator in service.operators], dtype=object)
    room = np.array([kind.memory for kind in kinds], dtype=object)
    memory = np.array([operator.memory for operator in service.operators], dtype=object)
    runs = (times <= limit) & (memory[:, None] <= room) & there
    single = np.eye(len(kinds), dtype=np.int64)[there]
    if not runs.any(axis=1).all():
        return Cover(single[:0], [(np.ones(0, dtype=np.int64), 1)], False)
    total = [sum(times[runs[:, k], k].tolist()) or 1 for k in range(len(kinds))]
    speeds = [max(1, (max(total) << 20) // each) for each in total]
    needs = []
    for weights in ([1] * len(kinds), speeds):
        weighed = np.where(runs, times * np.array(weights, dtype=object), max(weights) * limit)
        needs.append((np.array(weights, dtype=object)[there] * limit, int(weighed.min(axis=1).sum())))
    most = max(room[there].tolist())
    gpus = max(1, -(-needs[0][1] // limit), -(-int(memory.sum()) // most))
    needs += [(room[there], int(memory.sum())), (np.ones(len(single), dtype=np.int64), gpus)]
    return Cover(single, [(coefficients, need) for coefficients, need in needs if need > 0], False)
