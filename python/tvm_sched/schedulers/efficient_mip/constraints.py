"""The integer program of Tarnawski et al. (NeurIPS 2020) for latency: a function for each group of constraints."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from ortools.math_opt.python import mathopt

from ..common.milp import contiguous
from .instance import Instance

SPAN = 1000.0
"""Longest time on the program's own clock. It scales all instances alike, so the solver's tolerances mean the same."""


@dataclass
class Variables:
    """Variables by operator and subgraph."""

    tick: float
    """Time of one unit of the program's clock."""
    within: dict[tuple[int, int], mathopt.Variable] = field(default_factory=dict)
    """Binary; subgraph 0 is a CPU."""
    leads: dict[tuple[int, int], mathopt.Variable] = field(default_factory=dict)
    come_in: dict[tuple[int, int], mathopt.Variable] = field(default_factory=dict)
    go_out: dict[tuple[int, int], mathopt.Variable] = field(default_factory=dict)
    """Whether a path leads from the operator to the subgraph; whether the subgraph receives, or sends, its result. They may
    be fractional, because with integer ``within`` integer values are as good."""
    start: dict[int, mathopt.Variable] = field(default_factory=dict)
    end: dict[int, mathopt.Variable] = field(default_factory=dict)
    ready: dict[int, mathopt.Variable] = field(default_factory=dict)
    total: mathopt.Variable = None
    """The latency."""

    @staticmethod
    def of(program: mathopt.Model, instance: Instance, latest: float) -> Variables:
        """Create all variables of a placement that must end by ``latest``."""
        v = Variables(max(latest, 1e-9) / SPAN)
        for o in instance.operators:
            for j in (0, *instance.subgraphs):
                v.within[o, j] = program.add_binary_variable()
                if instance.time(o, j) == inf:
                    v.within[o, j].upper_bound = 0
            for j in instance.subgraphs:
                v.leads[o, j] = program.add_variable(lb=0, ub=1)
                if instance.after[o]:
                    v.come_in[o, j] = program.add_variable(lb=0, ub=1)
                    v.go_out[o, j] = program.add_variable(lb=0, ub=1)
            v.ready[o] = program.add_variable(lb=0, ub=SPAN)
        for j in instance.subgraphs:
            v.start[j] = program.add_variable(lb=0, ub=SPAN)
            v.end[j] = program.add_variable(lb=0, ub=SPAN)
        v.total = program.add_variable(lb=0, ub=SPAN)
        return v


def each_operator_once(program: mathopt.Model, instance: Instance, v: Variables) -> None:
    """Require that each operator is in one subgraph or on a CPU."""
    for o in instance.operators:
        program.add_linear_constraint(mathopt.fast_sum(v.within[o, j] for j in (0, *instance.subgraphs)) == 1)


def equal_numbers_stay_together(program: mathopt.Model, instance: Instance, v: Variables) -> None:
    """Require that operators of equal number are in the same place."""
    first: dict[int, int] = {}
    for o, number in enumerate(instance.together):
        other = first.setdefault(number, o)
        if other != o:
            for j in (0, *instance.subgraphs):
                program.add_linear_constraint(v.within[o, j] == v.within[other, j])


def subgraphs_are_contiguous(program: mathopt.Model, instance: Instance, v: Variables) -> None:
    """Forbid that a path leaves a subgraph and comes back."""
    contiguous(program, instance.operators, instance.edges, instance.subgraphs, v.within, v.leads)


def results_cross(program: mathopt.Model, instance: Instance, v: Variables) -> None:
    """Move a result into each subgraph that reads it from elsewhere, and out of one that is read elsewhere."""
    for a, b in instance.edges:
        for j in instance.subgraphs:
            program.add_linear_constraint(v.come_in[a, j] >= v.within[b, j] - v.within[a, j])
            program.add_linear_constraint(v.go_out[a, j] >= v.within[a, j] - v.within[b, j])


def memory_suffices(program: mathopt.Model, instance: Instance, v: Variables) -> None:
    """Require that all operators of an accelerator fit into its memory."""
    for i, capacity in enumerate(instance.capacity):
        own = [j for j in instance.subgraphs if instance.accelerator_of(j) == i]
        held = mathopt.fast_sum(instance.size[o] * v.within[o, j] for o in instance.operators for j in own)
        program.add_linear_constraint(held <= capacity)


def subgraphs_wait(program: mathopt.Model, instance: Instance, v: Variables) -> None:
    """Start a subgraph after the preceding one on its accelerator, when all that it reads is in host memory."""
    for j in instance.subgraphs:
        if (j - 1) % instance.q:
            program.add_linear_constraint(v.start[j] >= v.end[j - 1])
    for (o, j), come_in in v.come_in.items():
        program.add_linear_constraint(v.start[j] >= v.ready[o] - SPAN * (1 - come_in))


def subgraphs_take_time(program: mathopt.Model, instance: Instance, v: Variables) -> None:
    """Let a subgraph take results in, run its operators one after another, and put results out."""
    for j in instance.subgraphs:
        busy = [v.start[j]]
        for o in instance.operators:
            if instance.time(o, j) < inf:
                busy.append(instance.time(o, j) / v.tick * v.within[o, j])
            if instance.after[o] and instance.transfer[o]:
                busy += [instance.transfer[o] / v.tick * crossing[o, j] for crossing in (v.come_in, v.go_out)]
        program.add_linear_constraint(v.end[j] == mathopt.fast_sum(busy))


def operators_are_ready(program: mathopt.Model, instance: Instance, v: Variables) -> None:
    """End an operator with its subgraph; on a CPU, its own time after the operators that it reads."""
    for o in instance.operators:
        program.add_linear_constraint(v.total >= v.ready[o])
        for j in instance.subgraphs:
            program.add_linear_constraint(v.ready[o] >= v.end[j] - SPAN * (1 - v.within[o, j]))
        alone = instance.cpu[o] / v.tick * v.within[o, 0] if instance.cpu[o] < inf else 0.0 * v.within[o, 0]
        program.add_linear_constraint(v.ready[o] >= alone)
        for u in instance.before[o]:
            program.add_linear_constraint(v.ready[o] >= v.ready[u] + alone)


ALL = (
    each_operator_once,
    equal_numbers_stay_together,
    subgraphs_are_contiguous,
    results_cross,
    memory_suffices,
    subgraphs_wait,
    subgraphs_take_time,
    operators_are_ready,
)
"""All groups of the program."""
