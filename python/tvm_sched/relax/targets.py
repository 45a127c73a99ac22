"""Targets: which topology and which options of the scheduler a ``tvm.target.Target`` stands for."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import tvm

from ..errors import InputError
from ..problem import MEASURED, Topology, load_topology
from .autoload import config

BACKENDS = ("cpu", "emulated", "cuda")
OBJECTIVES = ("latency", "throughput")
SCHEDULER, PARTITIONER = "exact", "pipeline-exact"

_topologies: dict[str, Topology] = {}


@dataclass(frozen=True)
class TargetOptions:
    """What a target says.

    Attributes
    ----------
    topology : Topology
    scheduler : str
    options : dict
        Of the scheduler, or of the partitioner.
    cost_model : str
    backend : str or None
        None: by the topology, see `tvm_sched.relax.passes.EmitExecutor`.
    measure : bool or None
        Whether to measure schedules; None: by the topology's name, see `tvm_sched.relax.pipelines.pipeline`.
    objective : str
        What is compiled for: ``"latency"`` of one run, by the scheduler; or ``"throughput"`` of many, by the partitioner.
    stages : int or "auto"
        Of the pipeline.
    partitioner : str

    Raises
    ------
    InputError
        No such objective, or what belongs to the other one.
    """

    topology: Topology
    scheduler: str = SCHEDULER
    options: dict[str, Any] = field(default_factory=dict)
    cost_model: str | None = None
    backend: str | None = None
    measure: bool | None = None
    objective: str = "latency"
    stages: int | Literal["auto"] = "auto"
    partitioner: str = PARTITIONER

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InputError(f"objective is {self.objective!r}; allowed are {', '.join(map(repr, OBJECTIVES))}")
        if self.objective == "latency" and (self.stages != "auto" or self.partitioner != PARTITIONER):
            raise InputError("stages and partitioner are for a pipeline: give objective='throughput', too")
        if self.objective == "throughput" and self.scheduler != SCHEDULER:
            raise InputError("scheduler is for objective='latency'; stages of a pipeline are cut by a partitioner")
        if self.stages != "auto" and (not isinstance(self.stages, int) or self.stages < 1):
            raise InputError(f"stages is {self.stages!r}; a number from 1, or 'auto', is allowed")


def target(
    topology: Topology | str | os.PathLike[str],
    scheduler: str = SCHEDULER,
    options: Mapping[str, Any] | None = None,
    cost_model: str | None = None,
    backend: str | None = None,
    measure: bool | None = None,
    *,
    objective: str = "latency",
    stages: int | Literal["auto"] = "auto",
    partitioner: str = PARTITIONER,
) -> tvm.target.Target:
    """A target for ``tvm.compile``.

    Parameters
    ----------
    topology : Topology, str or path
        A `Topology` (known in this process only), the name of a preset, or a topology file. For presets, the tag
        ``"tvm_sched/NAME"`` is the same with the default options.
    scheduler : str
    options : mapping, optional
        Of the scheduler, or of the partitioner.
    cost_model : str
    backend : {"cpu", "emulated", "cuda"}, optional
        ``"cuda"`` compiles for GPUs and runs there; without it, topologies of GPUs are emulated.
    measure : bool, optional
        Whether to take the fastest use of this machine's cores; done for the topology ``"cpu"`` where nothing is said.
    objective : {"latency", "throughput"}
        With ``"throughput"``, a pipeline of stages (`tvm_sched.relax.passes.PartitionPipeline`): ``main`` of the
        executable takes one batch through them, `tvm_sched.pipeline.open_pipeline` runs many at once. For presets, the
        tag ``"tvm_sched/NAME/throughput"`` is the same with the default options.
    stages, partitioner
        Of that pipeline.

    Raises
    ------
    InputError
        No such topology or objective, a file that is no topology, or what belongs to the other objective.
    """
    loaded = topology if isinstance(topology, Topology) else load_topology(topology)
    # Errors belong here, not into the compilation.
    TargetOptions(loaded, scheduler, objective=objective, stages=stages, partitioner=partitioner)
    _check_names(scheduler if objective == "latency" else None, partitioner, options, cost_model, backend)
    if isinstance(topology, Topology):
        model = f"{topology.name}@{id(topology):x}"
        _topologies[model] = topology
    else:
        model = os.fspath(topology)
        model = os.path.abspath(model) if os.path.isfile(model) else model
    libs = [] if cost_model is None else [f"cost_model={cost_model}"]
    if objective == "latency":
        libs.append(f"scheduler={scheduler}")
    else:
        libs += [f"objective={objective}", f"stages={stages}", f"partitioner={partitioner}"]
    if backend:
        libs.append(f"backend={backend}")
    if measure is None and not isinstance(topology, Topology) and os.fspath(topology) == MEASURED:
        measure = True
    if measure is not None:
        libs.append(f"measure={int(measure)}")
    if options:
        libs.append(f"options={json.dumps(dict(options))}")
    return tvm.target.Target(config(model, tuple(libs)))


def _check_names(
    scheduler: str | None,
    partitioner: str,
    options: Mapping[str, Any] | None,
    cost_model: str | None,
    backend: str | None,
) -> None:
    """Refuse names and options that nothing has, with an `InputError`."""
    from .. import pipeline, schedulers
    from ..cost_model import get_cost_model

    method = pipeline.get(partitioner) if scheduler is None else schedulers.get(scheduler)
    method.read_options(options)
    if cost_model is not None:
        get_cost_model(cost_model)
    if backend not in (None, *BACKENDS):
        raise InputError(f"backend is {backend!r}; allowed are {', '.join(map(repr, BACKENDS))}")


def read_target(found: tvm.target.Target) -> TargetOptions:
    """What a target of ours says; raises `InputError` for other targets."""
    if "tvm_sched" not in found.keys:
        raise InputError(
            f"target {found.kind.name!r} names no topology; compile with target='tvm_sched/cpu2' or another preset, "
            "tvm_sched.relax.target('machine.toml'), or relax.get_pipeline('tvm_sched', topology=...)"
        )
    model = str(found.attrs["model"])
    fields = dict(str(entry).split("=", 1) for entry in found.attrs.get("libs", ()) or ())
    stages = fields.pop("stages", "auto")
    options = json.loads(fields.pop("options", "{}"))
    measure = bool(int(fields.pop("measure"))) if "measure" in fields else (model == MEASURED) or None
    return TargetOptions(
        _topologies.get(model) or load_topology(model),
        options=options,
        measure=measure,
        stages="auto" if stages == "auto" else int(stages),
        **fields,
    )
