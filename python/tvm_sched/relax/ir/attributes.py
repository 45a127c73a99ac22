"""Module attributes, by which passes hand over results, with functions to read and write them."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import msgspec
import tvm

from tvm_frontends.imported_model import OUTPUT_NAMES, PARAMETERS
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.pipeline import PipelinePlan
from tvm_sched_runtime.problem import Problem
from tvm_sched_runtime.schedule import Schedule

from ..toolchain.compile_target import CompileTarget
from .json_document import Document

COMPILE_TARGET = "tvm_sched.compile_target"
"""The `CompileTarget` of kernels, as JSON; left by SetCompileTarget."""
PROBLEM = "tvm_sched.problem"
"""The problem (docs/formats/problem.md), left by EstimateLatencies."""
LAUNCHES = "tvm_sched.launches"
"""GPU launches of each kernel, as JSON by kernel name; left by DescribeLaunches."""
DEVICE_KIND = "tvm_sched.device_kind"
"""``"cuda"`` where LowerToKernels lowers for GPUs."""
CONSTANTS = "tvm_sched.constants"
"""The values of the constants of ``main`` that have names, and the names; between the steps of LowerToKernels."""
SAMPLES = "tvm_sched.samples"
"""A JSON object: typical values of integer inputs, such as positions, that are used when kernels are measured."""
SCHEDULE = "tvm_sched.schedule"
"""The schedule (docs/formats/schedule.md), left by Place and changed by the passes after it."""
PIPELINE = "tvm_sched.pipeline"
"""The pipeline plan (docs/formats/pipeline.md), left by PartitionPipeline."""
SUBMODELS = "tvm_sched.submodels"
"""A JSON list of lists of operators' names, left by SplitByDominators."""
CHOICE = "tvm_sched.choice"
"""A JSON object of groups and their chosen alternatives, left by Place if the problem had variants."""
NAME = "tvm_sched.name"
"""Name of the model."""
TAIL = "tvm_sched.tail"
"""A module of the operators that are not scheduled because their sizes depend on data, left by SplitTail."""

__all__ = [
    "CHOICE",
    "COMPILE_TARGET",
    "CONSTANTS",
    "DEVICE_KIND",
    "LAUNCHES",
    "NAME",
    "OUTPUT_NAMES",
    "PARAMETERS",
    "PIPELINE",
    "PROBLEM",
    "SAMPLES",
    "SCHEDULE",
    "SUBMODELS",
    "TAIL",
    "SetCompileTarget",
    "get_attribute",
    "get_compile_target",
    "get_pipeline_plan",
    "get_problem",
    "get_schedule",
    "leave",
    "model_name",
    "with_compile_target",
]

_Kind = TypeVar("_Kind", Problem, Schedule, PipelinePlan)


def get_attribute(mod: tvm.IRModule, key: str, left_by: str) -> Any:
    """Read an attribute that an earlier pass must have left.

    Raises
    ------
    InputError
        It is not there; the message names the pass that leaves it.

    Examples
    --------
    >>> from tvm_sched.relax.ir.attributes import NAME, get_attribute
    >>> get_attribute(placed, NAME, "the importer")
    'model'
    """
    if not mod.attrs or key not in mod.attrs:
        raise InputError(f"the module has no attribute {key!r}; run the pass {left_by} before this one")
    return mod.attrs[key]


def model_name(mod: tvm.IRModule) -> str:
    """Return the name that the importer gave the model; ``"model"`` for a module that was not imported.

    Examples
    --------
    >>> from tvm_sched.relax.ir.attributes import model_name
    >>> model_name(placed)
    'model'
    """
    return str(mod.attrs[NAME]) if mod.attrs and NAME in mod.attrs else "model"


