"""The pipeline ``tvm_sched``: all passes in order, then TVM's own build pipeline for what is left."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tvm
from tvm import relax

from ..errors import InputError
from ..problem import MEASURED, Topology, load_topology
from .passes import (
    AllocateStreams,
    EmitExecutor,
    EmitPipeline,
    EstimateLatencies,
    LowerToKernels,
    MeasureSchedules,
    OrderLaunches,
    PartitionPipeline,
    Place,
)
from .processor import host_target
from .targets import TargetOptions, read_target


def pipeline(
    topology: Topology | str | os.PathLike[str] | None = None,
    scheduler: str | None = None,
    options: Mapping[str, Any] | None = None,
    cost_model: str | None = None,
    backend: str | None = None,
    measure: bool | None = None,
    objective: str | None = None,
    stages: int | str | None = None,
    partitioner: str | None = None,
) -> tvm.transform.Pass:
    """The pass that makes a scheduled executable's module of a Relax module.

    Parameters
    ----------
    topology, scheduler, options, cost_model, backend, objective, stages, partitioner
        As for `tvm_sched.relax.target`. Those that are not given are taken from the current target; options only where
        no other method is named.
    measure : bool, optional
        Whether to take the fastest use of this machine's cores, see `MeasureSchedules`. Default: what the target says;
        for the topology ``"cpu"``, and only there, it is done.
    """
    given: dict[str, Any] = {
        "topology": None if topology is None else _loaded(topology),
        "scheduler": scheduler, "cost_model": cost_model, "backend": backend, "objective": objective, "stages": stages,
        "partitioner": partitioner, "measure": measure if topology is None else wants_measuring(topology, backend, measure),
        "options": {} if options is None and (scheduler or partitioner) else options,
    }  # fmt: skip

    @tvm.transform.module_pass(opt_level=0, name="tvm_sched")
    def run(mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        current = tvm.target.Target.current(allow_none=True)
        named = current is not None and ("tvm_sched" in current.keys or topology is None)
        said = read_target(current) if named else TargetOptions(load_topology("cpu1"))
        chosen = replace(said, **{key: value for key, value in given.items() if value is not None})
        return build_rest(tvm.transform.Sequential(_passes(chosen))(mod))

    return run


def _passes(chosen: TargetOptions) -> list[tvm.transform.Pass]:
    if chosen.objective == "throughput":
        return [
            *problem_passes(chosen.topology, chosen.cost_model, chosen.backend),
            PartitionPipeline(chosen.stages, chosen.partitioner, chosen.options),
            EmitPipeline(chosen.backend),
        ]
    measure = wants_measuring(None, chosen.backend, bool(chosen.measure))
    return [
        *schedule_passes(
            chosen.topology,
            chosen.scheduler,
            chosen.options,
            chosen.cost_model,
            backend=chosen.backend,
            measure=measure,
        ),
        EmitExecutor(chosen.backend),
    ]


def schedule_passes(
    topology: Topology | str | os.PathLike[str],
    scheduler: str = "anytime",
    options: Mapping[str, Any] | None = None,
    cost_model: Any = None,
    progress: Any = None,
    backend: str | None = None,
    measure: bool = False,
) -> list[tvm.transform.Pass]:
    """The passes up to a schedule. Schedulers split the graph themselves, so `SplitByDominators` is not among them."""
    measuring = [MeasureSchedules(progress=progress)] if measure else []
    if measure and cost_model is None and len(_loaded(topology).devices) == 1:
        cost_model = "roofline"  # on one device it decides nothing, and measuring gives all latencies
    return [
        *problem_passes(topology, cost_model, backend, progress),
        Place(scheduler, options, progress),
        AllocateStreams(),
        OrderLaunches(),
        *measuring,
    ]


def _loaded(topology: Topology | str | os.PathLike[str]) -> Topology:
    return topology if isinstance(topology, Topology) else load_topology(topology)


def problem_passes(
    topology: Topology | str | os.PathLike[str],
    cost_model: Any = None,
    backend: str | None = None,
    progress: Any = None,
) -> list[tvm.transform.Pass]:
    """The passes up to a scheduling problem."""
    return [
        LowerToKernels(device_kind="cuda" if backend == "cuda" else "cpu"),
        EstimateLatencies(topology, cost_model, progress),
    ]


def wants_measuring(topology: Any, backend: str | None, asked: bool | None) -> bool:
    """Whether to measure schedules: as asked, and by default where the topology's name is ``"cpu"``.

    Elsewhere a topology names the devices to use, and the same input gives the same schedule on every machine; a
    measured choice is neither.

    Raises
    ------
    InputError
        It is asked for where nothing runs on this machine's cores.
    """
    if asked and backend not in (None, "cpu"):
        raise InputError(
            f"backend is {backend!r}; schedules are measured where they run on this machine's cores ('cpu')"
        )
    return topology == MEASURED and backend in (None, "cpu") if asked is None else asked


def build_rest(mod: tvm.IRModule) -> tvm.IRModule:
    """TVM's build pipeline on the function that calls the executor, and on all other functions."""
    host = host_target()
    with host:
        mod = relax.get_pipeline("default_build")(mod)
    result = mod.clone()
    for variable, function in mod.functions_items():
        if isinstance(function, tvm.tirx.PrimFunc) and "target" not in function.attrs:
            result.update_func(variable, function.with_attr("target", host))
    return result
