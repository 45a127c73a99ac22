"""Targets: which topology and which options of compilation a ``tvm.target.Target`` stands for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tvm

from ..errors import InputError, did_you_mean
from ..problem import Topology, preset_names
from ..problem.cpu import MOST_CPU_DEVICES, cpu_count_of
from .options import CompileOptions
from .target_tags import PREFIX, THROUGHPUT, config

_topologies: dict[str, Topology] = {}


def target(
    topology: CompileOptions | Topology | str | os.PathLike[str],
    scheduler: str | None = None,
    options: Mapping[str, Any] | None = None,
    cost_model: str | None = None,
    backend: str | None = None,
    measure: bool | None = None,
    **settings: Any,
) -> tvm.target.Target:
    """A target for ``tvm.compile``.

    Parameters
    ----------
    topology : Topology, str, path or CompileOptions
        A `Topology` (known in this process only), the name of a preset, or a topology file. For presets, the tag
        ``"tvm_sched/NAME"`` is the same with the default options, and ``"tvm_sched/NAME/throughput"`` with the objective
        throughput.
    scheduler, options, cost_model, backend, measure, settings
        As in `CompileOptions`. With ``objective="throughput"`` (`tvm_sched.relax.passes.PartitionPipeline`), ``main`` of
        the executable takes one batch through the stages; `tvm_sched.pipeline.open_pipeline` runs many at once.

    Raises
    ------
    InputError
        As `CompileOptions`, or an option that such an executable cannot have.
    """
    chosen = CompileOptions.of(
        topology,
        scheduler=scheduler, options=options, cost_model=cost_model, backend=backend, measure=measure, **settings,
    )  # fmt: skip
    check_embeds(chosen)
    chosen.check_methods()
    if isinstance(topology, (CompileOptions, Topology)):
        model = f"{chosen.topology.name}@{id(chosen.topology):x}"
        _topologies[model] = chosen.topology
        if chosen.measuring:  # the name that says so is not kept
            chosen = replace(chosen, measure=True)
    else:
        model = os.fspath(topology)
        model = os.path.abspath(model) if os.path.isfile(model) else model
    return tvm.target.Target(config(model, chosen.to_json()))


def read_target(found: tvm.target.Target) -> CompileOptions:
    """What a target of ours says; raises `InputError` for other targets."""
    if "tvm_sched" not in found.keys:
        raise InputError(
            f"target {found.kind.name!r} names no topology; compile with target='tvm_sched/cpu2' or another preset, "
            "tvm_sched.relax.target('machine.toml'), or relax.get_pipeline('tvm_sched', topology=...)"
        )
    model = str(found.attrs["model"])
    (said,) = found.attrs["libs"]
    return CompileOptions.from_json(_topologies.get(model) or model, str(said))


def register_tag(tag: str) -> None:
    """Register the tag of ``cpuN`` for an N for which ``import tvm`` registered none.

    Raises
    ------
    InputError
        There is no such preset.
    """
    model = tag.removeprefix(PREFIX)
    name, _, rest = model.partition("/")
    if cpu_count_of(name) is None or rest not in ("", THROUGHPUT[1:]):
        raise InputError(
            f"there is no target {tag!r}{did_you_mean(name, preset_names())}; there are {PREFIX}NAME and {PREFIX}NAME"
            f"{THROUGHPUT} for the topologies {', '.join(preset_names())}, cpu, and cpu1 to cpu{MOST_CPU_DEVICES}. "
            "For a topology file, or with options: tvm_sched.relax.target('machine.toml', ...)"
        )
    options = '{"objective": "throughput"}' if rest else "{}"
    tvm.target.register_tag(tag, config(name, options), override=True)


def check_embeds(options: CompileOptions) -> None:
    """Refuse parameters beside an executable of ``tvm.compile``, which is all that there is."""
    if options.parameters == "external":
        raise InputError(
            "parameters='external' is for tvm_sched.relax.compile, which writes a file of them; an executable of "
            "tvm.compile holds its parameters"
        )
