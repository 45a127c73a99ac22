"""Price a placement: cycle, latency and memory by Section IV-A of RAMPA, for any operator graph.

Written from the formulas alone: the searches in ``cpp/cluster`` have their own arithmetic, which this one judges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import rustworkx as rx

from .cluster import Cluster
from .service import Edge, Service, operator_ns
from .service_placement import Circuit, ServicePlacement


@dataclass(frozen=True)
class Price:
    """Time between inputs, time from input to output, and bytes that each stage's GPU holds."""

    cycle_ns: int
    latency_ns: int
    memory: tuple[int, ...]


def price(cluster: Cluster, service: Service, placement: ServicePlacement) -> Price:
    """Price a placement in whole nanoseconds, each operator and transfer rounded up.

    The placement must name existing GPUs and links, each operator once, and a circuit for each pair of stages that an edge
    joins; `placement_rules` checks this.
    """
    return _Pricing(cluster, service, placement).price()


def circuit_head_ns(cluster: Cluster, source_gpu: str, target_gpu: str, circuit: Circuit) -> int:
    """Return the time until the first byte arrives: delays of links, switches and both GPUs."""
    ends = [cluster.gpus[cluster.gpu_id[name]] for name in (source_gpu, target_gpu)]
    racks = [cluster.racks[gpu.rack] for gpu in ends]
    total = sum(
        nanoseconds(rack.delay) + nanoseconds(cluster.kinds[gpu.kind].transfer_delay)
        for gpu, rack in zip(ends, racks, strict=True)
    )
    at = racks[0].switch
    total += nanoseconds(cluster.switches[cluster.switch_id[at]].delay)
    for hop in circuit.hops:
        link = cluster.links[cluster.link_id[hop.link]]
        at = link.switches[1] if link.switches[0] == at else link.switches[0]
        total += nanoseconds(link.delay) + nanoseconds(cluster.switches[cluster.switch_id[at]].delay)
    return total


def circuit_bandwidth(cluster: Cluster, source_gpu: str, target_gpu: str, circuit: Circuit) -> int:
    """Return the least bandwidth of the links of a circuit, in whole bytes a second."""
    racks = [cluster.racks[cluster.gpus[cluster.gpu_id[name]].rack] for name in (source_gpu, target_gpu)]
    bandwidths = [cluster.links[cluster.link_id[hop.link]].bandwidth for hop in circuit.hops]
    return math.floor(min([*bandwidths, *(rack.bandwidth for rack in racks)]))


def nanoseconds(seconds: float) -> int:
    """Return seconds as whole nanoseconds, rounded up except for floating-point error."""
    return math.ceil(seconds * 1e9 - 1e-3)


class _Pricing:
    def __init__(self, cluster: Cluster, service: Service, placement: ServicePlacement) -> None:
        self.cluster, self.service, self.placement = cluster, service, placement
        self.stage_of = {name: s for s, stage in enumerate(placement.stages) for name in stage.operators}
        self.circuits = {(circuit.source, circuit.target): circuit for circuit in placement.circuits}
        self.stage_ns = [self._stage_ns(s) for s in range(len(placement.stages))]

    def _stage_ns(self, s: int) -> int:
        stage = self.placement.stages[s]
        kind = self.cluster.kinds[self.cluster.gpus[self.cluster.gpu_id[stage.gpu]].kind]
        operators, position = self.service.operators, self.service.operator_id
        return sum(operator_ns(operators[position[name]], kind) for name in stage.operators)

    def _ends(self, edge: Edge) -> tuple[int, int]:
        return self.stage_of[edge.source], self.stage_of[edge.target]

    def _transfer_ns(self, edge: Edge) -> int:
        a, b = self._ends(edge)
        gpus = self.placement.stages[a].gpu, self.placement.stages[b].gpu
        circuit = self.circuits[a, b]
        bandwidth = circuit_bandwidth(self.cluster, *gpus, circuit)
        return circuit_head_ns(self.cluster, *gpus, circuit) + -(-edge.bytes * 1_000_000_000 // bandwidth)

    def _is_forward(self, edge: Edge) -> bool:
        return self.service.operator_id[edge.source] < self.service.operator_id[edge.target]

    def price(self) -> Price:
        crossing = [edge for edge in self.service.all_edges if len(set(self._ends(edge))) > 1]
        transfers = {edge: self._transfer_ns(edge) for edge in crossing}
        times = [*self.stage_ns, *transfers.values()]
        times += [self._loop_ns(edge, transfers) for edge in crossing if not self._is_forward(edge)]
        cycle = max(times)
        weights = {edge: cycle + ns for edge, ns in transfers.items()}
        return Price(cycle, cycle + self._longest(weights), self._memory(crossing))

    def _longest(self, weights: Mapping[Edge, int], start: str | None = None, end: str | None = None) -> int:
        """Longest path over forward edges, from ``start`` and to ``end`` where given; no weight means 0."""
        graph: rx.PyDiGraph = rx.PyDiGraph()
        graph.add_nodes_from(range(len(self.service.operators)))
        position = self.service.operator_id
        first = 0 if start is None else position[start]
        last = len(self.service.operators) - 1 if end is None else position[end]
        for edge in self.service.all_edges:
            a, b = position[edge.source], position[edge.target]
            if a < b and first <= a and b <= last:
                graph.add_edge(a, b, weights.get(edge, 0))
        reached: dict[int, int] = {first: 0} if start is not None else dict.fromkeys(graph.node_indices(), 0)
        for node in graph.node_indices():  # in topological order: edges lead upwards
            if node in reached:
                for _, target, weight in graph.out_edges(node):
                    reached[target] = max(reached.get(target, 0), reached[node] + weight)
        return reached.get(last, 0) if end is not None else max(reached.values())

    def _loop_ns(self, edge: Edge, transfers: Mapping[Edge, int]) -> int:
        """T^b of equation (3): time of the stages and transfers on the loop that a backward edge closes."""
        weights = {
            forward: ns + self.stage_ns[self._ends(forward)[1]]
            for forward, ns in transfers.items()
            if self._is_forward(forward)
        }
        return self.stage_ns[self._ends(edge)[1]] + self._longest(weights, edge.target, edge.source)

    def _memory(self, crossing: list[Edge]) -> tuple[int, ...]:
        """Operators' memory and the data that comes in from other stages."""
        held = [
            sum(self.service.operators[self.service.operator_id[name]].memory for name in stage.operators)
            for stage in self.placement.stages
        ]
        for edge in crossing:
            held[self._ends(edge)[1]] += edge.bytes
        return tuple(held)
