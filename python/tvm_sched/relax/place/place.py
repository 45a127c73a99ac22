"""Place: run a scheduler on the module's problem."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import tvm

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import Problem, Request, Workload
from tvm_sched_runtime.schedule import Schedule, requests_of, resolved
from tvm_sched_runtime.schedule.verifier import verify

from ...progress import searching
from ...schedulers import get, solve
from ..ir.attributes import CHOICE, PARAMETERS, PROBLEM, SCHEDULE, SUBMODELS, get_problem, leave
from ..lower.kernel_libraries import claimed_functions, kernel_in_place
from ..problem.operator_graph import extract, extract_variants


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.Place")
class Place:
    """Choose the device and position of each operator, and the route of each parameter to its device.

    Reads the attribute ``tvm_sched.problem``, and the submodels of `SplitByDominators` if the scheduler solves submodels.
    Leaves the schedule as a JSON document in ``tvm_sched.schedule``. If the problem has variants, the pass also leaves
    the schedule's choice in ``tvm_sched.choice``, and resolves problem and schedule by it.

    Parameters
    ----------
    scheduler : str
        Name of a registered scheduler.
    options : mapping, optional
        Its options. If they set the size of submodels, the scheduler splits the graph itself.
    progress : callable, optional
        Called with the current task, the number of finished parts, and the number of parts.
    schedule : Schedule, optional
        Schedule of the same problem to use instead of calling the scheduler.
    resident : float or sequence of str, optional
        Parameters that remain on the devices from run to run (`CompileOptions`). A model with states that kernels update in
        place is scheduled for its further runs, in which these and the states are on the devices; others for a cold run.

    Examples
    --------
    >>> from tvm_sched.relax import get_schedule
    >>> from tvm_sched.relax.passes import Place
    >>> get_schedule(Place("single")(placed)).scheduler
    'single'
    """

    def __init__(
        self,
        scheduler: str = "anytime",
        options: Mapping[str, Any] | None = None,
        progress: Callable[[str, int, int], None] | None = None,
        *,
        schedule: Schedule | None = None,
        resident: float | Sequence[str] | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.options = dict(options or {})
        self.progress = progress
        self.schedule = schedule
        self.resident = resident

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        problem = get_problem(mod)
        if self.schedule is not None:
            return _with_schedule(mod, problem, _check_problem(self.schedule, problem))
        sizes, submodels = self._submodels(mod)
        workload = Workload(
            requests=self._further_runs(mod, problem),
            submodels=None if submodels is None else tuple(map(tuple, submodels)),
        )
        with searching() if get(self.scheduler).answers_interrupt else nullcontext():
            schedule = solve(problem, workload, self.scheduler, {**sizes, **self.options}, progress=self.progress)
        return _with_schedule(mod, problem, schedule)

    def _further_runs(self, mod: tvm.IRModule, problem: Problem) -> tuple[Request, ...]:
        """Return the run after the first of a model with states that stay on a device; none for other models."""
        if not any(kernel_in_place(mod, function) for function in claimed_functions(mod)):
            return ()
        kinds = {tensor.name: tensor.kind for tensor in problem.graph.tensors}
        states = [name for name in extract_variants(mod).arguments if kinds.get(name) == "parameter"]
        if not states:
            return ()
        kept = requests_of(problem, 0.0 if self.resident is None else self.resident)
        return (Request(tuple(sorted({*states, *(name for request in kept for name in request.resident)}))),)

    def _submodels(self, mod: tvm.IRModule) -> tuple[dict[str, Any], list[list[str]] | None]:
        """Return the sizes and submodels of `SplitByDominators`, if the scheduler's options do not set other sizes."""
        if not mod.attrs or SUBMODELS not in mod.attrs:
            return {}, None
        known = get(self.scheduler).option_names
        left = json.loads(str(mod.attrs[SUBMODELS]))
        sizes = {name: value for name, value in left["options"].items() if name in known}
        other = any(name in self.options and int(self.options[name]) != value for name, value in sizes.items())
        return ({}, None) if other or not sizes else (sizes, left["submodels"])


def _with_schedule(mod: tvm.IRModule, problem: Problem, schedule: Schedule) -> tvm.IRModule:
    """Return the module with a schedule of its problem, both resolved by the schedule's choice; joined parameters stay."""
    if problem.variants is None:
        return leave(mod, SCHEDULE, schedule)
    chosen, result = resolved(problem, schedule.replace(joined=()))
    notes = result.notes | ({"choice": schedule.choice} if schedule.choice else {})
    result = result.replace(joined=schedule.joined, notes=notes)
    mod = _with_parts(mod.with_attr(CHOICE, json.dumps(schedule.choice)))
    return leave(leave(mod, PROBLEM, chosen), SCHEDULE, result)


def _with_parts(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with the values of the parts of parameters that its kernels read."""
    parts = extract(mod).parts
    values = dict(mod.attrs[PARAMETERS]) if PARAMETERS in mod.attrs else {}
    for part in parts.values():
        if part.parameter not in values:
            raise InputError(
                f"the schedule cuts parameter {part.parameter!r}, which has no value; bind it, or compile without variants"
            )
    cut = {name: part.of(values[part.parameter]) for name, part in parts.items()}
    return mod.with_attr(PARAMETERS, {**values, **cut}) if cut else mod


def _check_problem(schedule: Schedule, problem: Problem) -> Schedule:
    """Return the schedule; raise if it is not a schedule of the problem."""
    if schedule.problem != problem.digest:
        raise InputError(
            f"the schedule is for problem {schedule.problem}, but model and topology give problem {problem.digest}; "
            "schedule them again, or pass the model, shapes, topology and cost model of the schedule"
        )
    verify(problem, schedule)
    return schedule
