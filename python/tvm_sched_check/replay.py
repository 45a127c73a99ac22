"""Replay a schedule by the rules of ``docs/model.md``: check that it obeys them, and compute when it ends."""

from __future__ import annotations

from collections.abc import Collection
from graphlib import CycleError, TopologicalSorter
from typing import Any

from .document import HOST, Problem, Refused, flag
from .together import Together, stages_of

IN_PLACE = -1  # in host memory that the device shares: there from the start


class Replay:
    """The events of a schedule, with start and end in nanoseconds; the constructor raises `Refused` at a broken rule.

    Events are numbered: first the placements in launch order, then the transfers in channel order. A host_read and its
    placement are one event, during whose first part the bus is busy. Parameters named ``resident`` that are never evicted
    are there from the start: their transfers take no time and no channel.
    """

    def __init__(
        self, problem: Problem, placements: list[Any], transfers: list[Any], resident: Collection[str] = ()
    ) -> None:
        self.problem = problem
        named = {problem.t[name] for name in resident if name in problem.t}
        if any(problem.kind[t] != "parameter" for t in named):
            raise Refused("the evidence names a resident tensor that is not a parameter")
        self.placements = [self._placement(p) for p in placements]
        self.stages = stages_of(problem, self.placements, placements)
        self.transfers = list(enumerate(map(self._transfer, transfers), len(placements)))
        self.resident = named - {t for _, (_, t, _, _, evict) in self.transfers if evict}
        placed = [o for o, _, _ in self.placements]
        if sorted(placed) != list(range(len(problem.operator_names))):
            raise Refused("rule 1: the schedule does not place each operator exactly once")
        brings = [((t, d), p) for p, (o, d, _) in enumerate(self.placements) for t in problem.outputs[o]]
        brings += [((t, d), x) for x, (kind, t, _, d, _) in self.transfers if kind != "host_read"]
        host = [t for t in range(len(problem.size)) if problem.is_host(t)]
        brings += [((t, d), IN_PLACE) for d in range(len(problem.shares)) for t in host if problem.in_place(t, d)]
        self.arrival = dict(brings)  # of a tensor on a device: the event that brings it there
        if len(self.arrival) < len(brings):
            raise Refused("rule 3: some tensor gets to some device twice")
        position = {o: p for p, o in enumerate(placed)}
        reads = [(position[o], d, x) for x, (kind, o, _, d, _) in self.transfers if kind == "host_read"]
        self.read_by = {x: p for p, _, x in reads}
        direct = [(p, d) for p, (_, d, direct) in enumerate(self.placements) if direct]
        if sorted((p, d) for p, d, _ in reads) != direct:
            raise Refused("rule 2: not each direct host access has one host_read of its own, on its device")
        # What is read on a device, and by which event: with direct host access tensors of host memory are not.
        self.reads = [
            ((t, d), p)
            for p, (o, d, direct) in enumerate(self.placements)
            for t in problem.inputs[o]
            if not (direct and problem.is_host(t))
        ]
        self.reads += [((t, source), x) for x, (kind, t, source, _, _) in self.transfers if kind == "copy"]
        for (t, d), _ in self.reads:
            if (t, d) not in self.arrival:
                names = problem.tensor_names[t], problem.device_names[d]
                raise Refused(f"rule 2: tensor {names[0]!r} is read on {names[1]!r}, but nothing brings it there")
        self._take_times()
        self._check_memory()
        self.latency = max((self.end[p] for p in range(len(placed))), default=0)

    def _placement(self, placement: dict[str, Any]) -> tuple[int, int, bool]:
        problem, name = self.problem, placement["operator"]
        o, d, direct = problem.o[name], problem.d[placement["device"]], flag(placement.get("direct_host_access", False))
        if (problem.direct if direct else problem.normal)[o][d] is None:
            raise Refused(f"rule 1: operator {name!r} cannot run on {placement['device']!r} in this mode")
        return o, d, direct

    def _transfer(self, transfer: dict[str, Any]) -> tuple[str, int, int, int, bool]:
        """Return kind, tensor (operator, for a host_read), source, target, and whether the tensor is evicted."""
        problem, kind, evict = self.problem, transfer["kind"], flag(transfer.get("evict", False))
        d = problem.d[transfer["device"]]
        if kind == "host_read":
            return kind, problem.o[transfer["operator"]], HOST, d, False
        t, source = problem.t[transfer["tensor"]], problem.d[transfer["source"]] if kind == "copy" else HOST
        known = kind == "copy" or (kind == "load" and problem.is_host(t))
        if not known or (source, d) not in problem.routes:
            raise Refused(f"rule 2: {kind} of {transfer['tensor']!r} to {transfer['device']!r}: no route, or no source")
        if evict and (problem.kind[t] != "parameter" or t in problem.results):
            raise Refused(f"{transfer['tensor']!r} is evicted; only parameters are, that the model does not return")
        return kind, t, source, d, evict

    def _take_times(self) -> None:
        """Compute start and end of all events as longest paths; refuse a cycle (rule 4).

        A transfer waits only for the part of a direct read that occupies the bus, not for the operator.
        """
        problem, bus_free = self.problem, dict[int, int]()
        durations = [(problem.direct if direct else problem.normal)[o][d] or 0 for o, d, direct in self.placements]
        waits: list[set[tuple[int, bool]]] = [set() for _ in (*self.placements, *self.transfers)]
        last: dict[int | str, tuple[int, bool]] = {}  # on a device or channel
        node, stages = [*(p for p, _ in self.stages), *(x for x, _ in self.transfers)], dict[int, list[Any]]()
        for p, (o, d, _) in enumerate(self.placements):
            waits[node[p]] |= {last[d]} - {(node[p], False)} if d in last else set()
            last[d] = node[p], False
            stages.setdefault(node[p], []).append((o, self.stages[p][1], durations[p]))
        together = Together(problem)
        for p, members in stages.items():
            durations[p] = together.stage(self.placements[p][1], members) if len(members) > 1 else durations[p]
        for x, (kind, t, source, d, _) in self.transfers:
            if kind != "host_read" and t in self.resident:
                durations.append(0)
                continue
            route, event = problem.routes[source, d], self.read_by.get(x, x)
            waits[event] |= {last[c] for c in route.channels if c in last}
            last |= dict.fromkeys(route.channels, (event, kind == "host_read"))
            durations.append(0 if kind == "host_read" else route.ns(problem.size[t]))
        for at, event in self.reads:
            if (came := self.arrival[at]) != IN_PLACE:
                # Within a stage, an operator need not wait for one before it on its stream.
                in_turn = node[came] == node[event] and came < event and self.stages[came][1] == self.stages[event][1]
                waits[node[event]] |= set() if in_turn else {(node[came], False)}
        self.waits = waits  # of each event: those before it, and whether it waits only for their direct read
        self.start, self.end, reading = dict[int, int](), dict[int, int](), {*self.read_by.values()}
        try:
            for e in TopologicalSorter({e: [w for w, _ in before] for e, before in enumerate(waits)}).static_order():
                self.start[e] = max((bus_free[w] if bus else self.end[w] for w, bus in waits[e]), default=0)
                self.end[e] = self.start[e] + durations[e]
                if e in reading:
                    bus_free[e] = self.start[e] + problem.host_read(*self.placements[e][:2])
            self.start, self.end = ({e: of[n] for e, n in enumerate(node)} for of in (self.start, self.end))
        except CycleError as error:
            raise Refused(f"rule 4: {len(error.args[1]) - 1} events wait for each other: a deadlock") from None

    def _check_memory(self) -> None:
        """Check rule 5. What is released at a moment is freed before what begins at that moment takes its bytes."""
        problem, last = self.problem, dict[tuple[int, int], int]()
        for at, event in self.reads:
            last[at] = max(last.get(at, 0), self.end[event])
        evicted = {(t, d) for _, (_, t, _, d, evict) in self.transfers if evict}
        changes: list[tuple[int, int, int]] = []
        for (t, d), event in self.arrival.items():
            if event != IN_PLACE:
                stays = (problem.kind[t] == "parameter" or t in problem.results) and (t, d) not in evicted
                changes.append((self.start[event], problem.size[t], d))
                changes += [] if stays else [(max(self.end[event], last.get((t, d), 0)), -problem.size[t], d)]
        held = [0] * len(problem.devices)
        for moment, size, d in sorted(changes):
            held[d] += size
            if held[d] > problem.memory[d]:
                name = problem.device_names[d]
                raise Refused(f"rule 5: {name!r} holds {held[d]} bytes at {moment} ns, more than it has")
