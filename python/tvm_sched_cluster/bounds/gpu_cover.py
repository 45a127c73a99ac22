"""`Cover`: GPUs that every placement of a service must hold, for bounds that are valid for any allocator and graph."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np

from ..problem.service import Edge, Service, operator_ns
from ..search.cluster_search import ClusterSearch, Integers


class Cover(NamedTuple):
    """Sets of GPUs, and how many of them each placement holds.

    Attributes
    ----------
    gpus : array, sets x kinds
        GPUs of each set.
    needs : list of (array, int)
        For each placement some coefficients, one for each set, times how often it holds the sets are no less than a number.
    joined : bool
        Whether the kinds of a placement's GPUs are joined by circuits.
    """

    gpus: Integers
    needs: list[tuple[Integers, int]]
    joined: bool


MOST_STAGES_OF_CHAINS = 256
"""Mixes of chains with more operators than this are not looked for."""


def mixes_cover(search: ClusterSearch, service: Service) -> Cover:
    """Each placement that cuts the service's blocks, as the searches do, holds one of the smallest mixes."""
    return _cover_of_mixes(search.mixes(service).gpus)


def _cover_of_mixes(mixes: Integers) -> Cover:
    return Cover(mixes, [(np.ones(len(mixes), dtype=np.int64), 1)], True)


def any_cover(search: ClusterSearch, service: Service) -> Cover:
    """The cover of every placement that `verify` accepts.

    Where each operator hands data to the next one, stages are runs of operators. Then the mixes of the chain of these edges
    alone serve: whatever other edges there are, skipping or leading back, make no cycle, latency or memory less. Of several
    edges between two neighbours the largest counts.

    Any other graph, and more stages than mixes are looked for, by sums alone (`_cover_by_sums`).
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
    """Single GPUs: their time in a cycle and their memory suffice for all operators together.

    With weights of the kinds, an operator takes no less than its least weighted time, and a GPU has its weight times the
    cycle. That is a number of GPUs, too, which may be rounded up where all weigh the same.
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
