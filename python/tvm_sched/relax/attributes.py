"""The module attributes that one pass leaves for the next, and how to read them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, TypeVar

import tvm

from ..errors import InputError
from ..pipeline import PipelinePlan
from ..problem import Problem
from ..schedule import Schedule
from .importers.model import PARAMETERS

PROBLEM = "tvm_sched.problem"
"""The problem as a JSON document (docs/formats/problem.md), left by EstimateLatencies."""
SCHEDULE = "tvm_sched.schedule"
"""The schedule as a JSON document (docs/formats/schedule.md), left by Place and changed by the passes after it."""
PIPELINE = "tvm_sched.pipeline"
"""The pipeline plan as a JSON document (docs/formats/pipeline.md), left by PartitionPipeline."""
SUBMODELS = "tvm_sched.submodels"
"""A JSON list of lists of operators' names, left by SplitByDominators."""
CHOICE = "tvm_sched.choice"
"""A JSON object of groups and the ways in which they are computed, left by Place where the problem had variants."""
NAME = "tvm_sched.name"
"""Name of the model."""
TAIL = "tvm_sched.tail"
"""A module of what is not scheduled because its sizes depend on data, left by SplitTail."""

__all__ = [
    "CHOICE",
    "NAME",
    "PARAMETERS",
    "PIPELINE",
    "PROBLEM",
    "SCHEDULE",
    "SUBMODELS",
    "TAIL",
    "get_attribute",
    "get_pipeline_plan",
    "get_problem",
    "get_schedule",
    "leave",
]

_Document = TypeVar("_Document", Problem, Schedule, PipelinePlan)

_objects: OrderedDict[str, Problem | Schedule | PipelinePlan] = OrderedDict()
"""The objects of the last documents that were left or read, by their text.

A module's attributes are documents, so that a module can be printed, compared and saved with them; but within a process each
is encoded once and decoded never.
"""
_MOST_OBJECTS = 16


def get_attribute(mod: tvm.IRModule, key: str, left_by: str) -> Any:
    """An attribute that an earlier pass must have left.

    Raises
    ------
    InputError
        It is not there; the message names the pass that leaves it.
    """
    if not mod.attrs or key not in mod.attrs:
        raise InputError(f"the module has no attribute {key!r}; run the pass {left_by} before this one")
    return mod.attrs[key]


def leave(mod: tvm.IRModule, key: str, value: Problem | Schedule | PipelinePlan) -> tvm.IRModule:
    """The module with a document as an attribute, for the passes after this one."""
    text = value.to_json().decode()
    _remember(text, value)
    return mod.with_attr(key, text)


def _remember(text: str, value: Problem | Schedule | PipelinePlan) -> None:
    _objects[text] = value
    _objects.move_to_end(text)
    while len(_objects) > _MOST_OBJECTS:
        _objects.popitem(last=False)


def _read(mod: tvm.IRModule, key: str, left_by: str, kind: type[_Document]) -> _Document:
    text = str(get_attribute(mod, key, left_by))
    found = _objects.get(text)
    if not isinstance(found, kind):
        found = kind.from_json(text, f"module attribute {key}")
        _remember(text, found)
    return found


def get_problem(mod: tvm.IRModule) -> Problem:
    """The problem that `EstimateLatencies` left in the module."""
    return _read(mod, PROBLEM, "EstimateLatencies", Problem)


def get_schedule(mod: tvm.IRModule) -> Schedule:
    """The schedule that `Place` left in the module."""
    return _read(mod, SCHEDULE, "Place", Schedule)


def get_pipeline_plan(mod: tvm.IRModule) -> PipelinePlan:
    """The plan that `PartitionPipeline` left in the module."""
    return _read(mod, PIPELINE, "PartitionPipeline", PipelinePlan)
