"""`ClusterSearch`: the Python interface to the searches of ``cpp/cluster``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_sched.anytime import Status

from ..problem.cluster import Cluster
from ..problem.placement_pricing import nanoseconds
from ..problem.service import Service, operator_ns

Integers = npt.NDArray[np.int64]

MOST_STAGES = 64
"""No mix with more GPUs is looked for."""


@dataclass(frozen=True)
class Mixes:
    """GPUs of each kind that serve a service: a row each.

    Attributes
    ----------
    gpus : array, mixes x kinds
    cycle_ns, latency_ns : array
        Least cycle on them over the fastest circuits, and the latency with it.
    """

    gpus: Integers
    cycle_ns: Integers
    latency_ns: Integers

    def at(self, rows: Any) -> Mixes:
        """Some of the mixes, in the order given."""
        return Mixes(self.gpus[rows], self.cycle_ns[rows], self.latency_ns[rows])


@dataclass(frozen=True)
class Embedding:
    """Pool and last block of each stage, and the links between its switch and the one before.

    Attributes
    ----------
    pools : tuple of int
    ends : tuple of int
        One after the last block of each stage.
    routes : tuple of tuple of int
        Links from each stage to the next one.
    cycle_ns, latency_ns : int
    status : {"no better found", "time limit", "interrupted"}
        How the search for it ended, see `tvm_sched.anytime.Status`.
    """

    pools: tuple[int, ...]
    ends: tuple[int, ...]
    routes: tuple[tuple[int, ...], ...]
    cycle_ns: int
    latency_ns: int
    status: Status = "no better found"


class ClusterSearch:
    """The searches on one cluster; services are handed over once and kept.

    Parameters
    ----------
    cluster : Cluster
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._chains: dict[tuple[str, int, int], int] = {}
        self._mixes: dict[tuple[str, int], Mixes] = {}
        self.kind_gpus = _row(
            sum(len(pool.gpus) for pool in cluster.pools if pool.kind == k) for k in range(len(cluster.kinds))
        )
        from .native import NativeClusterSearch  # loads the library

        self._native = NativeClusterSearch.make(
            _table([(round(kind.flops), kind.memory) for kind in cluster.kinds], 2),
            _table([self._pool_row(p) for p in range(len(cluster.pools))], 5),
            _row(nanoseconds(switch.delay) for switch in cluster.switches),
            _table(
                [
                    (*(cluster.switch_id[s] for s in k.switches), nanoseconds(k.delay), math.floor(k.bandwidth))
                    for k in cluster.links
                ],
                4,
            ),
        )

    def _pool_row(self, p: int) -> tuple[int, ...]:
        pool = self.cluster.pools[p]
        rack = self.cluster.racks[pool.rack]
        delay = nanoseconds(rack.delay) + nanoseconds(self.cluster.kinds[pool.kind].transfer_delay)
        return self.cluster.switch_id[rack.switch], pool.kind, pool.rack, delay, math.floor(rack.bandwidth)

    def chain(self, service: Service, limits: tuple[int, int] | None = None) -> int:
        """Number of a service's chain of blocks; ``limits`` are cycle and latency in ns instead of those required."""
        cycle, latency = limits or (service.cycle_limit_ns, service.latency_limit_ns)
        key = service.digest, cycle, latency
        if key not in self._chains:
            blocks = service.blocks
            times = [
                [sum(operator_ns(service.operators[o], kind) for o in range(*block)) for block in blocks]
                for kind in self.cluster.kinds
            ]
            memory = _row(sum(service.operators[o].memory for o in range(*block)) for block in blocks)
            inputs = _row(service.input_bytes(first) for first, _ in blocks)
            self._chains[key] = self._native.add_chain(_table(times, len(blocks)), memory, inputs, cycle, latency)
        return self._chains[key]

    def mixes(self, service: Service, stages: int = 0) -> Mixes:
        """Smallest mixes of GPUs that serve a service on this cluster; with ``stages``, all of this many GPUs.

        A mix that contains none of them cannot serve it, whatever the circuits.
        """
        key = service.digest, stages
        if key not in self._mixes:
            self._mixes[key] = self.mixes_of(self.chain(service), self.kind_gpus, stages)
        return self._mixes[key]

    def mixes_of(self, chain: int, kind_gpus: Integers, stages: int = 0, most_stages: int = MOST_STAGES) -> Mixes:
        """The same for a chain and this many GPUs of each kind, none of more than ``most_stages``."""
        found = _read(self._native.mixes(chain, kind_gpus, stages, most_stages))
        table = found.reshape(-1, len(self.cluster.kinds) + 2)
        return Mixes(np.ascontiguousarray(table[:, :-2]), table[:, -2].copy(), table[:, -1].copy())

    def embed(self, chain: int, mixes: Integers, gpus: Integers, fibres: Integers) -> tuple[int, Embedding] | None:
        """Row of the first mix that fits into the free resources, and its embedding; None where none does."""
        if not len(mixes):
            return None
        row = _read(self._native.embed(chain, np.ascontiguousarray(mixes), gpus, fibres))
        return (int(row[0]), _embedding(row[1:])) if row.size else None

    def ants(
        self, chain: int, gpus: Integers, fibres: Integers, counts: Integers, rates: tuple[float, ...]
    ) -> Embedding | None:
        """What the ants find; ``counts`` and ``rates`` as `SendAnts` takes them."""
        row = _read(self._native.ants(chain, gpus, fibres, counts, *rates))
        return _embedding(row) if row.size else None


def _embedding(row: Integers) -> Embedding:
    stages, cycle, latency, *rest = map(int, row)
    pools, ends, rest = tuple(rest[:stages]), tuple(rest[stages : 2 * stages]), rest[2 * stages :]
    routes = []
    while rest:
        count = rest[0]
        routes.append(tuple(rest[1 : 1 + count]))
        rest = rest[1 + count :]
    return Embedding(pools, ends, tuple(routes), cycle, latency)


def _read(tensor: Any) -> Integers:
    """A tensor of C++ as one row."""
    return np.asarray(np.from_dlpack(tensor), dtype=np.int64).ravel()


def _row(values: Any) -> Integers:
    return np.fromiter(values, dtype=np.int64)


def _table(rows: Any, columns: int) -> Integers:
    return np.array(rows, dtype=np.int64).reshape(-1, columns)
