"""The integer program of Tarnawski et al. (NeurIPS 2020, Section 4.1) for latency with one contiguous subgraph a device."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from dataclasses import dataclass

from _placement import CPU, Evaluator, Placement, Workload
from ortools.math_opt.python import mathopt

Column = mathopt.Variable


@dataclass(frozen=True)
class Answer:
    """What the solver found in its time: None where there is no placement; the bound is 0 where it has none."""

    latency: float | None
    bound: float


class Program:
    """The program of one workload; each method adds one family of constraints."""

    def __init__(self, workload: Workload, horizon: float) -> None:
        self.w, self.horizon = workload, horizon
        self.model = mathopt.Model(name=workload.name)
        binary, number = self.model.add_binary_variable, self.model.add_variable
        devices, operators = range(workload.accelerators), range(len(workload.cpu))
        self.place = [[binary() for _ in range(len(workload.groups))] for _ in devices]
        self.copied_in = [[number(lb=0, ub=1) for _ in operators] for _ in devices]
        self.copied_out = [[number(lb=0, ub=1) for _ in operators] for _ in devices]
        self.ready = [number(lb=0, ub=horizon) for _ in operators]
        self.start = [number(lb=0, ub=horizon) for _ in devices]
        self.total = number(lb=0, ub=horizon)
        self.each_once()
        self.fits()
        self.contiguous()
        self.copies()
        self.times()
        self.model.minimize(self.total)

    def on(self, d: int, v: int) -> Column:
        """Whether operator ``v`` is on accelerator ``d``."""
        return self.place[d][self.w.group_of[v]]

    def edges(self) -> Iterator[tuple[int, int]]:
        for u, targets in enumerate(self.w.after):
            for v in targets:
                yield u, v

    def each_once(self) -> None:
        """A group is on one accelerator at most, otherwise on CPUs."""
        for g, members in enumerate(self.w.groups):
            self.model.add_linear_constraint(sum(row[g] for row in self.place) <= 1)
            if any(self.w.accelerated[v] == math.inf for v in members):
                for row in self.place:
                    self.model.add_linear_constraint(row[g] == 0)

    def fits(self) -> None:
        """Operators on an accelerator fit into its memory."""
        unit = max(self.w.memory, 1.0)
        for d in range(self.w.accelerators):
            held = sum(size / unit * self.on(d, v) for v, size in enumerate(self.w.size) if size)
            self.model.add_linear_constraint(held <= self.w.memory / unit)

    def contiguous(self) -> None:
        """No path leaves an accelerator's operators and comes back: ``above`` holds for what leads to one of them."""
        for d in range(self.w.accelerators):
            above = [self.model.add_variable(lb=0, ub=1) for _ in self.w.cpu]
            for v in range(len(self.w.cpu)):
                self.model.add_linear_constraint(above[v] >= self.on(d, v))
            for u, v in self.edges():
                self.model.add_linear_constraint(above[v] <= above[u])
                self.model.add_linear_constraint(above[v] <= self.on(d, v) - self.on(d, u) + 1)

    def copies(self) -> None:
        """An output is copied once into each accelerator that reads it, and once out of its own."""
        for d in range(self.w.accelerators):
            for u, v in self.edges():
                self.model.add_linear_constraint(self.copied_in[d][u] >= self.on(d, v) - self.on(d, u))
                self.model.add_linear_constraint(self.copied_out[d][u] >= self.on(d, u) - self.on(d, v))

    def times(self) -> None:
        """A subgraph begins when its inputs are in host memory; then it copies in, computes and copies out."""
        w = self.w
        for v, ready in enumerate(self.ready):
            alone = w.cpu[v] * (1 - sum(self.on(d, v) for d in range(w.accelerators)))
            self.model.add_linear_constraint(ready >= alone)
            for u in w.before[v]:
                self.model.add_linear_constraint(ready >= self.ready[u] + alone)
            self.model.add_linear_constraint(self.total >= ready)
        for d, start in enumerate(self.start):
            busy = sum(w.accelerated[v] * self.on(d, v) for v in range(len(w.cpu)) if w.accelerated[v] < math.inf)
            moved = zip(w.cost, self.copied_in[d], self.copied_out[d], strict=True)
            finish = start + busy + sum(cost * (into + out) for cost, into, out in moved)
            for v, ready in enumerate(self.ready):
                self.model.add_linear_constraint(start >= ready - self.horizon * (1 - self.copied_in[d][v]))
                self.model.add_linear_constraint(ready >= finish - self.horizon * (1 - self.on(d, v)))

    def placement(self, values: dict[Column, float]) -> Placement:
        result = [CPU] * len(self.w.groups)
        for d, row in enumerate(self.place):
            for g, column in enumerate(row):
                if values[column] > 0.5:
                    result[g] = d
        return result


def solve_program(workload: Workload, seconds: float) -> Answer:
    """Solve with HiGHS, without a start; the latency is that of the placement, not the solver's word."""
    evaluator = Evaluator(workload)
    program = Program(workload, evaluator.latency([CPU] * len(workload.groups)))
    limits = mathopt.SolveParameters(time_limit=datetime.timedelta(seconds=seconds))
    found = mathopt.solve(program.model, mathopt.SolverType.HIGHS, params=limits)
    bound = found.dual_bound() if found.termination.objective_bounds else 0.0
    bound = bound if math.isfinite(bound) else 0.0
    if not found.has_primal_feasible_solution():
        return Answer(None, bound)
    latency = evaluator.latency(program.placement(found.variable_values()))
    return Answer(latency if latency < math.inf else None, bound)
