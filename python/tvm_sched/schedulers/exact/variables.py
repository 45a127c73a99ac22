"""Variables of a submodel's constraint program: where and when its operators run and its tensors travel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from ortools.sat.python import cp_model

from ...problem import FORBIDDEN, HOST, Problem
from ..common.partial import PartialSchedule


@dataclass(frozen=True)
class After:
    """What events that stay behind the submodel's ask of it: least times to the end of the run, in nanoseconds.

    Attributes
    ----------
    needed : mapping of (tensor, device) to int
        A tensor that must get to a device, and the time from its arrival there.
    device, channel : mapping of int to int
        The time from when a device or channel has done all that is before those events.
    """

    needed: Mapping[tuple[int, int], int] = field(default_factory=dict)
    device: Mapping[int, int] = field(default_factory=dict)
    channel: Mapping[int, int] = field(default_factory=dict)


@dataclass
class Submodel:
    """What is to be decided: operators of a submodel, after ``state``.

    Attributes
    ----------
    state : PartialSchedule
        What earlier submodels left: free times, places of tensors, memory.
    operators : list of int
        In topological order.
    tail : dict of int to int
        For each operator, the least time between its end and the end of the run.
    horizon : int
        No event need end after it, in nanoseconds from ``base``.
    bus_ahead, work_ahead : int
        Bus time and device time that the operators after this submodel need at least, summed over buses and devices.
    places : mapping of operator to set of (device, direct)
        Where and in what mode operators may run; those that are not in it, wherever they can.
    after : After
        Of events whose devices and order stand.
    latest : int or None
        When the run must end at the latest.
    """

    state: PartialSchedule
    operators: list[int]
    tail: dict[int, int]
    horizon: int
    base: int
    bus_ahead: int = 0
    work_ahead: int = 0
    places: Mapping[int, frozenset[tuple[int, bool]]] = field(default_factory=dict)
    after: After = field(default_factory=After)
    latest: int | None = None

    @property
    def problem(self) -> Problem:
        """The problem of which this is a part."""
        return self.state.problem

    @property
    def fits_solver(self) -> bool:
        """Whether CP-SAT's 64-bit integers hold every sum of times in the program; a year in nanoseconds may not."""
        parts = len(self.state.device_free) + len(self.state.channel_free)
        return (self.horizon + max(self.tail.values(), default=0) + self.bus_ahead + self.work_ahead) * 16 * (
            parts + 1
        ) < 2**62

    def free(self, when: int) -> int:
        """A time of the state on the submodel's clock."""
        return max(0, when - self.base)


