"""State after a submodel, from which the next one starts, and the events of assignments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tvm_sched_runtime.problem import HOST, Scenario

from ..common.events import Event, Move, Run
from .adjustments import Latencies
from .submodel import Submodel, Times


class Planned(NamedTuple):
    """An event with its time in the program; sorted events give the merged schedule."""

    when: float
    kind: int
    turn: int
    event: Event


LOAD, COPY, RUN = range(3)


@dataclass(frozen=True)
class Nodes:
    """The nodes of a submodel: operators, operators of earlier submodels, host tensors."""

    operators: list[int]
    placeholders: list[int]
    parameters: list[int]

    @property
    def count(self) -> int:
        """Number of nodes."""
        return len(self.operators) + len(self.placeholders) + len(self.parameters)


class State:
    """PrevM, PrevDTFin, PrevSGFin and FixedNodes of the next submodel, and the events so far.

    As in the paper, times are the program's, not the simulator's. A device that shares host memory has a bus without
    transfer times.
    """

    def __init__(self, scenario: Scenario, latencies: Latencies, q: int, memory_scale: float = 1.0) -> None:
        self.scenario, self.latencies, self.q = scenario, latencies, q
        devices = scenario.topology.devices
        self.memory = [int(device.memory * memory_scale) for device in devices]
        self.device_end = [0.0] * len(devices)
        self.transfers_end = [0.0] * len(latencies.buses)
        self.holders: dict[int, dict[int, None]] = {}  # by tensor: devices in order of arrival
        self.placed = [-1] * len(scenario.graph.operators)
        self.planned: list[Planned] = []

    def submodel(self, operators: list[int]) -> tuple[Submodel, Nodes]:
        """Return the program's constants for the next operators, which are in topological order."""
        index = self.scenario.graph.index
        now = set(operators)
        before = {p for o in operators for p in index.predecessors[o]} - now
        host = dict.fromkeys(t for o in operators for t in index.host_inputs[o])
        nodes = Nodes(operators, sorted(before), list(host))
        number = {("operator", o): i for i, o in enumerate((*operators, *nodes.placeholders))}
        number |= {("tensor", t): len(operators) + len(nodes.placeholders) + i for i, t in enumerate(nodes.parameters)}
        edges = [(number["operator", p], number["operator", o]) for o in operators for p in index.predecessors[o]]
        edges += [(number["tensor", t], number["operator", o]) for o in operators for t in index.host_inputs[o]]
        fixed = {number["operator", p]: self.placed[p] for p in nodes.placeholders}
        fixed |= {number["tensor", t]: next(iter(self.holders[t])) for t in nodes.parameters if self.holders.get(t)}
        carried = [self._carried(nodes, i, now) for i in range(nodes.count)]
        devices, times = range(len(self.memory)), self.latencies
        others = nodes.count - len(operators)
        program = Submodel(
            operators=len(operators),
            placeholders=len(nodes.placeholders),
            parameters=len(nodes.parameters),
            edges=edges,
            q=self.q,
            buses=times.buses,
            memory=self.memory,
            size=[[self._bytes(tensors, d) for d in devices] for tensors in carried],
            kernel=[times.kernel[o] for o in operators] + [[0.0] * len(devices)] * others,
            direct=[times.direct[o] for o in operators] + [[0.0] * len(devices)] * others,
            load=[[0.0] * len(devices)] * (nodes.count - len(nodes.parameters))
            + [[0.0 if d in self.holders.get(t, ()) else times.load(t, d) for d in devices] for t in nodes.parameters],
            copy=[[[self._copy(tensors, a, b) for b in devices] for a in devices] for tensors in carried],
            fixed=fixed,
            memory_used=self._memory_used(),
            transfers_end=list(self.transfers_end),
            device_end=list(self.device_end),
        )
        return program, nodes

    def _carried(self, nodes: Nodes, i: int, now: set[int]) -> list[int]:
        """Return the tensors of a node: an operator's results; of an earlier operator only those that are read here."""
        index = self.scenario.graph.index
        if i < len(nodes.operators):
            return list(index.outputs[nodes.operators[i]])
        i -= len(nodes.operators)
        if i < len(nodes.placeholders):
            return [t for t in index.outputs[nodes.placeholders[i]] if now & set(index.consumers[t])]
        return [nodes.parameters[i - len(nodes.placeholders)]]

    def _bytes(self, tensors: list[int], d: int) -> int:
        index = self.scenario.graph.index
        return sum(index.size[t] for t in tensors if d not in self.holders.get(t, ()) and not self._in_place(t, d))

    def _in_place(self, t: int, d: int) -> bool:
        return self.scenario.graph.index.producer[t] < 0 and self.scenario.reads_host_in_place(d)

    def _copy(self, tensors: list[int], a: int, b: int) -> float:
        if a == b:
            return 0.0
        missing = [t for t in tensors if b not in self.holders.get(t, ()) and not self._in_place(t, b)]
        return sum(self.latencies.copy(t, a, b) for t in missing)

    def _memory_used(self) -> list[int]:
        """Return the bytes on each device of parameters, and of results that the caller or unplaced operators still read."""
        index = self.scenario.graph.index
        used = [0] * len(self.memory)
        kept = set(index.graph_outputs)
        for t, devices in self.holders.items():
            alive = index.producer[t] < 0 or t in kept or any(self.placed[o] < 0 for o in index.consumers[t])
            for d in devices:
                if alive:
                    used[d] += index.size[t]
        return used

    def accept(self, s: Submodel, nodes: Nodes, assignment: list[int], times: Times) -> None:
        """Plan a submodel's events and make its end the state of the next one."""
        index = self.scenario.graph.index
        for bus, turns in enumerate(s.turns):
            at = s.transfers_end[bus]
            for j in turns:
                d = s.device_of(j)
                for i, t in enumerate(nodes.parameters, len(nodes.operators) + len(nodes.placeholders)):
                    if assignment[i] == j and i not in s.fixed and not self.scenario.reads_host_in_place(d):
                        self._plan(at, LOAD, Move(t, HOST, d))
                        at += s.load[i][d]
            self.transfers_end[bus] = at
        order = sorted(s.subgraphs, key=lambda j: (times.start[j], times.end[j], j))
        for i, o in enumerate(nodes.operators):
            self.placed[o] = s.device_of(assignment[i])
        for j in order:
            at, d = times.start[j], s.device_of(j)
            members = [i for i in range(len(nodes.operators)) if assignment[i] == j]
            for i in members:
                o = nodes.operators[i]
                direct = j % 2 == 1 and self.latencies.reads_directly(o, d)
                for t in index.inputs[o]:
                    at = self._copy_if_missing(t, d, direct, s, nodes, assignment, at)
            for i in members:
                o = nodes.operators[i]
                direct = j % 2 == 1 and self.latencies.reads_directly(o, d)
                self._plan(at, RUN, Run(o, d, direct))
                at += s.time(i, j)
                for t in index.outputs[o]:
                    self.holders.setdefault(t, {})[d] = None
        self.device_end = [times.end[s.of_device(d)[-1]] for d in s.devices]

    def _copy_if_missing(
        self, t: int, d: int, direct: bool, s: Submodel, nodes: Nodes, assignment: list[int], at: float
    ) -> float:
        """Plan the copy of an operator's input to its device if one is needed; return the time after it."""
        producer = self.scenario.graph.index.producer[t]
        if (producer < 0 and (direct or self.scenario.reads_host_in_place(d))) or d in self.holders.get(t, ()):
            return at
        if producer >= 0:
            source = self.placed[producer]
        else:
            i = len(nodes.operators) + len(nodes.placeholders) + nodes.parameters.index(t)
            source = s.device_of(assignment[i])
        if source == d:
            return at
        self._plan(at, COPY, Move(t, source, d))
        return at + self.latencies.copy(t, source, d)

    def _plan(self, when: float, kind: int, event: Event) -> None:
        self.planned.append(Planned(when, kind, len(self.planned), event))
        if isinstance(event, Move):
            self.holders.setdefault(event.tensor, {})[event.device] = None
