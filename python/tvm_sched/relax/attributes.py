"""The module attributes that one pass leaves for the next, and how to read them."""

from __future__ import annotations

from typing import Any

import tvm

from ..errors import InputError
from ..pipeline import PipelinePlan
from ..problem import OpGraph, Problem
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
NAME = "tvm_sched.name"
"""Name of the model."""

__all__ = [
    "NAME",
    "PARAMETERS",
    "PIPELINE",
    "PROBLEM",
    "SCHEDULE",
    "SUBMODELS",
    "get_attribute",
    "get_graph",
    "get_pipeline_plan",
    "get_problem",
    "get_schedule",
]


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


def get_graph(mod: tvm.IRModule) -> OpGraph:
    """The operator graph of a module that `LowerToKernels` made."""
    from .graph import extract

    return extract(mod).graph


def get_problem(mod: tvm.IRModule) -> Problem:
    """The problem that `EstimateLatencies` left in the module."""
    return Problem.from_json(
        str(get_attribute(mod, PROBLEM, "EstimateLatencies")), "module attribute tvm_sched.problem"
    )


def get_schedule(mod: tvm.IRModule) -> Schedule:
    """The schedule that `Place` left in the module."""
    return Schedule.from_json(str(get_attribute(mod, SCHEDULE, "Place")), "module attribute tvm_sched.schedule")


def get_pipeline_plan(mod: tvm.IRModule) -> PipelinePlan:
    """The plan that `PartitionPipeline` left in the module."""
    text = str(get_attribute(mod, PIPELINE, "PartitionPipeline"))
    return PipelinePlan.from_json(text, "module attribute tvm_sched.pipeline")
