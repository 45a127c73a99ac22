"""Which parameters are on the devices when a run begins (``docs/model.md``, "Cold and warm")."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TypeAlias

from ..errors import InputError
from ..problem import Problem
from .schedule import Schedule

Resident: TypeAlias = "float | Collection[str]"
"""A part of the bytes of the parameters that a schedule moves, from 0 to 1, or names of parameters."""


def moved_parameters(problem: Problem, schedule: Schedule) -> list[str]:
    """Parameters that the schedule loads and that can remain, in the order of their first transfer.

    One that is evicted from a device has to be brought again in each run.
    """
    index = problem.graph.index
    evicted = {t.tensor for t in schedule.transfers if t.evict}
    names = dict.fromkeys(t.tensor for t in schedule.transfers if t.kind != "host_read" and t.tensor not in evicted)
    return [n for n in names if problem.graph.tensors[index.tensor_id[n]].kind == "parameter"]


def resident_parameters(problem: Problem, schedule: Schedule, resident: Resident) -> frozenset[str]:
    """Names of the parameters that are there.

    Raises
    ------
    InputError
        A part is not between 0 and 1, or a name is no parameter.
    """
    tensors, tensor_id = problem.graph.tensors, problem.graph.index.tensor_id
    if not isinstance(resident, (int, float)):
        unknown = [n for n in resident if n not in tensor_id or tensors[tensor_id[n]].kind != "parameter"]
        if unknown or isinstance(resident, str):
            raise InputError(f"resident names {unknown or resident!r}; a list of the graph's parameters is allowed")
        return frozenset(resident) - {t.tensor for t in schedule.transfers if t.evict}
    if not 0 <= resident <= 1:
        raise InputError(f"resident is {resident}; a part from 0 to 1, or a list of parameters is allowed")
    moved = moved_parameters(problem, schedule) if resident > 0 else []  # 0 leaves out empty ones, too
    sizes = [tensors[tensor_id[name]].size for name in moved]
    limit, taken, chosen = math.floor(resident * sum(sizes)), 0, []
    for name, size in zip(moved, sizes, strict=True):
        taken += size
        if taken > limit:
            break
        chosen.append(name)
    return frozenset(chosen)