def with_compile_target(mod: tvm.IRModule, target: CompileTarget) -> tvm.IRModule:
    """Return the module with a compile target for its kernels.

    Examples
    --------
    >>> from tvm_sched.relax.ir.attributes import get_compile_target, with_compile_target
    >>> from tvm_sched.relax.toolchain.compile_target import CompileTarget
    >>> get_compile_target(with_compile_target(lowered, CompileTarget(threads=2))).threads
    2
    """
    return mod.with_attr(COMPILE_TARGET, msgspec.json.encode(target).decode())


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.SetCompileTarget")
class SetCompileTarget:
    """Set the attribute ``tvm_sched.compile_target``: the processors, threads and precision that all passes compile for.

    ``target`` is by default, as for modules without the attribute, this machine's processor with all cores and float32.

    Examples
    --------
    >>> from tvm_sched.relax.ir.attributes import get_compile_target
    >>> from tvm_sched.relax.passes import SetCompileTarget
    >>> from tvm_sched.relax.toolchain.compile_target import CompileTarget
    >>> get_compile_target(SetCompileTarget(CompileTarget(threads=2))(lowered)).threads
    2
    """

    def __init__(self, target: CompileTarget | None = None) -> None:
        self.target = target or CompileTarget()

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        return with_compile_target(mod, self.target)


def get_compile_target(mod: tvm.IRModule) -> CompileTarget:
    """Return the module's compile target; by default this machine's processor with all cores and float32.

    Examples
    --------
    >>> from tvm_sched.relax.ir.attributes import get_compile_target
    >>> get_compile_target(placed).precision
    'float32'
    """
    if not mod.attrs or COMPILE_TARGET not in mod.attrs:
        return CompileTarget()
    return _decoded_target(str(mod.attrs[COMPILE_TARGET]))


@cache
def _decoded_target(text: str) -> CompileTarget:
    return msgspec.json.decode(text, type=CompileTarget)


def leave(mod: tvm.IRModule, key: str, value: Problem | Schedule | PipelinePlan) -> tvm.IRModule:
    """Set an object as a module attribute for later passes; it is encoded as JSON only when the module is saved.

    Examples
    --------
    >>> from tvm_sched.relax.ir.attributes import PROBLEM, get_problem, leave
    >>> get_problem(leave(lowered, PROBLEM, get_problem(placed))).digest == get_problem(placed).digest
    True
    """
    return mod.with_attr(key, Document.make(value, _encode))


def _encode(value: Problem | Schedule | PipelinePlan) -> str:
    return value.to_json().decode()


def _read(mod: tvm.IRModule, key: str, left_by: str, kind: type[_Kind]) -> _Kind:
    """Read an object that `leave` set, or decode it if it was loaded with the module or set as JSON text."""
    left = get_attribute(mod, key, left_by)
    if not isinstance(left, Document):
        return kind.from_json(str(left), f"module attribute {key}")
    value = left.object()
    if not isinstance(value, kind):
        value = kind.from_json(str(left.text()), f"module attribute {key}")
        left.set_object(value)
    return value


def get_problem(mod: tvm.IRModule) -> Problem:
    """Return the problem that `EstimateLatencies` left in the module.

    Examples
    --------
    >>> from tvm_sched.relax import get_problem
    >>> get_problem(placed).topology.name
    'cpu2'
    """
    return _read(mod, PROBLEM, "EstimateLatencies", Problem)


def get_schedule(mod: tvm.IRModule) -> Schedule:
    """Return the schedule that `Place` left in the module.

    Examples
    --------
    >>> from tvm_sched.relax import get_schedule
    >>> get_schedule(placed).scheduler
    'heft'
    """
    return _read(mod, SCHEDULE, "Place", Schedule)


def get_pipeline_plan(mod: tvm.IRModule) -> PipelinePlan:
    """Return the plan that `PartitionPipeline` left in the module.

    Examples
    --------
    >>> from tvm_sched.relax import get_pipeline_plan
    >>> from tvm_sched.relax.passes import EstimateLatencies, PartitionPipeline
    >>> cut = PartitionPipeline(stages=1)(EstimateLatencies("cpu2", "roofline")(lowered))
    >>> len(get_pipeline_plan(cut).stages)
    1
    """
    return _read(mod, PIPELINE, "PartitionPipeline", PipelinePlan)
