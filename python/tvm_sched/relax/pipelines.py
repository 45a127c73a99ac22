"""The pipeline ``tvm_sched``: all passes in order, then TVM's own build pipeline for what is left."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax

from ..errors import InputError
from ..problem import MEASURED, Topology
from .kernels import host_target
from .passes import (
    AllocateStreams,
    EmitExecutor,
    EstimateLatencies,
    LowerToKernels,
    MeasureSchedules,
    OrderLaunches,
    Place,
)
from .targets import read_target


def pipeline(
    topology: Topology | str | os.PathLike[str] | None = None,
    scheduler: str | None = None,
    options: Mapping[str, Any] | None = None,
    cost_model: str | None = None,
    backend: str | None = None,
    measure: bool | None = None,
) -> tvm.transform.Pass:
    """The pass that makes a scheduled executable's module of a Relax module.

    Parameters
    ----------
    topology, scheduler, options, cost_model
        Those that are not given are taken from the current target.
    backend : {"cpu", "emulated", "cuda"}, optional
        See `EmitExecutor`.
    measure : bool, optional
        Whether to take the fastest use of this machine's cores, see `MeasureSchedules`. Default: what the target says;
        for the topology ``"cpu"``, and only there, it is done.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_sched")
    def run(mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        current = tvm.target.Target.current(allow_none=True)
        machine, method, settings, costs, where = topology, scheduler, options, cost_model, backend
        if current is not None and ("tvm_sched" in current.keys or machine is None):
            said = read_target(current)
            machine = said.topology if machine is None else machine
            settings = said.options if settings is None and method is None else settings
            method, costs, where = method or said.scheduler, costs or said.cost_model, where or said.backend
            wanted = said.measure if measure is None and topology is None else measure
        else:
            wanted = measure
        machine = machine or "cpu1"
        passes = [
            *schedule_passes(
                machine, method or "exact", settings, costs or "roofline", backend=where,
                measure=wants_measuring(machine, where, wanted),
            ),
            EmitExecutor(where),
        ]  # fmt: skip
        return build_rest(tvm.transform.Sequential(passes)(mod))

    return run


def schedule_passes(
    topology: Topology | str | os.PathLike[str],
    scheduler: str = "exact",
    options: Mapping[str, Any] | None = None,
    cost_model: Any = "roofline",
    progress: Any = None,
    backend: str | None = None,
    measure: bool = False,
) -> list[tvm.transform.Pass]:
    """The passes up to a schedule. Schedulers split the graph themselves, so `SplitByDominators` is not among them."""
    measuring = [MeasureSchedules(progress=progress)] if measure else []
    return [
        LowerToKernels(device_kind="cuda" if backend == "cuda" else "cpu"),
        EstimateLatencies(topology, cost_model),
        Place(scheduler, options, progress),
        AllocateStreams(),
        OrderLaunches(),
        *measuring,
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
