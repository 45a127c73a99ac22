"""Write the evidence of a lower bound: its argument as a list of lemmas for the checker (``docs/formats/evidence.md``).

The rules are those of `tvm_sched_check`, which shares no code with this package; ``docs/proofs/`` has their proofs. First
come delays between operators and ends of operators by bus traffic, last the argument about the whole run. Only lemmas
that the last one needs are written.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.errors import InfeasibleError, InputError
from tvm_sched_runtime.files import encode_document, write_atomically
from tvm_sched_runtime.problem import COLD, HOST, Problem, Request, Scenario, Workload, as_scenario

from ..progress import report_progress, report_to
from . import MARGIN, Bound, lower_bound, strongest, whole_ns
from .assignment import assignment_bound
from .bisection import bisection_bound
from .bus import bus_bound
from .device_work import work_arguments
from .dominated_regions import regions_between
from .enumeration import enumeration_bound
from .group_delays import START, GroupDelay, as_delays, group_delays
from .joined_loads import joined_loads_bound
from .path_and_bus import SCALE, path_and_bus_bound
from .priced_regions import PricedRegion
from .region_placement import MOST_DEVICES, Delay, enumerated_members
from .region_work import TURNS, WIDEST, WORK, WORK_BEFORE_ENDS, WORK_ON_RAMPS, Argument, Delays, WorkRegion
from .relaxation import Relaxation
from .resident_relaxation import of_run
from .variant_relaxation import Relaxed, relaxed

FORMAT, VERSION = "tvm_sched.evidence", 1


class Evidence(NamedTuple):
    """A derivation of a lower bound."""

    problem: str
    """Digest of the problem."""
    certified: Bound
    """The result of `lower_bound`."""
    argument: str
    """The last lemma's argument: one of the names of `Bound`."""
    lemmas: list[dict[str, Any]]
    """See ``docs/formats/evidence.md``."""
    relaxed: Relaxed | None = None
    """With variants: the relaxed problem, which the lemmas are about."""
    resident: tuple[str, ...] = ()
    """In a warm run: the resident parameters, which no operator reads in the problem that the lemmas are about."""
    through: Sequence[str] = ()
    """Operators on which the last argument rests, for people to read: the critical path in order, the readers of host
    tensors, or the operators that fill the devices."""

    @property
    def proved_ns(self) -> int:
        """The bound in nanoseconds that the lemmas prove; it may be below the certified one."""
        return int(self.lemmas[-1]["ns"])

    def to_json(self) -> bytes:
        """Return the evidence as a JSON document."""
        workload = Workload((Request(self.resident),)) if self.resident else COLD
        body = {
            "problem": self.problem, "workload": workload.digest, "proved_ns": self.proved_ns, "argument": self.argument,
            "certified_ns": self.certified.ns, "certified_by": self.certified.name, "lemmas": self.lemmas,
        }  # fmt: skip
        if self.resident:
            body["resident"] = self.resident
        if self.relaxed is not None:
            document = json.loads(self.relaxed.problem.to_json())
            claim = {"graph": document["graph"], "costs": document["costs"], "runs": self.relaxed.runs}
            body["relaxed"] = claim | ({"combined": self.relaxed.combined} if self.relaxed.combined else {})
        return encode_document(body, FORMAT, VERSION)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file."""
        write_atomically(path, self.to_json())


_PARTS = 4
"""Parts of the work that `evidence` reports."""


def evidence(of: Problem | Scenario) -> Evidence:
    """Return the evidence of the lower bound of a problem in one run: the simplest argument that attains it.

    If the bound needs an argument without a rule (regions on more than `MOST_DEVICES` devices), the evidence has the
    strongest argument with one. With variants it holds for every choice, as the bound does.

    Raises
    ------
    InputError
        The costs say how long operators take together, and have more than shares of resources (`uncovered`).
    """
    return _evidence(as_scenario(of), whole=True)


def _evidence(scenario: Scenario, *, whole: bool) -> Evidence:
    """Return the evidence of a whole run, or of a part of one, for which fewer arguments hold."""
    problem, resident = scenario.problem, tuple(sorted(scenario.resident))
    if (more := uncovered(problem)) is not None:
        raise InputError(
            f"problem {problem.graph.name!r}: no evidence can be stored, since the costs of operators that run together "
            f"have {more}; lemmas know serial share and resources (costs.concurrency.serial_share and utilisation) alone"
        )
    report_progress("bound", 0, _PARTS)
    certified = lower_bound(scenario) if whole else Bound(strongest(scenario.problem), "")
    digest, problem = problem.digest, of_run(scenario)
    no_harder = None if problem.variants is None else relaxed(problem)
    basis = problem if no_harder is None else no_harder.problem
    if not basis.graph.operators:
        return Evidence(digest, certified, "critical path", [{"rule": "path", "ns": 0}], no_harder, resident)
    many = len(basis.topology.devices) > MOST_DEVICES or basis.costs.concurrency is not None
    report_progress("variants", 1, _PARTS)
    with report_to(None):  # bounds of groups are evidence, too
        through = [] if no_harder is None else group_delays(problem, no_harder, _proved if many else strongest)
    report_progress("arguments", 2, _PARTS)
    of_schedules = whole and no_harder is None
    recorder = _Recorder(
        (_WithoutRegions if many else Relaxation)(basis, *as_delays(through), of_schedules, no_harder is None), through
    )
    arguments = [
        recorder.critical_path(),
        recorder.bus(),
        *recorder.joined_loads(),
        *recorder.path_and_bus(),
        *recorder.device_work(),
    ]
    best = max(arguments, key=lambda argument: min(argument.ns, certified.ns))  # the first of those that attain it
    simpler = best
    for stronger in (*recorder.assignment(), *recorder.bisection(), *recorder.enumeration()):
        if best.ns < certified.ns and stronger.ns > best.ns:
            best = stronger._replace(before=simpler, heads=simpler.heads + stronger.heads)
    report_progress("lemmas", 3, _PARTS)
    lemmas = recorder.lemmas_for(best)
    return Evidence(digest, certified, best.name, lemmas, no_harder, resident, recorder.through(best))


def uncovered(problem: Problem) -> str | None:
    """Return what the costs of operators that run together have that no lemma knows; None if there is no such thing.

    Examples
    --------
    >>> from tvm_sched.bounds.schedule_evidence import uncovered
    >>> uncovered(problem) is None
    True
    """
    together = problem.costs.concurrency
    if together is None:
        return None
    has = {
        "pairs": bool(together.pairs), "threads": any(together.threads), "excess": any(together.excess),
        "crowding": bool(together.crowding.size), "factor": together.factor != 1, "variants": problem.variants is not None,
    }  # fmt: skip
    return next((name for name, there in has.items() if there), None)


def _proved(problem: Problem) -> int:
    """Return the bound in nanoseconds that lemmas prove; 0 if no schedule exists."""
    try:
        return _evidence(as_scenario(problem), whole=False).proved_ns
    except InfeasibleError:
        return 0


class _WithoutRegions(Relaxation):
    """Least times without delays by sharing, which have no rule, and of one resource, the one with most work in all."""

    @cached_property
    def region_delays(self) -> list[Delay]:
        """None."""
        return []

    @cached_property
    def busy(self) -> list[npt.NDArray[np.float64]]:
        """The occupancy times that the checker computes."""
        return [max(super().busy, key=lambda work: float(work.min(axis=1).sum()))]


class _RunArgument(NamedTuple):
    """An argument about the whole run: its bound, its lemma, and the operators whose heads and tails it counts."""

    name: str
    value: float
    lemma: dict[str, Any]
    heads: tuple[tuple[str, int], ...] = ()
    before: _RunArgument | None = None
    """A weaker argument that is stored as well, because other checkers know its rule."""

    @property
    def ns(self) -> int:
        """The bound in whole nanoseconds."""
        return whole_ns(self.value)


@dataclass
class _Recorder:
    """Find the lemmas that an argument needs, walking back from it."""

    relaxation: Relaxation
    of_groups: Sequence[GroupDelay] = ()
    used_delays: set[int] = field(default_factory=set)
    used_starts: set[int] = field(default_factory=set)
    bus_heads: set[int] = field(default_factory=set)
    walked: set[tuple[str, int]] = field(default_factory=set)
    arguments: dict[bytes, Argument] = field(default_factory=dict)
    of_alternatives: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    def critical_path(self) -> _RunArgument:
        """Return the argument `critical path`: the operator with the longest end and tail."""
        through = self.relaxation.end + self.relaxation.after
        o = int(through.argmax())
        return _RunArgument("critical path", float(through[o]), {"rule": "path"}, (("end", o), ("after", o)))

    def bus(self) -> _RunArgument:
        """Return the argument `bus`."""
        ns, least, readers = bus_bound(self.relaxation)
        lemma = {**self._bus_lemma(least), "operators": self._names(readers)}
        return _RunArgument("bus", ns, lemma, tuple(("after", o) for o in readers))

    def joined_loads(self) -> list[_RunArgument]:
        """Return the argument `joined loads`, if there is one."""
        found = joined_loads_bound(self.relaxation)
        if found is None:
            return []
        lemma = self._bus_lemma(0.0) | {"rule": "joined"}
        return [_RunArgument("joined loads", found.ns, lemma, tuple(("after", o) for o in found.readers))]

    def _bus_lemma(self, least: float) -> dict[str, Any]:
        topology = self.relaxation.problem.topology
        used = {device.bus for device in topology.devices}
        bandwidth = {bus.name: bus.bandwidth for bus in topology.buses if bus.name in used}
        if topology.storage and topology.shares_storage:
            bandwidth = {topology.storage.name: topology.storage.bandwidth}
        return {
            "rule": "bus",
            "least": math.floor(least * (1 - MARGIN)),
            "multipliers": dict(zip(bandwidth, _integers(list(bandwidth.values())), strict=True)),
        }

    def path_and_bus(self) -> list[_RunArgument]:
        """Return the argument `path and bus`, if there is one."""
        weighed = path_and_bus_bound(self.relaxation)
        if weighed is None:
            return []
        weights = weighed.weights
        lemma = {**self._bus_lemma(weighed.least), "operators": self._names(weighed.readers)}
        shares, names = lemma["multipliers"], ["", *self._names(range(len(self.relaxation.shortest)))]
        total = sum(shares.values())
        lemma["multipliers"] = {bus: weights.buses * share // total for bus, share in shares.items()}
        if weights.devices:
            lemma["devices"] = [int(weights.devices * share) for share in weighed.devices.tolist()]
        lemma["steps"] = [
            {**({"first": names[first + 1]} if first >= 0 else {}), "last": names[last + 1], "multiplier": weight}
            for (first, last), weight in weights.steps.items()
        ]
        if weighed.regions:
            lemma["regions"] = self._region_steps(weighed.regions, names)
        rests = tuple(("after", o) for o in weighed.readers)
        delays = tuple(("delay", self._delay_of[step]) for step in weights.steps if step in self._delay_of)
        return [_RunArgument("path and bus", weighed.ns, lemma, rests + delays)]

    @staticmethod
    def _region_steps(regions: Sequence[PricedRegion], names: Sequence[str]) -> list[dict[str, Any]]:
        return [
            {"first": names[each.first + 1], "last": names[each.last + 1], "multiplier": each.weight, "cost": each.cost}
            for each in regions
        ]

    def assignment(self) -> list[_RunArgument]:
        """Return the argument `assignment`, if there is one."""
        weighed = assignment_bound(self.relaxation)
        if weighed is None:
            return []
        topology, names = self.relaxation.problem.topology, ["", *self._names(range(len(self.relaxation.shortest)))]
        tensors = self.relaxation.problem.graph.tensors
        buses = {
            route.channels[0]: topology.storage.name if topology.storage and topology.shares_storage else device.bus
            for d, device in enumerate(topology.devices)
            if (route := topology.route(HOST, d)) is not None
        }
        lemma = {
            "rule": "assignment",
            "steps": [
                {**({"first": names[first + 1]} if first >= 0 else {}), "last": names[last + 1], "multiplier": weight}
                for (first, last), weight in weighed.steps.items()
            ],
            "devices": weighed.devices,
            "buses": [
                {"bus": buses[row.channel], "least": row.least, "multiplier": row.weight} for row in weighed.buses
            ],
            "copies": [
                {
                    "tensor": tensors[copy.tensor].name,
                    "reader": names[copy.reader + 1],
                    "prices": [copy.prices.get(place, 0) for place in weighed.place],
                }
                for copy in weighed.copies
            ],
        }
        if weighed.regions:
            lemma["regions"] = self._region_steps(weighed.regions, names)
        rests = tuple(("after", o) for o in range(len(self.relaxation.shortest)))
        delays = tuple(("delay", self._delay_of[step]) for step in weighed.steps if step in self._delay_of)
        return [_RunArgument("assignment", weighed.ns, lemma, rests + delays)]

    def bisection(self) -> list[_RunArgument]:
        """Return the argument `bisection`, if there is one."""
        divided = bisection_bound(self.relaxation)
        if divided is None:
            return []
        tensors = self.relaxation.problem.graph.tensors
        operators = range(len(self.relaxation.shortest))
        names = self._names(operators)
        lemma = {
            "rule": "bisection",
            "sides": divided.sides,
            "buses": [
                {"bus": divided.sides[row.channel], "least": row.least, "multiplier": row.weight}
                for row in divided.buses
            ],
            "copies": [
                {"tensor": tensors[copy.tensor].name, "reader": names[copy.reader], "prices": list(copy.prices)}
                for copy in divided.copies
            ],
            "follows": divided.follows,
            "behind": divided.behind,
            "leasts": list(divided.leasts),
            "product": divided.product,
            "diagonal": divided.diagonal,
            "slack": divided.slack,
        }
        return [_RunArgument("bisection", float(divided.ns), lemma, tuple(("after", o) for o in operators))]

    def enumeration(self) -> list[_RunArgument]:
        """Return the argument `enumeration`, if there is one."""
        found = enumeration_bound(self.relaxation)
        if found is None:
            return []
        lemma = {"rule": "enumeration", "backwards": found.backwards}
        return [_RunArgument("enumeration", float(found.ns), lemma)]

    def device_work(self) -> list[_RunArgument]:
        """Return the arguments `device work`."""
        arguments = []
        for argument in work_arguments(self.relaxation):
            operators = argument.held.operators.tolist()
            heads = {WORK: ["start"], WORK_BEFORE_ENDS: ["end"], WORK_ON_RAMPS: ["start", "end"]}[argument.rule]
            # How long devices wait for copies depends on the heads and tails of all operators in between.
            on = range(len(self.relaxation.shortest)) if argument.rule == WORK_ON_RAMPS else operators
            needs = tuple((side, o) for o in on for side in (*heads, "after"))
            lemma = self._work_lemma(argument, operators)
            arguments.append(_RunArgument("device work", argument.held.ns if operators else 0.0, lemma, needs))
        return arguments

    def _work_lemma(self, argument: Argument, operators: Iterable[int]) -> dict[str, Any]:
        names = self._names(operators)
        if argument.rule == TURNS:
            return {"rule": "turns", "operators": names}
        by = {WORK: "start", WORK_BEFORE_ENDS: "end", WORK_ON_RAMPS: "ramp"}[argument.rule]
        return {"rule": "work", "by": by, "operators": names, "multipliers": _integers(argument.weights.tolist())}

    @cached_property
    def through_groups(self) -> list[GroupDelay]:
        """Delays through groups from operators."""
        return [each for each in self.of_groups if each.first != START]

    @cached_property
    def _from_start(self) -> dict[int, GroupDelay]:
        """By last operator, the delays through groups from the start of the run."""
        return {each.last: each for each in self.of_groups if each.first == START}

    def _names(self, operators: Iterable[int]) -> list[str]:
        return [self.relaxation.problem.graph.operators[o].name for o in operators]

    def lemmas_for(self, whole: _RunArgument) -> list[dict[str, Any]]:
        """Return the lemmas that an argument needs, in order, with its own last."""
        self._walk(whole.heads)
        reasons: dict[int, dict[str, Any] | None] = {}
        stack = list(self.used_delays)
        while stack:
            i = stack.pop()
            if i not in reasons:
                reason = reasons[i] = self._reason(i)
                stack += [] if reason and reason["rule"] in ("placement", "ports", "alternatives") else self._inside(i)
        lemmas = []
        for o in sorted(self.bus_heads):
            own = bool(self.relaxation.host.must_cross[o] and self.relaxation.problem.graph.index.host_inputs[o])
            shortest = float(self.relaxation.shortest[o])
            least = min(float(self.relaxation.host.residual[o]), shortest) if own else shortest
            claim = whole_ns(float(self.relaxation.host.ancestors_on_bus[o]))
            lemmas.append({**self._bus_lemma(least), "last": self._names([o])[0], "ns": claim})
        for o in sorted(self.used_starts):
            through = self._from_start[o]
            lemmas.append({**self._group_lemma(through), "last": self._names([o])[0], "ns": through.ns})
        stated = {
            i for what, i in whole.heads if what == "delay"
        }  # steps refer to lemmas, also to those that are paths
        for i, reason in sorted(reasons.items()):
            if reason is not None or i in stated:
                first, last = self._names(self.relaxation.delays[i][:2])
                stands = {"first": first, "last": last, "ns": whole_ns(self.relaxation.delays[i].ns)}
                lemmas.append({**(reason or {"rule": "path"}), **stands})
        weaker = [whole.before] if whole.before else []
        return [*lemmas, *({**each.lemma, "ns": each.ns} for each in (*weaker, whole))]

    def through(self, whole: _RunArgument) -> list[str]:
        """Return the names of the operators on which an argument rests."""
        if whole.lemma["rule"] == "work":
            return list(whole.lemma["operators"])
        if whole.lemma["rule"] in ("bus", "joined"):
            return self._names(o for side, o in whole.heads if side == "after")
        if whole.lemma["rule"] in ("assignment", "bisection", "enumeration"):
            return self._names(range(len(self.relaxation.shortest)))
        place = {o: i for i, o in enumerate(self.relaxation.problem.graph.index.order)}
        return self._names(sorted({o for _, o in self.walked}, key=place.__getitem__))

    @cached_property
    def _members(self) -> dict[tuple[int, int], list[int]]:
        relaxation, ends = self.relaxation, {(delay.first, delay.last) for delay in self.relaxation.delays}
        regions = regions_between(relaxation.problem, relaxation.source, WIDEST)
        return {(u, v): between for u, v, between in regions if (u, v) in ends}

    def _inside(self, i: int) -> list[int]:
        """Return the other delays within the region of the ``i``-th."""
        delays = self.relaxation.delays
        members = self._members[delays[i].first, delays[i].last]
        first = {delays[i].first, *members}
        return [k for o in members for k in self._delays_to.get(o, ()) if k != i and delays[k].first in first]

    def _reason(self, i: int) -> dict[str, Any] | None:
        """Return the lemma of the ``i``-th delay; None if the longest path over delays inside of it suffices."""
        if i < len(self.through_groups):  # they come first among the delays
            return self._group_lemma(self.through_groups[i])
        relaxation, delay = self.relaxation, self.relaxation.delays[i]
        members = self._members[delay.first, delay.last]
        if self._placed.get((delay.first, delay.last), 0.0) >= delay.ns:
            enumerated = enumerated_members(relaxation.problem, delay.first, members, relaxation.best)
            return {"rule": "placement", "operators": self._names(enumerated)}
        if self._by_ports.get((delay.first, delay.last), 0.0) >= delay.ns:
            return {"rule": "ports"}
        inside = Delays()
        for k in self._inside(i):
            inside.add(relaxation.delays[k])
        region = WorkRegion(relaxation.problem, delay.first, members, relaxation.work, inside)
        if _explains(float((region.end + region.after).max()), delay.ns):
            return None
        if region.key not in self.arguments:
            self.arguments[region.key] = max(region.arguments(), key=lambda argument: argument.held.ns)
        strongest_argument = self.arguments[region.key]
        if not _explains(strongest_argument.held.ns, delay.ns):
            return None
        return self._work_lemma(strongest_argument, [members[k] for k in strongest_argument.held.operators.tolist()])

    def _group_lemma(self, through: GroupDelay) -> dict[str, Any]:
        alternatives = {}
        for alternative, problem in through.alternatives.items():
            if id(problem) not in self.of_alternatives:  # equal layers have one
                with report_to(None):
                    self.of_alternatives[id(problem)] = _evidence(as_scenario(problem), whole=False).lemmas
            alternatives[alternative] = self.of_alternatives[id(problem)]
        lemma: dict[str, Any] = {"rule": "alternatives", "group": through.group, "alternatives": alternatives}
        return lemma | ({"tensor": through.tensor} if through.tensor else {})

    @cached_property
    def _placed(self) -> dict[tuple[int, int], float]:
        """Delays by placement, by first and last operator."""
        return {(delay.first, delay.last): delay.ns for delay in self.relaxation.region_delays}

    @cached_property
    def _by_ports(self) -> dict[tuple[int, int], float]:
        """Delays by ports, by first and last operator."""
        return {(delay.first, delay.last): delay.ns for delay in self.relaxation.port_delays}

    def _walk(self, needed: Iterable[tuple[str, int]]) -> None:
        """Record the delays, and the ends by bus traffic, on which some heads and tails rest."""
        steps = {"end": self._before_end, "start": self._before_start, "after": self._behind, "delay": self._of_delay}
        stack = list(needed)
        self.walked.update(needed)
        while stack:
            what, o = stack.pop()
            more = [each for each in steps[what](o) if each not in self.walked]
            self.walked.update(more)
            stack += more

    def _before_end(self, o: int) -> list[tuple[str, int]]:
        relaxation, target = self.relaxation, self.relaxation.end[o]
        if _explains(relaxation.host.ancestors_on_bus[o], target):
            self.bus_heads.add(o)
            return []
        if o in self._from_start and _explains(self._from_start[o].ns, target):
            self.used_starts.add(o)
            return []
        for i in self._delays_to.get(o, ()):
            delay = relaxation.delays[i]
            if _explains(relaxation.end[delay.first] + delay.ns, target):
                self.used_delays.add(i)
                return [("end", delay.first)]
        return self._before_start(o)

    def _of_delay(self, i: int) -> list[tuple[str, int]]:
        self.used_delays.add(i)
        return []

    def _before_start(self, o: int) -> list[tuple[str, int]]:
        relaxation, before = self.relaxation, self.relaxation.problem.graph.index.predecessors[o]
        ready = max(before, key=lambda p: relaxation.end[p], default=None)
        if ready is None:
            return []
        if _explains(relaxation.end[ready], relaxation.ready_at[o]):
            return [("end", ready)]
        return [(side, p) for p in before for side in ("end", "start")]

    def _behind(self, o: int) -> list[tuple[str, int]]:
        relaxation, target = self.relaxation, self.relaxation.after[o]
        for i in self._delays_of.get(o, ()):
            delay = relaxation.delays[i]
            if _explains(delay.ns + relaxation.after[delay.last], target):
                self.used_delays.add(i)
                return [("after", delay.last)]
        behind = relaxation.problem.graph.index.successors[o]
        through = max(behind, key=lambda s: relaxation.shortest[s] + relaxation.after[s], default=None)
        if through is None or _explains(relaxation.shortest[through] + relaxation.after[through], target):
            return [] if through is None else [("after", through)]
        return [("after", s) for s in behind]

    @cached_property
    def _delay_of(self) -> dict[tuple[int, int], int]:
        """Delays between operators that no edge joins."""
        before, delays = self.relaxation.problem.graph.index.predecessors, self.relaxation.delays
        by_length = sorted(
            range(len(delays)), key=lambda i: delays[i].ns
        )  # of two between the same ends the longer one stays
        return {delays[i][:2]: i for i in by_length if delays[i].first not in before[delays[i].last]}

    @cached_property
    def _delays_to(self) -> dict[int, list[int]]:
        return _positions_by_key(delay.last for delay in self.relaxation.delays)

    @cached_property
    def _delays_of(self) -> dict[int, list[int]]:
        return _positions_by_key(delay.first for delay in self.relaxation.delays)


def _positions_by_key(keys: Iterable[int]) -> dict[int, list[int]]:
    positions: dict[int, list[int]] = {}
    for i, key in enumerate(keys):
        positions.setdefault(key, []).append(i)
    return positions


def _explains(value: float, target: float) -> bool:
    """Return whether a value explains another one, except for rounding."""
    return value >= target * (1 - 1e-12)


def _integers(weights: list[float]) -> list[int]:
    """Return integer multipliers in the same ratios; equal weights give equal multipliers."""
    return [max(1, round(weight / max(weights) * SCALE)) for weight in weights]
