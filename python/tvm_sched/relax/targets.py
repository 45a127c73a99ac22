"""Targets: convert between a ``tvm.target.Target`` and its topology and compile options."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import tvm

from tvm_sched_runtime.errors import InputError, did_you_mean
from tvm_sched_runtime.problem import Topology, preset_names
from tvm_sched_runtime.problem.cpu_presets import MOST_CPU_DEVICES, cpu_count_of

from .options import CompileOptions
from .target_tags import PREFIX, SUFFIXES, config

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
    """Make a target for ``tvm.compile``.

    Parameters
    ----------
    topology : Topology, str, path or CompileOptions
        A `Topology` (the target is then known in this process only), the name of a preset, or a topology file. For
        presets, the tag ``"tvm_sched/NAME"`` has the default options, ``"tvm_sched/NAME/throughput"`` the objective
        throughput, ``"tvm_sched/NAME/sortinghat"`` the method of the paper SortingHat (``docs/schedulers.md``).
    scheduler, options, cost_model, backend, measure, settings
        As in `CompileOptions`. With ``objective="throughput"`` (`tvm_sched.relax.passes.PartitionPipeline`), ``main`` of
        the executable takes one batch through the stages; `tvm_sched.pipeline.open_pipeline` runs many at once.

    Raises
    ------
    InputError
        As `CompileOptions`, or an option that such an executable cannot have.

    Examples
    --------
    >>> from tvm_sched.relax import target
    >>> target("cpu2", scheduler="heft").kind.name
    'composite'
    """
    chosen = CompileOptions.of(
        topology,
        scheduler=scheduler, options=options, cost_model=cost_model, backend=backend, measure=measure, **settings,
    )  # fmt: skip
    check_embeds(chosen)
    if isinstance(topology, (CompileOptions, Topology)):
        model = f"{chosen.topology.name}@{id(chosen.topology):x}"
        _topologies[model] = chosen.topology
        if chosen.measuring:  # the name "cpu", which says so, is not kept
            chosen = replace(chosen, measure=True)
    else:
        model = os.fspath(topology)
        model = os.path.abspath(model) if os.path.isfile(model) else model
    return tvm.target.Target(config(model, chosen.to_json()))


def read_target(target: tvm.target.Target) -> CompileOptions:
    """Read the options of a target of tvm_sched; raise `InputError` for other targets."""
    if "tvm_sched" not in target.keys:
        raise InputError(
            f"target {target.kind.name!r} names no topology; compile with target='tvm_sched/cpu2' or another preset, "
            "tvm_sched.relax.target('machine.toml'), or relax.get_pipeline('tvm_sched', topology=...)"
        )
    model = str(target.attrs["model"])
    (options_text,) = target.attrs["libs"]
    return CompileOptions.from_json(_topologies.get(model) or model, str(options_text))


def register_tag(tag: str) -> None:
    """Register a tag that ``import tvm`` did not: with more logical devices, or with options.

    The options after the name are those of `CompileOptions`, written as on the command line:
    ``tvm_sched/cpu2 --streams=opara --launch-order=opara``.

    Raises
    ------
    InputError
        Unknown preset or option.
    """
    model, *options = tag.removeprefix(PREFIX).split() or [""]
    name, slash, path = model.partition("/")
    if (cpu_count_of(name) is None and name not in preset_names()) or slash + path not in SUFFIXES:
        known = " and ".join(f"{PREFIX}NAME{suffix}" for suffix in SUFFIXES)
        raise InputError(
            f"there is no target {tag!r}{did_you_mean(name, preset_names())}; there are {known} "
            f"for the topologies {', '.join(preset_names())}, cpu, and cpu1 to cpu{MOST_CPU_DEVICES}. "
            "For a topology file: tvm_sched.relax.target('machine.toml', ...)"
        )
    chosen = CompileOptions.of(name, **SUFFIXES[slash + path] | dict(map(_setting, options)))
    check_embeds(chosen)
    tvm.target.register_tag(tag, config(name, chosen.to_json()), override=True)


def _setting(text: str) -> tuple[str, Any]:
    """Parse ``--name=value``, or ``--name``, whose value is true."""
    name, mark, value = text.lstrip("-").partition("=")
    if not text.startswith("-"):
        raise InputError(f"{text!r} in a target is not an option; options are written --name=value, or --name")
    try:
        return name.replace("-", "_"), msgspec.json.decode(value) if mark else True
    except msgspec.DecodeError:
        return name.replace("-", "_"), value


def check_embeds(options: CompileOptions) -> None:
    """Raise `InputError` for external parameters: ``tvm.compile`` writes an executable only."""
    if options.parameters == "external":
        raise InputError(
            "parameters='external' is for tvm_sched.relax.compile, which writes a file of them; an executable of "
            "tvm.compile holds its parameters"
        )
