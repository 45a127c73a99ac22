"""`ClusterSearch`: the Python interface to the searches of ``cpp/cluster``."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem.costs import LONGEST_NS
from tvm_sched_runtime.search_budget import Status

from ..problem.cluster import Cluster
from ..problem.placement_pricing import nanoseconds
from ..problem.service import MOST_BLOCKS, Service, operator_ns

if TYPE_CHECKING:
    from .native_search import AntSettings, ChainEmbedding

Integers = npt.NDArray[np.int64]

_MOST_BYTES = 2**60
MOST_STAGES = 64
"""Most GPUs of a mix."""


@dataclass(frozen=True)
class Mixes:
    """Mixes: numbers of GPUs of each kind that can serve a service, a row for each mix."""

    gpus: Integers
    cycle_ns: Integers
    latency_ns: Integers
    """Least cycle of each mix over the fastest circuits, and the latency with that cycle."""

    def at(self, rows: Any) -> Mixes:
        """Return some of the mixes, in the order of ``rows``."""
        return Mixes(self.gpus[rows], self.cycle_ns[rows], self.latency_ns[rows])


@dataclass(frozen=True)
class Embedding:
    """Stages of a service on pools of GPUs, and the links between them."""

    pools: tuple[int, ...]
    ends: tuple[int, ...]
    """Position after the last block of each stage."""
    routes: tuple[tuple[int, ...], ...]
    """Links from each stage to the next one."""
    cycle_ns: int
    latency_ns: int
    status: Status = "no better found"
    """How the search ended, see `tvm_sched_runtime.search_budget.Status`."""


class ClusterSearch:
    """The searches of ``cpp/cluster`` on one cluster. Each service is passed to C++ once.

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
        from .native_search import NativeClusterSearch  # loads the library

        self._native = NativeClusterSearch.make(_arrays(cluster))

    def chain(self, service: Service, limits: tuple[int, int] | None = None) -> int:
        """Return the number of a service's chain of blocks; ``limits`` replace its required cycle and latency, in ns."""
        from .native_search import ChainLimits  # loads the library

        cycle, latency = limits or (service.cycle_limit_ns, service.latency_limit_ns)
        key = service.digest, cycle, latency
        if key not in self._chains:
            blocks = service.blocks
            if len(blocks) > MOST_BLOCKS:
                raise InputError(
                    f"service {service.name!r} can be cut at {len(blocks) - 1} places into {len(blocks)} blocks; at most "
                    f"{MOST_BLOCKS} blocks are allowed: join operators"
                )
            times = [
                [sum(operator_ns(service.operators[o], kind) for o in range(*block)) for block in blocks]
                for kind in self.cluster.kinds
            ]
            held = [sum(service.operators[o].memory for o in range(*block)) for block in blocks]
            read = [service.input_bytes(first) for first, _ in blocks]
            longest, size = max(sum(each) for each in times), sum(held) + max(read)
            if longest > LONGEST_NS or size > _MOST_BYTES:
                raise InputError(
                    f"service {service.name!r} takes {longest / 1e9:.3g} s on one GPU and {size:.3g} bytes; at "
                    f"most {LONGEST_NS / 1e9:.3g} s and {_MOST_BYTES:.3g} bytes are allowed"
                )
            memory, inputs = _row(held), _row(read)
            chain_limits = ChainLimits(cycle_ns=cycle, latency_ns=latency)
            self._chains[key] = self._native.add_chain(
                np.array(times, dtype=np.int64).reshape(-1, len(blocks)), memory, inputs, chain_limits
            )
        return self._chains[key]

    def mixes(self, service: Service, stages: int = 0) -> Mixes:
        """Return the smallest mixes that serve a service on this cluster; with ``stages``, all mixes of this many GPUs.

        A mix that contains none of the smallest ones cannot serve the service, whatever the circuits.
        """
        key = service.digest, stages
        if key not in self._mixes:
            self._mixes[key] = self.mixes_of(self.chain(service), self.kind_gpus, stages)
        return self._mixes[key]

    def mixes_of(self, chain: int, kind_gpus: Integers, stages: int = 0, most_stages: int = MOST_STAGES) -> Mixes:
        """Return the mixes of a chain on this many GPUs of each kind, with at most ``most_stages`` GPUs."""
        try:
            mixes = self._native.mixes(chain, kind_gpus, stages, most_stages)
        except ValueError as error:
            raise InputError(
                f"{error}: of the {int(kind_gpus.sum())} GPUs at most {most_stages} at once; join operators of the service, "
                "or lower its throughput"
            ) from None
        return Mixes(_read(mixes.gpus), _read(mixes.cycle_ns), _read(mixes.latency_ns))

    def embed(self, chain: int, mixes: Integers, gpus: Integers, fibres: Integers) -> tuple[int, Embedding] | None:
        """Return the row of the first mix that fits into the free resources, and its embedding; None if none fits."""
        if not len(mixes):
            return None
        embedded = self._native.embed(chain, np.ascontiguousarray(mixes), gpus, fibres)
        return None if embedded is None else (embedded.mix, _embedding(embedded))

    def ants(self, chain: int, gpus: Integers, fibres: Integers, settings: AntSettings) -> Embedding | None:
        """Return the embedding that the ants find in the free resources, or None."""
        embedded = self._native.ants(chain, gpus, fibres, settings)
        return None if embedded is None else _embedding(embedded)


def _arrays(cluster: Cluster) -> dict[str, Integers]:
    """Return a cluster as arrays for ``cpp/ffi/cluster.cc``."""
    racks = [cluster.racks[pool.rack] for pool in cluster.pools]
    kinds = [cluster.kinds[pool.kind] for pool in cluster.pools]
    arrays: dict[str, Iterable[int]] = {
        "kind_flops": (round(kind.flops) for kind in cluster.kinds),
        "kind_memory": (kind.memory for kind in cluster.kinds),
        "switch_delay_ns": (nanoseconds(switch.delay) for switch in cluster.switches),
        "pool_switch": (cluster.switch_id[rack.switch] for rack in racks),
        "pool_kind": (pool.kind for pool in cluster.pools),
        "pool_rack": (pool.rack for pool in cluster.pools),
        "pool_delay_ns": (
            nanoseconds(rack.delay) + nanoseconds(kind.transfer_delay) for rack, kind in zip(racks, kinds, strict=True)
        ),
        "pool_bandwidth": (math.floor(rack.bandwidth) for rack in racks),
        "link_first_switch": (cluster.switch_id[link.switches[0]] for link in cluster.links),
        "link_second_switch": (cluster.switch_id[link.switches[1]] for link in cluster.links),
        "link_delay_ns": (nanoseconds(link.delay) for link in cluster.links),
        "link_bandwidth": (math.floor(link.bandwidth) for link in cluster.links),
    }
    try:
        return {name: _row(values) for name, values in arrays.items()}
    except OverflowError:
        raise InputError(
            "a bandwidth, memory, delay or speed of the cluster is 2^63 or more; it must be less"
        ) from None


def _embedding(embedded: ChainEmbedding) -> Embedding:
    routes = tuple(tuple(route) for route in embedded.routes)
    return Embedding(tuple(embedded.pools), tuple(embedded.ends), routes, embedded.cycle_ns, embedded.latency_ns)


def _read(tensor: Any) -> Integers:
    """Return a tensor of C++ as an array."""
    return np.asarray(np.from_dlpack(tensor), dtype=np.int64)


def _row(values: Any) -> Integers:
    return np.fromiter(values, dtype=np.int64)
