"""Targets: which topology and which options of the scheduler a ``tvm.target.Target`` stands for."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tvm

from ..errors import InputError
from ..problem import MEASURED, Topology, load_topology
from .autoload import config

_topologies: dict[str, Topology] = {}


@dataclass(frozen=True)
class TargetOptions:
    """What a target says.

    Attributes
    ----------
    topology : Topology
    scheduler : str
    options : dict
        Of the scheduler.
    cost_model : str
    backend : str or None
        None: by the topology, see `tvm_sched.relax.passes.EmitExecutor`.
    measure : bool or None
        Whether to measure schedules; None: by the topology's name, see `tvm_sched.relax.pipelines.pipeline`.
    """

    topology: Topology
    scheduler: str = "exact"
    options: dict[str, Any] = field(default_factory=dict)
    cost_model: str = "roofline"
    backend: str | None = None
    measure: bool | None = None


def target(
    topology: Topology | str | os.PathLike[str],
    scheduler: str = "exact",
    options: Mapping[str, Any] | None = None,
    cost_model: str = "roofline",
    backend: str | None = None,
    measure: bool | None = None,
) -> tvm.target.Target:
    """A target for ``tvm.compile``.

    Parameters
    ----------
    topology : Topology, str or path
        A `Topology` (known in this process only), the name of a preset, or a topology file. For presets, the tag
        ``"tvm_sched/NAME"`` is the same with the default options.
    scheduler : str
    options : mapping, optional
        Of the scheduler.
    cost_model : str
    backend : {"cpu", "emulated", "cuda"}, optional
        ``"cuda"`` compiles for GPUs and runs there; without it, topologies of GPUs are emulated.
    measure : bool, optional
        Whether to take the fastest use of this machine's cores; done for the topology ``"cpu"`` where nothing is said.

    Raises
    ------
    InputError
        No such topology, or a file that is not one.
    """
    if isinstance(topology, Topology):
        model = f"{topology.name}@{id(topology):x}"
        _topologies[model] = topology
    else:
        load_topology(topology)  # errors belong here, not into the compilation
        model = os.fspath(topology)
        model = os.path.abspath(model) if os.path.isfile(model) else model
    libs = [f"scheduler={scheduler}", f"cost_model={cost_model}"]
    if backend:
        libs.append(f"backend={backend}")
    if measure is None and not isinstance(topology, Topology) and os.fspath(topology) == MEASURED:
        measure = True
    if measure is not None:
        libs.append(f"measure={int(measure)}")
    if options:
        libs.append(f"options={json.dumps(dict(options))}")
    return tvm.target.Target(config(model, tuple(libs)))


def read_target(found: tvm.target.Target) -> TargetOptions:
    """What a target of ours says; raises `InputError` for other targets."""
    if "tvm_sched" not in found.keys:
        raise InputError(
            f"target {found.kind.name!r} names no topology; compile with target='tvm_sched/cpu2' or another preset, "
            "tvm_sched.relax.target('machine.toml'), or relax.get_pipeline('tvm_sched', topology=...)"
        )
    model = str(found.attrs["model"])
    fields = dict(str(entry).split("=", 1) for entry in found.attrs.get("libs", ()) or ())
    return TargetOptions(
        _topologies.get(model) or load_topology(model),
        fields.get("scheduler", "exact"),
        json.loads(fields.get("options", "{}")),
        fields.get("cost_model", "roofline"),
        fields.get("backend"),
        bool(int(fields["measure"])) if "measure" in fields else (model == MEASURED) or None,
    )
