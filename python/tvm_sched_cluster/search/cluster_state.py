"""`ClusterState`: the running services, free resources and failures of a cluster."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from tvm_sched.certify import reported_status
from tvm_sched_runtime.errors import InputError, ScheduleError

from ..problem.cluster import Cluster
from ..problem.placement_rules import verify
from ..problem.service import Service, ServiceRequest, by_name
from ..problem.service_placement import Allocation, Circuit, Hop, ServicePlacement, ServiceStage
from .cluster_search import ClusterSearch, Embedding


class ClusterState:
    """The current state of a cluster.

    Parameters
    ----------
    cluster : Cluster
    services : sequence of Service
        The services that requests may name.
    search : ClusterSearch, optional
        A search of the same cluster, to reuse its tables.

    Attributes
    ----------
    gpus, fibres : array of int
        Free GPUs of each pool, free fibres of each link.
    running : dict of str to ServicePlacement
        By request.
    waiting : dict of str to ServiceRequest
        Requests by name whose service a failure ended and that have no place since.
    asked : Counter
        How often each service was requested so far, whether it was placed or not.

    Examples
    --------
    >>> state = ClusterState(cluster, [chat])
    >>> placement = place(state, ServiceRequest("r0", "chat"))
    >>> [running.request for running in state.allocation.placements]
    ['r0']
    >>> state.release("r0").request, state.allocation.placements
    ('r0', ())
    """

    def __init__(self, cluster: Cluster, services: Sequence[Service], search: ClusterSearch | None = None) -> None:
        self.cluster, self.services = cluster, by_name(services)
        self.search = search or ClusterSearch(cluster)
        self.running: dict[str, ServicePlacement] = {}
        self.waiting: dict[str, ServiceRequest] = {}
        self.asked: Counter[str] = Counter()
        self._failed: set[str] = set()
        self._free = [list(pool.gpus) for pool in cluster.pools]
        self._open = [list(range(link.fibres)) for link in cluster.links]
        self.gpus = np.array([len(pool) for pool in self._free], dtype=np.int64)
        self.fibres = np.array([len(link) for link in self._open], dtype=np.int64)

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the GPUs and links that have failed."""
        return tuple(sorted(self._failed))

    @property
    def failed_parts(self) -> frozenset[str]:
        """`failed` as a set."""
        return frozenset(self._failed)

    @cached_property
    def _pool_kinds(self) -> np.ndarray:
        return np.array([pool.kind for pool in self.cluster.pools], dtype=np.int64)

    @cached_property
    def _pool_switches(self) -> np.ndarray:
        racks = self.cluster.racks
        return np.array(
            [self.cluster.switch_id[racks[pool.rack].switch] for pool in self.cluster.pools], dtype=np.int64
        )

    @property
    def kind_gpus(self) -> np.ndarray:
        """Free GPUs of each kind."""
        return np.bincount(self._pool_kinds, weights=self.gpus, minlength=len(self.cluster.kinds)).astype(np.int64)

    @property
    def switch_gpus(self) -> np.ndarray:
        """Free GPUs of each kind at each switch."""
        free = np.zeros((len(self.cluster.switches), len(self.cluster.kinds)), dtype=np.int64)
        np.add.at(free, (self._pool_switches, self._pool_kinds), self.gpus)
        return free

    def gpus_at(self, switch: int) -> np.ndarray:
        """Free GPUs of each pool, those at other switches left out."""
        return np.where(self._pool_switches == switch, self.gpus, 0)

    @property
    def allocation(self) -> Allocation:
        """The running services, failures and waiting requests, as a document."""
        return Allocation(self.cluster.digest, tuple(self.running.values()), self.failed, tuple(self.waiting.values()))

    @staticmethod
    def of(cluster: Cluster, services: Sequence[Service], allocation: Allocation) -> ClusterState:
        """Return the state that an allocation describes; raise `ScheduleError` if it breaks a rule."""
        verify(cluster, services, allocation)
        state = ClusterState(cluster, services)
        for name in allocation.failed:
            state.fail(name)
        for placement in allocation.placements:
            state.hold(placement)
            state.asked[placement.service] += 1
        state.waiting = {request.name: request for request in allocation.waiting}
        return state

    def service(self, name: str) -> Service:
        """Return the service of that name; raise an `InputError` that lists the known ones if there is none."""
        if name not in self.services:
            raise InputError(f"there is no service {name!r}; there are {', '.join(self.services)}")
        return self.services[name]

    def draft(
        self, request: ServiceRequest, embedding: Embedding, allocator: str = "", seconds: float = 0.0
    ) -> ServicePlacement:
        """Return the placement of an embedding on free GPUs and fibres, without reserving them.

        Raises
        ------
        ScheduleError
            It takes more than is free.
        """
        try:
            return self._draft(request, self.service(request.service), embedding, allocator, seconds)
        except IndexError:
            raise ScheduleError("it takes more than is free") from None

    def _draft(
        self, request: ServiceRequest, service: Service, embedding: Embedding, allocator: str, seconds: float
    ) -> ServicePlacement:
        taken, used = Counter[int](), Counter[int]()
        stages, first = [], 0
        for pool, end in zip(embedding.pools, embedding.ends, strict=True):
            gpu = self.cluster.gpus[self._free[pool][taken[pool]]].name
            taken[pool] += 1
            operators = [o.name for block in service.blocks[first:end] for o in service.operators[slice(*block)]]
            stages.append(ServiceStage(gpu, tuple(operators)))
            first = end
        circuits = []
        for s, links in enumerate(embedding.routes):
            hops = []
            for link in links:
                hops.append(Hop(self.cluster.links[link].name, self._open[link][used[link]]))
                used[link] += 1
            circuits.append(Circuit(s, s + 1, tuple(hops)))
        return ServicePlacement(
            request.name,
            service.name,
            service.digest,
            tuple(stages),
            tuple(circuits),
            embedding.cycle_ns,
            embedding.latency_ns,
            allocator,
            seconds,
            reported_status(embedding.status),
        )

    def hold(self, placement: ServicePlacement) -> None:
        """Reserve the GPUs and fibres of a placement.

        Raises
        ------
        InputError
            The request runs already, or a GPU or fibre is not free. Then nothing is reserved.
        """
        if placement.request in self.running:
            raise InputError(f"request {placement.request!r} runs already; release it first, or give another name")
        gpus = [self.cluster.gpu_id[name] for name in placement.gpus]
        fibres = [(self.cluster.link_id[hop.link], hop.fibre) for hop in placement.hops]
        for g in gpus:
            if g not in self._free[self.cluster.gpus[g].pool]:
                raise InputError(f"GPU {self.cluster.gpus[g].name!r} is not free")
        for link, fibre in fibres:
            if fibre not in self._open[link]:
                raise InputError(f"fibre {fibre} of link {self.cluster.links[link].name!r} is not free")
        if len(set(gpus)) < len(gpus) or len(set(fibres)) < len(fibres):
            raise InputError(f"request {placement.request!r} needs a GPU or fibre twice")
        for g in gpus:
            pool = self.cluster.gpus[g].pool
            self._free[pool].remove(g)
            self.gpus[pool] -= 1
        for link, fibre in fibres:
            self._open[link].remove(fibre)
            self.fibres[link] -= 1
        self.running[placement.request] = placement

    def release(self, request: str) -> ServicePlacement | None:
        """End a service and free its GPUs and fibres, except failed ones. Return None if it waited for a place.

        Raises
        ------
        InputError
            No such request runs or waits.
        """
        if self.waiting.pop(request, None) is not None:
            return None
        if request not in self.running:
            raise InputError(f"no request {request!r} runs; {len(self.running)} others do")
        placement = self.running.pop(request)
        for name in placement.gpus:
            if name not in self._failed:
                self._free_gpu(self.cluster.gpu_id[name])
        for hop in placement.hops:
            link = self.cluster.link_id[hop.link]
            if self.cluster.links[link].name not in self._failed:
                self._free_fibre(link, hop.fibre)
        return placement

    def _free_gpu(self, g: int) -> None:
        pool = self.cluster.gpus[g].pool
        bisect.insort(self._free[pool], g)
        self.gpus[pool] += 1

    def _free_fibre(self, link: int, fibre: int) -> None:
        bisect.insort(self._open[link], fibre)
        self.fibres[link] += 1

    def parts(self, name: str) -> tuple[str, ...]:
        """Return the names of the GPUs, or of the link, that a GPU, server, rack or link consists of.

        Raises
        ------
        InputError
            The cluster has no part of this name.
        """
        if name in self.cluster.gpu_id:
            return (name,)
        if name in self.cluster.servers:
            return tuple(self.cluster.gpus[g].name for g in self.cluster.servers[name])
        racks = {rack.name: r for r, rack in enumerate(self.cluster.racks)}
        if name in racks:
            return tuple(gpu.name for gpu in self.cluster.gpus if gpu.rack == racks[name])
        if name in self.cluster.link_id:
            return (self.cluster.links[self.cluster.link_id[name]].name,)
        raise InputError(
            f"cluster {self.cluster.name!r} has no GPU, server, rack or link {name!r}; GPUs are named like "
            f"{self.cluster.gpus[0].name!r}, servers like {self.cluster.gpus[0].server!r}"
        )

    def fail(self, name: str) -> list[ServicePlacement]:
        """Take a GPU, server, rack or link out of service.

        Returns the placements that this ends. They hold nothing any more, and their requests wait.
        """
        gone = set(self.parts(name)) - self._failed
        affected = [
            placement
            for placement in self.running.values()
            if gone.intersection(placement.gpus) or gone.intersection(self._links_of(placement))
        ]
        for placement in affected:
            self.release(placement.request)
            self.waiting[placement.request] = ServiceRequest(placement.request, placement.service)
        self._failed |= gone
        for part in gone:
            if part in self.cluster.gpu_id:
                g = self.cluster.gpu_id[part]
                self._free[self.cluster.gpus[g].pool].remove(g)
                self.gpus[self.cluster.gpus[g].pool] -= 1
            else:
                link = self.cluster.link_id[part]
                self._open[link].clear()
                self.fibres[link] = 0
        return affected

    def cordon(self, name: str) -> None:
        """Give no free GPUs or fibres of a GPU, server, rack or link to services any more; services there run on.

        `repair` undoes it.
        """
        for part in set(self.parts(name)) - self._failed:
            self._failed.add(part)
            if part in self.cluster.gpu_id:
                g = self.cluster.gpu_id[part]
                pool = self.cluster.gpus[g].pool
                if g in self._free[pool]:
                    self._free[pool].remove(g)
                    self.gpus[pool] -= 1
            else:
                link = self.cluster.link_id[part]
                self._open[link].clear()
                self.fibres[link] = 0

    def repair(self, name: str) -> None:
        """Put a GPU, server, rack or link back into service; parts of it that had not failed are unchanged."""
        back = self._failed.intersection(self.parts(name))
        self._failed -= back
        for part in back:
            if part in self.cluster.gpu_id:
                self._free_gpu(self.cluster.gpu_id[part])
            else:
                link = self.cluster.link_id[part]
                for fibre in range(self.cluster.links[link].fibres):
                    self._free_fibre(link, fibre)

    def _links_of(self, placement: ServicePlacement) -> set[str]:
        return {self.cluster.links[self.cluster.link_id[hop.link]].name for hop in placement.hops}
