"""Check an allocation by the rules of ``docs/model.md``, "Clusters": each service is whole, and nothing is held twice."""

from __future__ import annotations

from typing import Any

from ..document import Refused
from .document import Cluster, Edge, Gpu, Service


def check_allocation(
    cluster: Cluster, services: dict[str, Service], allocation: dict[str, Any]
) -> list[tuple[str, str]]:
    """Return the placed requests with their services; raise `Refused` at the first broken rule."""
    held, asked = set[Any](allocation.get("failed", [])), list[tuple[str, str]]()
    if allocation["cluster"] != cluster.digest:
        raise Refused(
            f"the allocation is of cluster {allocation['cluster']}; the digest of the one given is {cluster.digest}"
        )
    for placement in allocation["placements"]:
        name, service = placement["request"], services[placement["service"]]
        if placement["service_digest"] != service.digest:
            raise Refused(
                f"request {name!r} is of a service {placement['service_digest']}; the one given is {service.digest}"
            )
        try:
            placed = _Placement(cluster, service, placement["stages"], placement["circuits"])
            placed.check_requirements(placement["cycle_ns"], placement["latency_ns"])
        except Refused as error:
            raise Refused(f"request {name!r}: {error}") from None
        for thing in [stage["gpu"] for stage in placement["stages"]] + placed.fibres:
            if thing in held or (type(thing) is tuple and thing[0] in held):
                raise Refused(f"request {name!r} holds {thing}, which has failed or another service holds")
            held.add(thing)
        asked.append((name, placement["service"]))
    if len({name for name, _ in asked}) < len(asked):
        raise Refused("a request occurs twice in the allocation")
    return asked


class _Placement:
    """A placed service: its stages, and a circuit between each two stages that an edge joins."""

    def __init__(self, cluster: Cluster, service: Service, stages: list[Any], circuits: list[Any]) -> None:
        self.cluster, self.service = cluster, service
        position = {name: o for o, name in enumerate(service.operators)}
        self.gpus = [cluster.gpus[stage["gpu"]] for stage in stages]
        self.stages = [[position[name] for name in stage["operators"]] for stage in stages]
        self.stage = {o: s for s, own in enumerate(self.stages) for o in own}
        if sorted(o for own in self.stages for o in own) != list(range(len(service.operators))):
            raise Refused("not each operator is in exactly one stage")
        self.fibres: list[tuple[str, int]] = []
        self.routes = {(c["source"], c["target"]): self._route(c) for c in circuits}
        self.crossing = [e for e in service.edges if self.stage[e.source] != self.stage[e.target]]
        if any(e.source < e.target and self.stage[e.source] > self.stage[e.target] for e in service.edges):
            raise Refused("data goes to an earlier stage")
        needed = {(self.stage[e.source], self.stage[e.target]) for e in self.crossing}
        if needed != set(self.routes) or len(circuits) != len(needed):
            raise Refused("not each two stages between which data goes have one circuit, and no others")

    def _route(self, circuit: dict[str, Any]) -> tuple[int, int]:
        """Return the delay of a circuit in nanoseconds and its least bandwidth; record the fibres that it holds."""
        ends: list[Gpu] = [self.gpus[circuit[end]] for end in ("source", "target")]
        at, bandwidth = ends[0].switch, min(gpu.bandwidth for gpu in ends)
        head = ends[0].delay + ends[1].delay + self.cluster.switch_ns[at]
        for hop in circuit["hops"]:
            link, fibre = self.cluster.links[hop["link"]], hop["fibre"]
            if at not in link.ends or type(fibre) is not int or not 0 <= fibre < link.fibres:
                raise Refused(f"a circuit passes fibre {fibre} of link {hop['link']!r}, which is not on its route")
            at, bandwidth = link.ends[link.ends[0] == at], min(bandwidth, link.bandwidth)
            head += link.delay + self.cluster.switch_ns[at]
            self.fibres.append((hop["link"], fibre))
        if at != ends[1].switch:
            raise Refused("a circuit does not lead to its stage")
        return head, bandwidth

    def _transfer(self, edge: Edge) -> int:
        head, bandwidth = self.routes[self.stage[edge.source], self.stage[edge.target]]
        return head - (-edge.bytes * 1_000_000_000 // bandwidth)

    def check_requirements(self, cycle_said: int, latency_said: int) -> None:
        """Check memory, cycle (equation 3 of RAMPA) and latency (equation 2); both times are in nanoseconds."""
        for s, (own, gpu) in enumerate(zip(self.stages, self.gpus, strict=True)):
            incoming = sum(e.bytes for e in self.crossing if self.stage[e.target] == s)
            held = sum(self.service.memory[o] for o in own) + incoming
            if held > self.cluster.kinds[gpu.kind]["memory"]:
                raise Refused(f"stage {s} holds {held} bytes, more than its GPU has")
        work = [sum(self.service.ns[o][g.kind] for o in own) for own, g in zip(self.stages, self.gpus, strict=True)]
        sent = {e: self._transfer(e) for e in self.crossing}
        loops = [e for e in self.crossing if e.source > e.target]
        cycle = max([*work, *sent.values(), *(self._loop(e, work, sent) for e in loops)])
        latency = cycle + max(self._longest({e: cycle + ns for e, ns in sent.items()}))
        if (cycle, latency) != (cycle_said, latency_said):
            raise Refused(f"it says cycle {cycle_said} and latency {latency_said} ns; they are {cycle} and {latency}")
        if cycle > self.service.cycle_limit or latency > self.service.latency_limit:
            raise Refused(f"cycle {cycle} and latency {latency} ns are above what the service requires")

    def _longest(self, weight: dict[Edge, int], start: int | None = None) -> list[Any]:
        """Return the longest path over forward edges to each operator, from any operator or from ``start``.

        Edges that ``weight`` does not name count 0.
        """
        reach: list[Any] = [0 if start is None or o == start else -float("inf") for o in range(len(self.service.ns))]
        for e in sorted(self.service.edges, key=lambda e: e.source):
            if e.source < e.target:
                reach[e.target] = max(reach[e.target], reach[e.source] + weight.get(e, 0))
        return reach

    def _loop(self, back: Edge, work: list[int], sent: dict[Edge, int]) -> int:
        """Return the time of a loop: its stages and the transfers between them, without the transfer of the edge back."""
        weight = {e: ns + work[self.stage[e.target]] for e, ns in sent.items() if e.source < e.target}
        return int(work[self.stage[back.target]] + max(0, self._longest(weight, back.target)[back.source]))
