"""Commands that list topologies and schedulers, and check or detect a topology."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from .attached_commands import RESEARCH
from .inputs import JSON, Writes
from .output import Output
from .registration import app, command, command_group

if TYPE_CHECKING:
    from ..cost_model.recording import Recording

topology = command_group("topology", "Machines: their devices, buses, links and switches.")

Name = Annotated[str, typer.Argument(metavar="NAME|FILE", help="Preset or TOML file.")]
TomlFile = Annotated[Path, typer.Argument(metavar="FILE", help="Topology file (.toml).")]


@command(topology, "list", ".report.connections:Presets")
def list_topologies(out: Output) -> None:
    """List the presets.

    $ tvm-sched topology list
    $ tvm-sched topology list --json
    """
    from tvm_sched_runtime.problem import load_topology, preset_names

    from ..report.connections import Presets
    from ..report.tables import presets_table

    machines = [load_topology(name) for name in preset_names()]
    out.show(presets_table(machines))
    out.result(Presets.of(machines))


@command(topology, "show", ".report.connections:TopologySummary")
def show_topology(out: Output, name: Name) -> None:
    """Show devices, buses and links, and how each pair of devices is joined (as `nvidia-smi topo -m` does).

    $ tvm-sched topology show v100-server
    $ tvm-sched topology show my-machine.toml --json
    """
    from tvm_sched_runtime.problem import load_topology

    from ..report.connections import TopologySummary
    from ..report.tables import buses_table, devices_table, matrix_table

    machine = load_topology(name)
    out.show(f"[bold]{escape(machine.name)}[/bold]", devices_table(machine))
    if machine.buses or machine.links or machine.switches or machine.storage:
        out.show(buses_table(machine))
    out.show(matrix_table(machine))
    if machine.source:
        out.show(escape(f"Source of the figures: {machine.source}"))
    out.result(TopologySummary.of(machine))


@command(topology, "check", ".report.connections:CheckedTopology")
def check_topology(out: Output, file: TomlFile) -> None:
    """Check a topology file; the first thing wrong is named with its place, and the exit status is 2.

    $ tvm-sched topology check my-machine.toml
    """
    from tvm_sched_runtime.problem import load_topology

    from ..report.connections import CheckedTopology, part_counts

    machine = load_topology(str(file))
    counts = part_counts(machine)
    parts = ", ".join(f"{n} {what}" for what, n in counts.items())
    out.show(escape(f"{file}: topology {machine.name!r} is right: {parts}"))
    out.result(CheckedTopology(str(file), machine.name, True, **counts))


@command(topology, "detect", ".cost_model.detect:DetectedTopology")
def detect_topology(
    out: Output,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.toml", help="Write it there."),
        Writes((".toml",)),
    ] = None,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the topology.")] = "this-machine",
    recording: Annotated[
        Path | None, typer.Option("--recording", metavar="FILE.json", help="Describe the machine recorded there.")
    ] = None,
    from_text: Annotated[
        list[str] | None,
        typer.Option(
            "--from-text",
            metavar="FILE",
            help="Describe the machine of which this is the output of nvidia-smi (topo -m, topo -p2p r, -L, --query-gpu as "
            "CSV, or no option); - is standard input. Several are allowed.",
        ),
    ] = None,
    save_recording: Annotated[
        Path | None,
        typer.Option("--save-recording", metavar="FILE.json", help="Write what this machine says of itself."),
        JSON,
    ] = None,
    measure: Annotated[
        bool, typer.Option(help="Measure copies from and between GPUs; else bandwidths are from the specification.")
    ] = True,
    storage: Annotated[
        Path | None,
        typer.Option(
            "--storage",
            metavar="FILE|DIR",
            help="Measure the disk: read this file (16 MiB at least) past the page cache, at most 960 MiB in all; in a "
            "folder, write a file of 64 MiB, read it and remove it.",
        ),
    ] = None,
) -> None:
    """Describe this machine: GPUs, buses and who shares them, NVLinks; or its CPUs where there is no GPU.

    With --storage, also the disk on which the model's file lies, so that schedules read parameters from it.

    $ tvm-sched topology detect -o my-machine.toml
    $ tvm-sched topology detect --no-measure -o my-machine.toml
    $ tvm-sched topology detect --save-recording machine.json -o my-machine.toml
    $ tvm-sched topology detect --recording machine.json -o their-machine.toml
    $ nvidia-smi -L | tvm-sched topology detect --from-text topo.txt --from-text - -o their-machine.toml
    $ tvm-sched topology detect --storage . -o cold-machine.toml
    """
    from msgspec import structs

    from tvm_sched_runtime.errors import InputError
    from tvm_sched_runtime.problem import write_topology

    from ..cost_model.detect import detected
    from ..cost_model.recording import Recording, record
    from ..cost_model.smi_text import read_smi
    from ..cost_model.storage import measure_storage
    from ..report.tables import buses_table, devices_table, matrix_table

    if recording and storage:
        raise InputError("--recording describes another machine, and --storage measures this one: give one of them")
    if from_text and (recording or storage):
        raise InputError("--from-text describes another machine: give it without --recording and --storage")
    if from_text:
        recorded = read_smi([_text_of(name) for name in from_text])
    else:
        recorded = Recording.load(recording) if recording else _measured(out, record()) if measure else record()
    if storage:
        with out.step("storage"):
            recorded = structs.replace(recorded, storage=measure_storage(storage))
    if save_recording:
        recorded.save(save_recording)
        out.wrote(save_recording, "recording")
    found = detected(recorded, name)
    machine = found.topology
    for warning in found.warnings:
        out.say(f"warning: {warning}")
    if output:
        write_topology(output, machine, found.comments)
        out.wrote(output, "topology")
    out.show(f"[bold]{escape(machine.name)}[/bold]", devices_table(machine), matrix_table(machine))
    if machine.storage:
        out.show(buses_table(machine))
    out.result(found)


def _text_of(name: str) -> str:
    """Return the text of a file, or of standard input by the name ``-``."""
    from tvm_sched_runtime.files import read_bytes

    content = sys.stdin.buffer.read() if name == "-" else read_bytes(name)
    return content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8", errors="replace")


def _measured(out: Output, recorded: Recording) -> Recording:
    """Add measured copies to a recording of this machine; print why if they cannot be measured."""
    from tvm_sched_runtime.errors import InputError

    from ..cost_model.detect import measure

    try:
        with out.step("copies") as step:
            return measure(recorded, step)
    except InputError as error:
        out.say(f"bandwidths are from the specification: {error}")
        return recorded


@command(app, "schedulers", ".docstrings:MethodDescription[]", panel=RESEARCH)
def list_schedulers(out: Output) -> None:
    """List the schedulers with their options.

    $ tvm-sched schedulers
    $ tvm-sched schedulers --json
    """
    from .. import schedulers
    from ..docstrings import MethodDescription
    from ..report.tables import options_table

    described = [MethodDescription.of(schedulers.get(name)) for name in schedulers.names()]
    for scheduler in described:
        out.show(f"[bold]{escape(scheduler.name)}[/bold]  {escape(scheduler.summary)}")
        out.show(options_table(scheduler.options) if scheduler.options else "  no options\n")
    out.result(described)
