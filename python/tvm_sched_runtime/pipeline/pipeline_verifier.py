"""The rules of pipeline plans: ``docs/model.md``, Pipelines."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import ProblemError, ScheduleError
from ..problem import FORBIDDEN, Problem
from ..schedule.rules import Violation
from .pipeline_plan import PipelinePlan
from .stage_pricing import price

RULES = (
    "problem",
    "device-twice",
    "operator-missing",
    "operator-twice",
    "operator-forbidden",
    "stage-order",
    "operator-order",
    "route",
    "memory",
    "costs",
    "certificate",
)
"""All rules of `violations`."""


def verify(problem: Problem, plan: PipelinePlan) -> None:
    """Check that a plan is feasible, and that its costs and its certificate are true.

    Raises
    ------
    ScheduleError
        At the first broken rule; the message names the rule, the operator and the device.

    Examples
    --------
    >>> from tvm_sched.pipeline import plan_pipeline, verify
    >>> verify(problem, plan_pipeline(problem, stages=2))
    """
    for violation in _find(problem, plan):
        raise ScheduleError(violation.message)


def violations(problem: Problem, plan: PipelinePlan) -> list[Violation]:
    """Return every broken rule; costs are checked only if no earlier rule is broken.

    Examples
    --------
    >>> from tvm_sched.pipeline import plan_pipeline, violations
    >>> violations(problem, plan_pipeline(problem, stages=2))
    []
    """
    return list(_find(problem, plan))


def assignment_of(problem: Problem, plan: PipelinePlan) -> list[tuple[int, list[int]]]:
    """Return device and operators of each stage as numbers; raise `ScheduleError` if the problem lacks one."""
    devices, operators = problem.topology.device_id, problem.graph.index.operator_id
    try:
        return [(devices[stage.device], [operators[o] for o in stage.operators]) for stage in plan.stages]
    except KeyError as error:
        raise ScheduleError(
            f"rule 'problem': the plan names {error.args[0]!r}, which is no operator or device of problem {problem.digest} "
            f"({problem.graph.name!r} on {problem.topology.name!r})"
        ) from None


def _find(problem: Problem, plan: PipelinePlan) -> Iterator[Violation]:
    if plan.problem != problem.digest:
        yield Violation(
            "problem", f"rule 'problem': the plan was made for problem {plan.problem!r}, this is {problem.digest!r}"
        )
    try:
        assignment = assignment_of(problem, plan)
    except ScheduleError as error:
        yield Violation("problem", str(error))
        return
    broken = False
    for violation in (*_placement(problem, plan, assignment), *_order(problem, plan, assignment)):
        broken = True
        yield violation
    if not broken:
        yield from _costs(problem, plan, assignment)


def _placement(problem: Problem, plan: PipelinePlan, assignment: list[tuple[int, list[int]]]) -> Iterator[Violation]:
    """Check that each device has at most one stage, and each operator one stage on a device that can run it."""
    devices: dict[str, int] = {}
    placed: dict[int, int] = {}
    for s, (device, operators) in enumerate(assignment):
        name = plan.stages[s].device
        if devices.setdefault(name, s) != s:
            message = f"rule 'device-twice': stages {devices[name]} and {s} are both on device {name!r}"
            yield Violation("device-twice", message, device=name)
        for o in operators:
            operator = problem.graph.operators[o].name
            if o in placed:
                message = f"rule 'operator-twice': operator {operator!r} is in stage {placed[o]} and again in stage {s}"
                yield Violation("operator-twice", message, operator, name)
            placed.setdefault(o, s)
            if problem.costs.operator_ns[o, device] == FORBIDDEN:
                message = f"rule 'operator-forbidden': operator {operator!r} cannot run on {name!r} (stage {s})"
                yield Violation("operator-forbidden", message, operator, name)
    for o, missing in enumerate(problem.graph.operators):
        if o not in placed:
            message = f"rule 'operator-missing': operator {missing.name!r} is in no stage; each is in one"
            yield Violation("operator-missing", message, missing.name)


def _order(problem: Problem, plan: PipelinePlan, assignment: list[tuple[int, list[int]]]) -> Iterator[Violation]:
    """Check that no tensor goes to an earlier stage, and that operators of a stage follow their inputs' producers."""
    place = {o: (s, i) for s, (_, operators) in enumerate(assignment) for i, o in enumerate(operators)}
    for o, before in enumerate(problem.graph.index.predecessors):
        for u in before:
            if o not in place or u not in place or place[u] < place[o]:
                continue
            names = problem.graph.operators[o].name, problem.graph.operators[u].name
            s, r = place[o][0], place[u][0]
            if s == r:
                text = f"rule 'operator-order': in stage {s}, operator {names[0]!r} runs before {names[1]!r}, which it reads"
                yield Violation("operator-order", text, names[0], plan.stages[s].device)
            else:
                text = (
                    f"rule 'stage-order': operator {names[0]!r} in stage {s} reads {names[1]!r} of the later stage {r}"
                )
                yield Violation("stage-order", text, names[0], plan.stages[s].device)


def _costs(problem: Problem, plan: PipelinePlan, assignment: list[tuple[int, list[int]]]) -> Iterator[Violation]:
    try:
        priced = price(problem, assignment)
    except ProblemError as error:
        yield Violation("route", f"rule 'route': {error}")
        return
    for s, (stage, true) in enumerate(zip(plan.stages, priced, strict=True)):
        device = problem.topology.devices[assignment[s][0]]
        if true.peak_bytes > device.memory:
            message = (
                f"rule 'memory': the activations of stage {s} take {true.peak_bytes} bytes at once; "
                f"device {device.name!r} has {device.memory}"
            )
            yield Violation("memory", message, device=device.name)
        if stage != true:
            message = f"rule 'costs': stage {s} says {_figures(stage)}, the model {_figures(true)}"
            yield Violation("costs", message, device=device.name)
    certificate = plan.certificate
    if certificate is None:
        return
    cost = max((stage.cost_ns for stage in priced), default=0)
    if certificate.cost_ns != cost:
        message = f"rule 'certificate': it says {certificate.cost_ns} ns, the bottleneck stage costs {cost} ns"
        yield Violation("certificate", message)
    if not 0 <= certificate.lower_bound_ns <= certificate.cost_ns:
        message = f"rule 'certificate': the lower bound is {certificate.lower_bound_ns} ns; 0 to the cost is allowed"
        yield Violation("certificate", message)


def _figures(stage: object) -> str:
    fields = ("input_ns", "work_ns", "overflow_ns", "output_ns", "parameter_bytes", "peak_bytes")
    return ", ".join(f"{field} {getattr(stage, field)}" for field in fields)
