"""A schedule by the rules of ``docs/model.md``: is it feasible, and when does it end?"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import Any

from .document import HOST, Problem, Refused

IN_PLACE = -1  # in host memory that the device shares: there from the start


def replay(problem: Problem, schedule: dict[str, Any]) -> int:
    """Latency of a schedule in nanoseconds; refuses one that breaks a rule."""
    if schedule["problem"] != problem.digest:
        raise Refused(f"the schedule is of problem {schedule['problem']}, this file has the digest {problem.digest}")
    run = _Run(problem, schedule["placements"], schedule["transfers"])
    run.time()
    run.check_memory()
    return max((run.end[p] for p in range(len(run.placements))), default=0)


class _Run:
    """Events are numbered: placements first, in launch order, then transfers, in channel order.

    A direct read is the placement's event: the bus is busy for its first part (`bus_end`).
    """

    def __init__(self, problem: Problem, placements: list[Any], transfers: list[Any]) -> None:
        self.problem = problem
        self.placements = [self._placement(p) for p in placements]
        self.transfers = [self._transfer(x) for x in transfers]
        self.arrival: dict[tuple[int, int], int] = {}  # the event that brings a tensor to a device
        for d, shares in enumerate(problem.shares):
            self.arrival |= {(t, d): IN_PLACE for t in range(len(problem.size)) if shares and problem.is_host(t)}
        placed = [o for o, _, _ in self.placements]
        if sorted(placed) != list(range(len(problem.operator_names))):
            raise Refused("rule 1: the schedule does not place each operator exactly once")
        self.placement_of = {o: p for p, o in enumerate(placed)}
        for p, (o, d, _) in enumerate(self.placements):
            for t in problem.outputs[o]:
                self._bring(t, d, p)
        self.reads: dict[int, int] = {}  # the placement whose direct read a transfer is
        for x, (kind, item, _, d, _) in enumerate(self.transfers, len(placed)):
            if kind != "host_read":
                self._bring(item, d, x)
            elif (
                self.placements[self.placement_of[item]][1:] != (d, True)
                or self.placement_of[item] in self.reads.values()
            ):
                raise Refused(f"rule 2: a host_read of {problem.operator_names[item]!r} has no placement of its own")
            else:
                self.reads[x] = self.placement_of[item]
        self._check_arrivals()

    def _placement(self, placement: dict[str, Any]) -> tuple[int, int, bool]:
        problem, name = self.problem, placement["operator"]
        if placement.get("stage", 0):
            raise Refused(f"operator {name!r} is in a stage; stages need costs.concurrency, which is not covered here")
        o, d, direct = problem.o[name], problem.d[placement["device"]], placement.get("direct_host_access", False)
        if (problem.direct if direct else problem.normal)[o][d] is None:
            raise Refused(f"rule 1: operator {name!r} cannot run on {placement['device']!r} in this mode")
        return o, d, direct

    def _transfer(self, transfer: dict[str, Any]) -> tuple[str, int, int, int, bool]:
        """Kind, tensor (or operator), source, target, evict."""
        problem, kind, d = self.problem, transfer["kind"], self.problem.d[transfer["device"]]
        if kind == "host_read":
            return kind, problem.o[transfer["operator"]], HOST, d, False
        t = problem.t[transfer["tensor"]]
        source = problem.d[transfer["source"]] if kind == "copy" else HOST
        if kind not in ("load", "copy") or problem.route(source, d) is None or source == d:
            raise Refused(f"rule 2: a {kind} of {transfer['tensor']!r} to {transfer['device']!r} has no route")
        if kind == "load" and not problem.is_host(t):
            raise Refused(f"rule 2: {transfer['tensor']!r} is loaded, but does not lie in host memory")
        evict = transfer.get("evict", False)
        if evict and (problem.kind[t] != "parameter" or t in problem.results):
            raise Refused(f"{transfer['tensor']!r} is evicted; only parameters are, that the model does not return")
        return kind, t, source, d, evict

    def _bring(self, t: int, d: int, event: int) -> None:
        if (t, d) in self.arrival:
            raise Refused(
                f"rule 3: tensor {self.problem.tensor_names[t]!r} gets to {self.problem.device_names[d]!r} twice"
            )
        self.arrival[t, d] = event

    def _needed(self, p: int) -> list[int]:
        """Tensors that a placement reads on its device: with direct host access not those of host memory."""
        o, _, direct = self.placements[p]
        return [t for t in self.problem.inputs[o] if not (direct and self.problem.is_host(t))]

    def _check_arrivals(self) -> None:
        wanted = [(t, self.placements[p][1]) for p in range(len(self.placements)) for t in self._needed(p)]
        wanted += [(t, source) for kind, t, source, _, _ in self.transfers if kind == "copy"]
        for t, d in wanted:
            if (t, d) not in self.arrival:
                names = self.problem.tensor_names[t], self.problem.device_names[d]
                raise Refused(f"rule 2: tensor {names[0]!r} is read on {names[1]!r}, but nothing brings it there")
        read = set(self.reads.values())
        for p, (o, _, direct) in enumerate(self.placements):
            if direct and p not in read:
                raise Refused(
                    f"rule 2: no host_read stands for the direct host access of {self.problem.operator_names[o]!r}"
                )

    def _waits(self) -> dict[int, set[tuple[int, bool]]]:
        """By event: the events that it waits for, and whether only for their part on the bus."""
        waits: dict[int, set[tuple[int, bool]]] = {e: set() for e in range(len(self.placements) + len(self.transfers))}
        on_device: dict[int, int] = {}
        for p, (_, d, _) in enumerate(self.placements):
            waits[p] |= {(self.arrival[t, d], False) for t in self._needed(p) if self.arrival[t, d] != IN_PLACE}
            if d in on_device:
                waits[p].add((on_device[d], False))
            on_device[d] = p
        on_channel: dict[str, tuple[int, bool]] = {}
        for x, (kind, t, source, d, _) in enumerate(self.transfers, len(self.placements)):
            node = self.reads.get(x, x)
            if kind == "copy" and self.arrival[t, source] != IN_PLACE:
                waits[x].add((self.arrival[t, source], False))
            route = self.problem.route(source, d)
            for channel in route.channels if route else ():
                if channel in on_channel:
                    waits[node].add(on_channel[channel])
                on_channel[channel] = node, kind == "host_read"
        return waits

    def time(self) -> None:
        """Rule 4 and the times: a longest path."""
        waits = self._waits()
        try:
            order = TopologicalSorter({e: [w for w, _ in before] for e, before in waits.items()}).static_order()
            self.start, self.end, bus_end = {}, {}, {}
            for e in order:
                self.start[e] = max((bus_end[w] if on_bus else self.end[w] for w, on_bus in waits[e]), default=0)
                self.end[e] = self.start[e] + self._duration(e)
                if e < len(self.placements) and self.placements[e][2]:
                    o, d, _ = self.placements[e]
                    bus_end[e] = self.start[e] + (self.problem.host_read[o][d] or 0)
        except CycleError as error:
            raise Refused(f"rule 4: {len(error.args[1]) - 1} events wait for each other: a deadlock") from None

    def _duration(self, e: int) -> int:
        if e < len(self.placements):
            o, d, direct = self.placements[e]
            return (self.problem.direct if direct else self.problem.normal)[o][d] or 0
        kind, t, source, d, _ = self.transfers[e - len(self.placements)]
        return 0 if kind == "host_read" else self.problem.copy_ns(t, source, d) or 0

    def check_memory(self) -> None:
        """Rule 5: what each device holds over time; what ends at a moment is freed before what begins then is taken."""
        problem = self.problem
        last: dict[tuple[int, int], int] = {}
        for p, (_, d, _) in enumerate(self.placements):
            for t in self._needed(p):
                last[t, d] = max(last.get((t, d), 0), self.end[p])
        evicted = set()
        for x, (kind, t, source, d, evict) in enumerate(self.transfers, len(self.placements)):
            if kind == "copy":
                last[t, source] = max(last.get((t, source), 0), self.end[x])
            if evict:
                evicted.add((t, d))
        changes: list[tuple[int, int, int]] = []
        for (t, d), event in self.arrival.items():
            if event == IN_PLACE:
                continue
            stays = (problem.kind[t] == "parameter" or t in problem.results) and (t, d) not in evicted
            begin, end = self.start[event], max(self.end[event], last.get((t, d), 0))
            if begin < end or stays:
                changes.append((begin, problem.size[t], d))
                changes += [] if stays else [(end, -problem.size[t], d)]
        held = [0] * len(problem.devices)
        for moment, size, d in sorted(changes):
            held[d] += size
            if held[d] > problem.devices[d]["memory"]:
                raise Refused(
                    f"rule 5: {problem.device_names[d]!r} holds {held[d]} bytes at {moment} ns, more than it has"
                )
