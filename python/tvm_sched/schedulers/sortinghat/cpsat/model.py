"""Solve one submodel's program by CP-SAT: build it, start from a known assignment, read the answer."""

from __future__ import annotations

import time
from dataclasses import replace
from math import floor, inf
from typing import Any

from ortools.sat.python import cp_model

from ....cores import cores
from ....search_budget import check_time, seconds_left
from ...common.milp import GAP, Effort
from ...common.solver_runs import solve_in_thread
from ..program import ProgramResult
from ..submodel import Submodel, evaluate
from ..symmetry import relabelled
from . import constraints
from .variables import Variables


def solve(s: Submodel, start: list[int], effort: Effort, strengthened: bool = True) -> ProgramResult:
    """Solve the program by CP-SAT; parameters are those of `tvm_sched.schedulers.sortinghat.program.solve`.

    Objective and bound are of durations rounded down to nanoseconds. The effort's solver and limit of nodes are not used.
    If not ``strengthened``, the program has no orders on devices and no order of equal buses.
    """
    whole = in_nanoseconds(s)
    start = relabelled(s, start) if strengthened else start
    known, times = evaluate(s, start), evaluate(whole, start)
    if known is None or times is None:
        raise AssertionError("the start does not satisfy the program")
    model = cp_model.CpModel()
    v = Variables.of(model, whole, times.total)
    for constraint in constraints.ALL if strengthened else constraints.AS_PRINTED:
        check_time()
        constraint(model, v)
    v.hint(start, times)
    solver = cp_model.CpSolver()
    check_time()
    solver.parameters.max_time_in_seconds = min(effort.time_limit, seconds_left())
    solver.parameters.num_workers = cores()
    solver.parameters.random_seed = effort.seed
    solver.parameters.catch_sigint_signal = False  # Python handles Ctrl-C and ends the search
    solver.parameters.relative_gap_limit = GAP
    solver.parameters.cp_model_probing_level = 0  # it takes seconds for a large submodel
    begin = time.monotonic()
    status = solve_in_thread(lambda: solver.solve(model), solver.stop_search)
    seconds = time.monotonic() - begin
    bound = floor(solver.best_objective_bound + whole.base)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return ProgramResult(None, None, bound, _STATUS.get(status, "failed"), seconds)
    assignment = [next(j for j in v.places[node] if solver.boolean_value(v.within[node, j])) for node in s.nodes]
    taken = evaluate(s, assignment)
    better = taken is not None and taken.total < known.total
    objective = round(solver.objective_value + whole.base)
    return ProgramResult(assignment if better else None, objective, bound, _STATUS[status], seconds)


_STATUS = {cp_model.OPTIMAL: "optimal", cp_model.FEASIBLE: "limit", cp_model.UNKNOWN: "no solution"}


def in_nanoseconds(s: Submodel) -> Submodel:
    """Round all times of a submodel down to nanoseconds: no assignment takes longer, so that its bounds hold."""
    return replace(
        s,
        kernel=_rounded(s.kernel),
        direct=_rounded(s.direct),
        load=_rounded(s.load),
        copy=_rounded(s.copy),
        transfers_end=_rounded(s.transfers_end),
        device_end=_rounded(s.device_end),
    )


def _rounded(times: Any) -> Any:
    """Round down a time, or nested lists of times."""
    if isinstance(times, list):
        return [_rounded(each) for each in times]
    return times if times == inf else float(floor(times))