@dataclass
class Variables:
    """Variables by what they stand for; keys are operators, tensors and devices of the problem.

    Attributes
    ----------
    start, end : dict of operator
    runs : dict of (operator, device, direct) to literal
    here : dict of (operator, device) to literal
        The operator runs on the device, in whatever mode.
    load : dict of (tensor, device) to literal, with ``load_start``, ``load_end``
    copy : dict of (tensor, source, device) to literal, with ``copy_start``, ``copy_end`` by (tensor, device)
    on_device, on_channel : dict to list of intervals
        What excludes each other.
    """

    start: dict[int, cp_model.IntVar] = field(default_factory=dict)
    end: dict[int, cp_model.IntVar] = field(default_factory=dict)
    runs: dict[tuple[int, int, bool], cp_model.IntVar] = field(default_factory=dict)
    here: dict[tuple[int, int], cp_model.IntVar] = field(default_factory=dict)
    load: dict[tuple[int, int], cp_model.IntVar] = field(default_factory=dict)
    load_start: dict[tuple[int, int], cp_model.IntVar] = field(default_factory=dict)
    load_end: dict[tuple[int, int], cp_model.IntVar] = field(default_factory=dict)
    copy: dict[tuple[int, int, int], cp_model.IntVar] = field(default_factory=dict)
    copy_start: dict[tuple[int, int], cp_model.IntVar] = field(default_factory=dict)
    copy_end: dict[tuple[int, int], cp_model.IntVar] = field(default_factory=dict)
    on_device: dict[int, list[cp_model.IntervalVar]] = field(default_factory=lambda: defaultdict(list))
    on_channel: dict[int, list[cp_model.IntervalVar]] = field(default_factory=lambda: defaultdict(list))

    @staticmethod
    def of(model: cp_model.CpModel, submodel: Submodel) -> Variables:
        """Make all variables of a submodel."""
        variables = Variables()
        for o in submodel.operators:
            variables._add_operator(model, submodel, o)
        for t, d in sorted(wanted(submodel, variables)):
            variables._add_ways(model, submodel, t, d)
        return variables

    def _add_operator(self, model: cp_model.CpModel, submodel: Submodel, o: int) -> None:
        problem, state = submodel.problem, submodel.state
        self.start[o] = model.new_int_var(0, submodel.horizon, f"start {o}")
        self.end[o] = model.new_int_var(0, submodel.horizon, f"end {o}")
        for d in range(len(problem.topology.devices)):
            modes = []
            for direct, costs in ((False, problem.costs.operator_ns), (True, problem.costs.direct_ns)):
                ns = int(costs[o, d])
                if ns == FORBIDDEN or (o in submodel.places and (d, direct) not in submodel.places[o]):
                    continue
                literal = model.new_bool_var(f"runs {o} {d} {direct}")
                self.runs[o, d, direct] = literal
                modes.append(literal)
                interval = model.new_optional_interval_var(self.start[o], ns, self.end[o], literal, f"run {o} {d}")
                self.on_device[d].append(interval)
                model.add(self.start[o] >= submodel.free(state.device_free[d])).only_enforce_if(literal)
                if direct:
                    self._occupy(model, submodel, HOST, d, self.start[o], problem.host_read_ns(o, d), literal)
            if len(modes) == 1:
                self.here[o, d] = modes[0]
            elif modes:
                self.here[o, d] = model.new_bool_var(f"here {o} {d}")
                model.add(sum(modes) == self.here[o, d])

    def _add_ways(self, model: cp_model.CpModel, submodel: Submodel, t: int, d: int) -> None:
        """Ways for tensor ``t`` to get to device ``d``: loading, a neighbour, or any device that may hold it."""
        problem, state = submodel.problem, submodel.state
        index, route = problem.graph.index, problem.topology.route
        if index.producer[t] < 0:
            self._add_load(model, submodel, t, d)
            sources = [*state.sources(t), *(s for s in state.transits[d] if (t, s) not in state.at)]
        elif state.placed[index.producer[t]] >= 0:
            sources = list(state.holders[t])
        else:
            sources = [s for s in range(len(problem.topology.devices)) if (index.producer[t], s) in self.here]
        sources = [s for s in sources if s != d and route(s, d) is not None]
        if not sources:
            return
        self.copy_start[t, d] = model.new_int_var(0, submodel.horizon, f"copy start {t} {d}")
        self.copy_end[t, d] = model.new_int_var(0, submodel.horizon, f"copy end {t} {d}")
        for s in sources:
            literal = model.new_bool_var(f"copy {t} {s} {d}")
            self.copy[t, s, d] = literal
            ns = problem.copy_ns(t, s, d)
            model.add(self.copy_end[t, d] >= self.copy_start[t, d] + ns).only_enforce_if(literal)
            self._occupy(model, submodel, s, d, self.copy_start[t, d], ns, literal)
            if index.producer[t] < 0 and s not in state.sources(t):
                self._add_load(model, submodel, t, s)

    def _add_load(self, model: cp_model.CpModel, submodel: Submodel, t: int, d: int) -> None:
        if (t, d) in self.load or (t, d) in submodel.state.at or submodel.problem.topology.route(HOST, d) is None:
            return
        ns = submodel.problem.load_ns(t, d)
        self.load[t, d] = model.new_bool_var(f"load {t} {d}")
        self.load_start[t, d] = model.new_int_var(0, submodel.horizon, f"load start {t} {d}")
        self.load_end[t, d] = model.new_int_var(0, submodel.horizon, f"load end {t} {d}")
        model.add(self.load_end[t, d] == self.load_start[t, d] + ns).only_enforce_if(self.load[t, d])
        self._occupy(model, submodel, HOST, d, self.load_start[t, d], ns, self.load[t, d])

    def _occupy(
        self,
        model: cp_model.CpModel,
        submodel: Submodel,
        source: int,
        d: int,
        start: cp_model.IntVar,
        ns: int,
        literal: cp_model.IntVar,
    ) -> None:
        """A transfer takes all channels of its route, after what earlier submodels put on them."""
        route = submodel.problem.route(source, d)
        interval = model.new_optional_fixed_size_interval_var(start, ns, literal, "")
        for c in route.channels:
            self.on_channel[c].append(interval)
        free = max((submodel.free(submodel.state.channel_free[c]) for c in route.channels), default=0)
        if free:
            model.add(start >= free).only_enforce_if(literal)


def wanted(submodel: Submodel, variables: Variables) -> set[tuple[int, int]]:
    """(tensor, device) for each tensor that may have to be brought to a device: a reader may run there, or will."""
    problem, state = submodel.problem, submodel.state
    index = problem.graph.index
    pairs = set()
    for o in submodel.operators:
        for d in range(len(problem.topology.devices)):
            if (o, d) not in variables.here:
                continue
            for t in index.inputs[o]:
                host = index.producer[t] < 0
                if host and ((o, d, False) not in variables.runs or problem.reads_host_in_place(d)):
                    continue
                if (t, d) not in state.at:
                    pairs.add((t, d))
    return pairs | {pair for pair in submodel.after.needed if pair not in state.at}
