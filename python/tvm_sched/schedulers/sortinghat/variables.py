"""Variables of a submodel's program (SortingHat, Section 3.3)."""

from __future__ import annotations

from dataclasses import dataclass, field

from ortools.math_opt.python import mathopt

from .submodel import Submodel

SPAN = 1000.0
"""Longest time of a program on its own clock. It scales all programs alike, so the solver's tolerances mean the same."""


@dataclass(frozen=True)
class Clock:
    """The solver's clock: relevant times are from 0 to `SPAN`, the ``H`` of the equations."""

    base: float
    """Nanoseconds at 0."""
    tick: float
    """Nanoseconds of one unit."""

    @staticmethod
    def until(s: Submodel, latest: float) -> Clock:
        """Return the clock of a submodel that must end by ``latest`` nanoseconds."""
        latest = max([latest, *s.transfers_end, *s.device_end])
        return Clock(s.base, max(latest - s.base, 1.0) / SPAN)

    def at(self, when: float) -> float:
        """Convert nanoseconds to a moment on this clock."""
        return (when - self.base) / self.tick

    def when(self, at: float) -> float:
        """Convert a moment of this clock to nanoseconds."""
        return self.base + at * self.tick

    def long(self, duration: float) -> float:
        """Convert a duration in nanoseconds to this clock."""
        return duration / self.tick


@dataclass
class Variables:
    """Variables by the numbers of `Submodel`, with their names in the paper."""

    clock: Clock
    within: dict[tuple[int, int], mathopt.Variable] = field(default_factory=dict)
    """``x``, binary; only for allowed places of the node."""
    leads: dict[tuple[int, int], mathopt.Variable] = field(default_factory=dict)
    """``z``: a path leads from the node to the subgraph. This and the next two may be fractional: if all ``x`` are integers,
    integer values of these are as good, so the optimum is the same and the solver branches less."""
    edge_in: dict[tuple[int, int], mathopt.Variable] = field(default_factory=dict)
    """``EdgeIn``."""
    copy_in: dict[tuple[int, int, int], mathopt.Variable] = field(default_factory=dict)
    """``CopyIn``; not for copies within a device, where ``T`` is 0."""
    load_start: dict[int, mathopt.Variable] = field(default_factory=dict)
    load_end: dict[int, mathopt.Variable] = field(default_factory=dict)
    start: dict[int, mathopt.Variable] = field(default_factory=dict)
    end: dict[int, mathopt.Variable] = field(default_factory=dict)
    """``DTStart``, ``DTFin``, ``SGStart``, ``SGFin``."""
    ready: dict[int, mathopt.Variable] = field(default_factory=dict)
    """``NodeFin``."""
    total: mathopt.Variable = None
    """``TotalLatency``."""
    begin: dict[int, mathopt.Variable] = field(default_factory=dict)
    """Start of each operator. Like the next one it is not in the paper, and only in strengthened programs."""
    used: dict[tuple[int, int], mathopt.Variable] = field(default_factory=dict)
    """For equal buses: 1 only if the operator or an earlier one is on the bus."""

    @staticmethod
    def of(program: mathopt.Model, s: Submodel, latest: float) -> Variables:
        """Create all variables of a submodel that must end by ``latest`` nanoseconds."""
        v = Variables(Clock.until(s, latest))
        for node in s.nodes:
            for j in (0, *s.subgraphs):
                v.within[node, j] = program.add_binary_variable(name=f"x{node},{j}")
            for j in s.subgraphs:
                v.leads[node, j] = program.add_variable(lb=0, ub=1)
                if s.readers[node]:
                    v.edge_in[node, j] = program.add_variable(lb=0, ub=1)
                    for d in s.devices:
                        if d != s.device_of(j):
                            v.copy_in[node, d, j] = program.add_variable(lb=0, ub=1)
            v.ready[node] = program.add_variable(lb=0, ub=SPAN)
        for j in s.subgraphs:
            for times in (v.load_start, v.load_end, v.start, v.end):
                times[j] = program.add_variable(lb=0, ub=SPAN)
        v.total = program.add_variable(lb=0, ub=SPAN, name="total")
        return v

    def inside(self, s: Submodel, node: int, d: int) -> mathopt.LinearSum:
        """Return whether a node is in a subgraph of device ``d``."""
        return mathopt.fast_sum(self.within[node, j] for j in s.of_device(d))
