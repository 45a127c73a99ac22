"""Benchmark instances of clusters: place as many requests of a sequence as possible before the first failure."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from tvm_sched_bench.kinds.kind import NO_FILES, Answer, Checked, Kind, Proof, checked_in_files, has_seed, limited
from tvm_sched_check.clusters import check as independent_check
from tvm_sched_runtime.errors import InputError, SchedulerError
from tvm_sched_runtime.files import content_digest

from . import (
    Allocation,
    Cluster,
    ClusterState,
    Service,
    ServiceRequest,
    demand_of_services,
    load_cluster,
    load_services,
    names,
    requests_of,
    try_place,
    verify,
)
from .allocators.allocator_registry import ALLOCATORS
from .bounds.mix_bound_evidence import evidence
from .search.cluster_search import ClusterSearch

STAGES = {
    "service1": (2, 3),
    "service2": (2, 4),
    "service3": (1, 2),
    "service4": (2, 4),
    "service5": (6, 9),
    "service6": (4, 5),
}
"""Least and most stages of each service for methods with fixed numbers of stages: RAMPA, Table IX."""
MOST_REQUESTS = 2000
"""Requests of a random sequence; no allocator places so many on the clusters of the suite."""


@dataclass(frozen=True)
class Demand:
    """A cluster, the services, and a sequence of requests for them."""

    cluster: Cluster
    services: tuple[Service, ...]
    requests: tuple[ServiceRequest, ...]
    tables: dict[str, ClusterSearch] = field(default_factory=dict, compare=False)

    @property
    def search(self) -> ClusterSearch:
        """The searches on the cluster, made once."""
        return self.tables.setdefault("search", ClusterSearch(self.cluster))


class ClusterKind(Kind[Demand]):
    """The objective is the number of services placed before the first one that finds no place."""

    name, unit, most = "cluster", "services", True

    def methods(self) -> Sequence[str]:
        """Return the registered allocators."""
        return names()

    def is_random(self, method: str) -> bool:
        """Return whether a method has a seed, or tries numbers of stages in random order."""
        return has_seed(ALLOCATORS, method) or self._has_stages(method)

    def _has_stages(self, method: str) -> bool:
        return "stages" in ALLOCATORS.get(method).option_names

    def digest(self, task: Demand) -> str:
        """Return a hash of cluster, services and requests."""
        body = (task.cluster.digest, [service.digest for service in task.services], task.requests)
        return content_digest(msgspec.json.encode(msgspec.to_builtins(body)))

    def solve(self, task: Demand, method: str, seconds: float, seed: int) -> Answer:
        """Place one request after another. Methods with fixed numbers of stages try as many of Table IX as time allows."""
        begin = time.monotonic()
        _, options = limited(ALLOCATORS, method, seconds, seed)
        best = self._placed(task, method, options)
        if self._has_stages(method):
            for stages in combinations(seed):
                if time.monotonic() - begin > seconds:
                    break
                best = max(best, self._placed(task, method, {**options, "stages": stages}), key=_count)
        return Answer(_count(best), best.to_json(), time.monotonic() - begin)

    def _placed(self, task: Demand, method: str, options: Mapping[str, Any]) -> Allocation:
        state = ClusterState(task.cluster, task.services, task.search)
        for request in task.requests:
            if try_place(state, request, method, options) is None:
                break
        return state.allocation

    def worth(self, task: Demand, solution: bytes, where: str) -> float:
        """Return how many requests are placed; they must be the first ones of the sequence and obey every rule."""
        allocation = Allocation.from_json(solution, where)
        verify(task.cluster, task.services, allocation)
        placed = {placement.request: placement.service for placement in allocation.placements}
        wanted = {request.name: request.service for request in task.requests[: len(placed)]}
        if placed != wanted or allocation.failed or allocation.waiting:
            raise InputError(f"{where}: not the first {len(placed)} requests of the sequence are placed, and no others")
        return len(placed)

    def proof(self, task: Demand) -> Proof:
        """Return an upper bound that holds for every allocator, with its evidence."""
        argument = evidence(task.search, task.services, task.requests)
        return Proof(argument.bound, "mixes", argument.to_json())

    def check(
        self, task: Demand, solution: bytes, proof: Proof, where: str, files: Mapping[str, str] = NO_FILES
    ) -> Checked:
        """Check rules, figures and bound by `tvm_sched_check.clusters`."""
        if proof.evidence is None:
            return Checked()
        verdict = checked_in_files(independent_check, {"solution": solution, "evidence": proof.evidence}, where, files)
        if verdict.placed != self.worth(task, solution, where):
            raise SchedulerError(f"{where}: package and tvm_sched_check.clusters differ: please report this")
        return Checked("tvm_sched_check.clusters", verdict.proved)


KIND = ClusterKind()
"""For the entry point ``cluster`` of the group ``tvm_sched.benchmark_kinds``."""


def demand_of_rampa(cluster: str, demand: str, seed: int = 0) -> Demand:
    """Return random requests for the six services of RAMPA's evaluation, with the probabilities of Table IV.

    The entry point ``requests`` of the group ``tvm_sched.benchmark_sources`` names this function.
    """
    services = load_services()
    requests = requests_of(demand_of_services(demand, services), MOST_REQUESTS, seed)
    return Demand(load_cluster(cluster), tuple(services), tuple(requests))


def combinations(seed: int) -> list[dict[str, int]]:
    """Return all numbers of stages of Table IX, in random order."""
    ranges = [range(least, most + 1) for least, most in STAGES.values()]
    choices = [dict(zip(STAGES, stages, strict=True)) for stages in itertools.product(*ranges)]
    Random(seed).shuffle(choices)
    return choices


def _count(allocation: Allocation) -> int:
    return len(allocation.placements)
