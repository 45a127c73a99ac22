"""Parameters that are on the devices when a run begins (``docs/model.md``, "Cold and warm")."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias, cast

import msgspec

from ..errors import InputError
from ..problem import Problem, Request, Scenario, check_resident
from .resolve import resolved, resolved_scenario
from .schedule import Schedule

Resident: TypeAlias = "float | Collection[str]"
"""A fraction of the bytes of the parameters, 0 to 1, or names of parameters."""

Requests: TypeAlias = "Resident | Sequence[tuple[Resident, float]]"
"""Resident parameters of all runs; or pairs of resident parameters and weight for several kinds of runs."""


def moved_parameters(problem: Problem, schedule: Schedule) -> list[str]:
    """Return the parameters that the schedule moves and never evicts, in the order of their first transfer.

    Joined parameters follow the first of their set.

    Examples
    --------
    >>> from tvm_sched_runtime.schedule import moved_parameters
    >>> moved_parameters(problem, schedule)
    ['w']
    """
    index = problem.graph.index
    evicted = {t.tensor for t in schedule.transfers if t.evict}
    sets = {members[0]: members for members in schedule.joined}
    moved = (t.tensor for t in schedule.transfers if t.kind != "host_read" and t.tensor not in evicted)
    names = dict.fromkeys(name for first in moved for name in sets.get(first, (first,)))
    return [n for n in names if problem.graph.tensors[index.tensor_id[n]].kind == "parameter"]


def resident_parameters(problem: Problem, schedule: Schedule, resident: Resident) -> frozenset[str]:
    """Return the names of the resident parameters in a run; a fraction is of the bytes that the schedule transfers.

    Raises
    ------
    InputError
        A fraction is not between 0 and 1, or a name is not a parameter.

    Examples
    --------
    >>> from tvm_sched_runtime.schedule import resident_parameters
    >>> resident_parameters(problem, schedule, 1.0)
    frozenset({'w'})
    """
    if not isinstance(resident, (int, float)):
        return _named(problem, resident) - {t.tensor for t in schedule.transfers if t.evict}
    tensors, tensor_id = problem.graph.tensors, problem.graph.index.tensor_id
    moved = moved_parameters(problem, schedule) if resident else []  # 0 leaves out empty ones, too
    return frozenset(_part(((name, tensors[tensor_id[name]].size) for name in moved), resident))


def resolved_in_run(problem: Problem, schedule: Schedule, resident: Resident) -> tuple[Scenario, Schedule]:
    """Return the run of the resolved problem with these parameters resident, and the resolved schedule.

    Raises
    ------
    InputError
        As `resident_parameters`.
    ScheduleError
        As `resolved`.
    """
    if not isinstance(resident, (int, float)):
        return resolved_scenario(Scenario(problem, _named(problem, resident)), schedule)
    problem, schedule = resolved(problem, schedule)
    return Scenario(problem, resident_parameters(problem, schedule, resident)), schedule


def requests_of(problem: Problem, resident: Requests) -> tuple[Request, ...]:
    """Return the requests to schedule for; none if all runs are cold.

    A fraction takes the parameters that operators read first, in topological order, by bytes. If it has all parameters of a
    group, it also has those of the group's alternatives.

    Raises
    ------
    InputError
        A fraction is not between 0 and 1, a name is not a parameter, or weights are not numbers, below 0 or all 0.

    Examples
    --------
    >>> from tvm_sched_runtime.schedule import requests_of
    >>> requests_of(problem, ["w"])
    (Request(resident=('w',), weight=1.0),)
    """
    weighted = _weighted(resident)
    try:
        weights = [float(weight) for _, weight in weighted]
    except (TypeError, ValueError):
        raise InputError(f"requests are {resident!r}; pairs of what is resident and a weight are allowed") from None
    if not all(0 <= weight < math.inf for weight in weights) or (weighted and not sum(weights)):
        raise InputError(f"the weights of requests are {weights}; numbers from 0 on are allowed, not all 0")
    requests = [
        Request(tuple(sorted(_names(problem, each))), weight)
        for (each, _), weight in zip(weighted, weights, strict=True)
        if weight
    ]
    return tuple(requests) if any(request.resident for request in requests) else ()


def _weighted(resident: Requests) -> list[tuple[Resident, float]]:
    """Return the resident parameters of each kind of request, with its weight."""
    pairs = [] if isinstance(resident, (int, float, str)) else [each for each in resident if isinstance(each, tuple)]
    return (
        pairs
        if pairs and len(pairs) == len(cast("Collection[object]", resident))
        else [(cast("Resident", resident), 1.0)]
    )


def _names(problem: Problem, resident: Resident) -> Iterable[str]:
    """Return the names of the resident parameters, for any schedule."""
    if not isinstance(resident, (int, float)):
        return _named(problem, resident)
    index, tensors = problem.graph.index, problem.graph.tensors
    read = dict.fromkeys(t for o in index.order for t in index.inputs[o] if tensors[t].kind == "parameter")
    chosen = set(_part(((tensors[t].name, index.size[t]) for t in read), resident))
    for group in problem.variants.groups if problem.variants and resident else ():
        needed = {t for name in group.operators for t in index.inputs[index.operator_id[name]]}
        if all(tensors[t].name in chosen for t in needed if tensors[t].kind == "parameter"):
            chosen |= {t.name for each in group.alternatives for t in each.tensors if t.kind == "parameter"}
    return chosen


def _named(problem: Problem, names: Collection[str]) -> frozenset[str]:
    """Check the names of parameters."""
    if isinstance(names, str):
        raise InputError(f"resident names {names!r}; a fraction from 0 to 1, or a list of parameters, is allowed")
    return check_resident(problem, names)


def _part(parameters: Iterable[tuple[str, int]], part: float) -> list[str]:
    """Return the names of the first parameters that have at most this share of all bytes."""
    if not 0 <= part <= 1:
        raise InputError(f"resident is {part}; a fraction from 0 to 1, or a list of parameters, is allowed")
    known = list(parameters)
    limit, taken, chosen = math.floor(part * sum(size for _, size in known)), 0, []
    for name, size in known if part else ():
        taken += size
        if taken > limit:
            break
        chosen.append(name)
    return chosen


def requests_of_part(part: Problem, requests: Sequence[Request]) -> tuple[Request, ...]:
    """Restrict the requests of several models to the parameters of one.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import Request
    >>> from tvm_sched_runtime.schedule import requests_of_part
    >>> requests_of_part(problem, [Request(resident=("w", "another model's"))])
    (Request(resident=('w',), weight=1.0),)
    """
    there = {tensor.name for tensor in (*part.graph.tensors, *part.own_tensors)}
    return tuple(
        msgspec.structs.replace(r, resident=tuple(name for name in r.resident if name in there)) for r in requests
    )
