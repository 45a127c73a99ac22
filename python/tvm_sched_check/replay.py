"""A schedule by the rules of ``docs/model.md``: that it obeys them, and when it ends."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import Any

from .document import HOST, Problem, Refused

IN_PLACE = -1  # in host memory that the device shares: there from the start


def replay(problem: Problem, schedule: dict[str, Any]) -> int:
    """Latency of a schedule in nanoseconds; refuses one that breaks a rule."""
    run = _Run(problem, schedule["placements"], schedule["transfers"])
    run.check_arrivals()
    run.take_times()
    run.check_memory()
    return max((run.end[p] for p in range(len(run.placements))), default=0)


class _Run:
    """Events are numbered: placements first, in launch order, then transfers, in channel order.

    A host_read is one event with its placement: the bus is busy for its first part.
    """

    def __init__(self, problem: Problem, placements: list[Any], transfers: list[Any]) -> None:
        self.problem = problem
        self.placements = [self._placement(p) for p in placements]
        self.transfers = list(enumerate(map(self._transfer, transfers), len(placements)))
        placed = [o for o, _, _ in self.placements]
        if sorted(placed) != list(range(len(problem.operator_names))):
            raise Refused("rule 1: the schedule does not place each operator exactly once")
        brings = [((t, d), p) for p, (o, d, _) in enumerate(self.placements) for t in problem.outputs[o]]
        brings += [((t, d), x) for x, (kind, t, _, d, _) in self.transfers if kind != "host_read"]
        host = [t for t in range(len(problem.size)) if problem.is_host(t)]
        brings += [((t, d), IN_PLACE) for d, shares in enumerate(problem.shares) if shares for t in host]
        self.arrival = dict(brings)  # of a tensor on a device: the event that brings it there
        if len(self.arrival) < len(brings):
            raise Refused("rule 3: some tensor gets to some device twice")
        self.reads = {x: placed.index(o) for x, (kind, o, _, _, _) in self.transfers if kind == "host_read"}
        direct = [(p, d) for p, (_, d, direct) in enumerate(self.placements) if direct]
        if sorted((self.reads[x], d) for x, (kind, _, _, d, _) in self.transfers if kind == "host_read") != direct:
            raise Refused("rule 2: not each direct host access has one host_read of its own, on its device")

    def _placement(self, placement: dict[str, Any]) -> tuple[int, int, bool]:
        problem, name = self.problem, placement["operator"]
        if placement.get("stage", 0):
            raise Refused(f"operator {name!r} is in a stage: these need costs.concurrency, which is not covered here")
        o, d, direct = problem.o[name], problem.d[placement["device"]], placement.get("direct_host_access", False)
        if (problem.direct if direct else problem.normal)[o][d] is None:
            raise Refused(f"rule 1: operator {name!r} cannot run on {placement['device']!r} in this mode")
        return o, d, direct

    def _transfer(self, transfer: dict[str, Any]) -> tuple[str, int, int, int, bool]:
        """Kind, tensor (or operator), source, target, evict."""
        problem, kind, evict = self.problem, transfer["kind"], transfer.get("evict", False)
        d = problem.d[transfer["device"]]
        if kind == "host_read":
            return kind, problem.o[transfer["operator"]], HOST, d, False
        t, source = problem.t[transfer["tensor"]], problem.d[transfer["source"]] if kind == "copy" else HOST
        known = kind == "copy" or (kind == "load" and problem.is_host(t))
        if not known or (source, d) not in problem.routes:
            raise Refused(
                f"rule 2: a {kind} of {transfer['tensor']!r} to {transfer['device']!r}: no route, or no source"
            )
        if evict and (problem.kind[t] != "parameter" or t in problem.results):
            raise Refused(f"{transfer['tensor']!r} is evicted; only parameters are, that the model does not return")
        return kind, t, source, d, evict

    def _needed(self, p: int) -> list[int]:
        """Tensors that a placement reads on its device: with direct host access not those of host memory."""
        o, _, direct = self.placements[p]
        return [t for t in self.problem.inputs[o] if not (direct and self.problem.is_host(t))]

    def check_arrivals(self) -> None:
        """Rule 2: each tensor arrives where it is read or copied from."""
        wanted = [(t, self.placements[p][1]) for p in range(len(self.placements)) for t in self._needed(p)]
        for t, d in wanted + [(t, source) for _, (kind, t, source, _, _) in self.transfers if kind == "copy"]:
            if (t, d) not in self.arrival:
                names = self.problem.tensor_names[t], self.problem.device_names[d]
                raise Refused(f"rule 2: tensor {names[0]!r} is read on {names[1]!r}, but nothing brings it there")

    def _waits(self) -> list[set[tuple[int, bool]]]:
        """By event: the events that it waits for, and whether only for their part on the bus."""
        waits: list[set[tuple[int, bool]]] = [set() for _ in range(len(self.placements) + len(self.transfers))]
        last: dict[int | str, tuple[int, bool]] = {}  # on a device or channel
        for p, (_, d, _) in enumerate(self.placements):
            waits[p] |= {(self.arrival[t, d], False) for t in self._needed(p)} | ({last[d]} if d in last else set())
            last[d] = p, False
        for x, (kind, t, source, d, _) in self.transfers:
            node = self.reads.get(x, x)
            waits[node] |= {last[c] for c in self.problem.routes[source, d].channels if c in last}
            waits[node] |= {(self.arrival[t, source], False)} if kind == "copy" else set()
            last |= dict.fromkeys(self.problem.routes[source, d].channels, (node, kind == "host_read"))
        return [{wait for wait in each if wait[0] != IN_PLACE} for each in waits]

    def take_times(self) -> None:
        """Rule 4, and start and end of each event: a longest path."""
        waits, on_bus = self._waits(), dict[int, int]()
        self.start: dict[int, int] = {}
        self.end: dict[int, int] = {}
        try:
            for e in TopologicalSorter({e: [w for w, _ in before] for e, before in enumerate(waits)}).static_order():
                self.start[e] = max((on_bus[w] if bus else self.end[w] for w, bus in waits[e]), default=0)
                self.end[e] = self.start[e] + self._duration(e)
                if e < len(self.placements) and self.placements[e][2]:
                    o, d, _ = self.placements[e]
                    on_bus[e] = self.start[e] + (self.problem.host_read[o][d] or 0)
        except CycleError as error:
            raise Refused(f"rule 4: {len(error.args[1]) - 1} events wait for each other: a deadlock") from None

    def _duration(self, e: int) -> int:
        if e < len(self.placements):
            o, d, direct = self.placements[e]
            return (self.problem.direct if direct else self.problem.normal)[o][d] or 0
        kind, t, source, d, _ = self.transfers[e - len(self.placements)][1]
        return 0 if kind == "host_read" else self.problem.routes[source, d].ns(self.problem.size[t])

    def check_memory(self) -> None:
        """Rule 5: what each device holds; what ends at a moment is freed before what begins then is taken."""
        problem = self.problem
        reads = [((t, d), self.end[p]) for p, (_, d, _) in enumerate(self.placements) for t in self._needed(p)]
        reads += [((t, source), self.end[x]) for x, (kind, t, source, _, _) in self.transfers if kind == "copy"]
        last: dict[tuple[int, int], int] = {}
        for at, end in reads:
            last[at] = max(last.get(at, 0), end)
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
                raise Refused(
                    f"rule 5: {problem.device_names[d]!r} holds {held[d]} bytes at {moment} ns, more than it has"
                )
