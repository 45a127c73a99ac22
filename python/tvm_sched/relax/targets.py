"""Targets: convert between a ``tvm.target.Target`` and its topology and compile options."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
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


def read_target(target: tvm.target.Target) -> CompileOptions:
    """The options of a target of tvm_sched; raises `InputError` for other targets."""
    if "tvm_sched" not in target.keys:
        raise InputError(
            f"target {target.kind.name!r} names no topology; compile with target='tvm_sched/cpu2' or another preset, "
            "tvm_sched.relax.target('machine.toml'), or relax.get_pipeline('tvm_sched', topology=...)"
        )
    model = str(target.attrs["model"])
    (options_text,) = target.attrs["libs"]
    return CompileOptions.from_json(_topologies.get(model) or model, str(options_text))


def register_tag(tag: str) -> None:
    """Register a tag that ``import tvm`` did not: of more logical devices, or with options behind the name.

    ``tvm_sched/cpu2 --streams=opara --launch-order=opara`` has those of `CompileOptions`, as they are on the command line.

    Raises
    ------
    InputError
        There is no such preset, or no such option.
    """
    model, *given = tag.removeprefix(PREFIX).split() or [""]
    name, _, rest = model.partition("/")
    if (cpu_count_of(name) is None and name not in preset_names()) or rest not in ("", THROUGHPUT[1:]):
        raise InputError(
            f"there is no target {tag!r}{did_you_mean(name, preset_names())}; there are {PREFIX}NAME and {PREFIX}NAME"
            f"{THROUGHPUT} for the topologies {', '.join(preset_names())}, cpu, and cpu1 to cpu{MOST_CPU_DEVICES}. "
            "For a topology file: tvm_sched.relax.target('machine.toml', ...)"
        )
    settings = {"objective": "throughput"} if rest else {}
    chosen = CompileOptions.of(name, **settings, **dict(map(_setting, given)))
    check_embeds(chosen)
    chosen.check_methods()
    tvm.target.register_tag(tag, config(name, chosen.to_json()), override=True)


def _setting(text: str) -> tuple[str, Any]:
    """Name and value of ``--name=value``, or of ``--name``, which is true."""
    name, mark, value = text.lstrip("-").partition("=")
    if not text.startswith("-"):
        raise InputError(f"{text!r} in a target is not an option; options are written --name=value, or --name")
    try:
        return name.replace("-", "_"), msgspec.json.decode(value) if mark else True
    except msgspec.DecodeError:
        return name.replace("-", "_"), value


def check_embeds(options: CompileOptions) -> None:
    """Refuse parameters beside an executable of ``tvm.compile``, which is all that there is."""
    if options.parameters == "external":
        raise InputError(
            "parameters='external' is for tvm_sched.relax.compile, which writes a file of them; an executable of "
            "tvm.compile holds its parameters"
        )
