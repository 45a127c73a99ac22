"""Commands that list topologies and schedulers, and check or detect a topology."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.markup import escape

from .inputs import check_outputs, load_topology
from .output import Output
from .registration import command

if TYPE_CHECKING:
    from ..cost_model.recording import Recording

topology = typer.Typer(
    name="topology",
    help="Machines: their devices, buses, links and switches.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Name = Annotated[str, typer.Argument(metavar="NAME|FILE", help="Preset or TOML file.")]
TomlFile = Annotated[Path, typer.Argument(metavar="FILE", help="Topology file (.toml).")]


@command(topology, "list", ("tvm-sched topology list", "tvm-sched topology list --json"))
def list_topologies(out: Output) -> None:
    """List the presets."""
    from ..problem import preset_names
    from ..report.tables import table

    machines = [load_topology(name) for name in preset_names()]
    about = [{"name": m.name, **_counts(m), "source": m.source} for m in machines]
    rows = [
        (m.name, ", ".join(dict.fromkeys(d.model or d.kind for d in m.devices)), *map(str, _counts(m).values()))
        for m in machines
    ]
    rows.append(("cpuN", "logical devices on this machine's cores, for any N from 1", "N", "0", "", ""))
    out.show(table(("name", "models", "devices", "buses", "links", "switches"), rows, text_columns=2))
    out.result({"presets": about, "families": ["cpuN"]})


@command(topology, "show", ("tvm-sched topology show v100-server", "tvm-sched topology show my-machine.toml --json"))
def show_topology(out: Output, name: Name) -> None:
    """Show devices, buses and links, and how each pair of devices is joined (as `nvidia-smi topo -m` does)."""
    from ..report.connections import matrix
    from ..report.tables import buses_table, devices_table, matrix_table

    machine = load_topology(name)
    out.show(f"[bold]{escape(machine.name)}[/bold]", devices_table(machine))
    if machine.buses or machine.links or machine.switches:
        out.show(buses_table(machine))
    out.show(matrix_table(machine))
    if machine.source:
        out.show(escape(f"Source of the figures: {machine.source}"))
    names, cells = matrix(machine)
    joined = {
        a: {
            b: {"by": c.word, "bandwidth": c.bandwidth, "channels": c.channels} for b, c in zip(names, row, strict=True)
        }
        for a, row in zip(names, cells, strict=True)
    }
    out.result({**msgspec.to_builtins(machine), "channels": machine.channels, "matrix": joined})


@command(topology, "check", ("tvm-sched topology check my-machine.toml",))
def check_topology(out: Output, file: TomlFile) -> None:
    """Check a topology file; the first thing wrong is named with its place, and the exit status is 2."""
    machine = load_topology(str(file))
    counts = _counts(machine)
    parts = ", ".join(f"{n} {what}" for what, n in counts.items())
    out.show(escape(f"{file}: topology {machine.name!r} is right: {parts}"))
    out.result({"file": str(file), "name": machine.name, "right": True, **counts})


@command(
    topology,
    "detect",
    (
        "tvm-sched topology detect -o my-machine.toml",
        "tvm-sched topology detect --no-measure -o my-machine.toml",
        "tvm-sched topology detect --save-recording machine.json -o my-machine.toml",
        "tvm-sched topology detect --recording machine.json -o their-machine.toml",
    ),
)
def detect_topology(
    out: Output,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE.toml", help="Write it there.")] = None,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the topology.")] = "this-machine",
    recording: Annotated[
        Path | None, typer.Option("--recording", metavar="FILE.json", help="Describe the machine recorded there.")
    ] = None,
    save_recording: Annotated[
        Path | None,
        typer.Option("--save-recording", metavar="FILE.json", help="Write what this machine says of itself."),
    ] = None,
    measure: Annotated[
        bool, typer.Option(help="Measure copies from and between GPUs; else bandwidths are from the specification.")
    ] = True,
) -> None:
    """Describe this machine: GPUs, buses and who shares them, NVLinks; or its CPUs where there is no GPU."""
    from ..cost_model.detect import describe
    from ..cost_model.recording import Recording, record
    from ..problem import write_topology
    from ..report.tables import devices_table, matrix_table

    check_outputs({"--output": (output, (".toml",)), "--save-recording": (save_recording, (".json",))})
    found = Recording.load(recording) if recording else _measured(out, record()) if measure else record()
    if save_recording:
        found.save(save_recording)
        out.wrote(save_recording, "recording")
    machine, comments = describe(found, name)
    if output:
        write_topology(output, machine, comments)
        out.wrote(output, "topology")
    out.show(f"[bold]{escape(machine.name)}[/bold]", devices_table(machine), matrix_table(machine))
    out.result({"topology": msgspec.to_builtins(machine), "bandwidths": comments, "recording": found})


def _measured(out: Output, found: Recording) -> Recording:
    """What was recorded of this machine with its copies measured; without, and a word why, where that cannot be done."""
    from ..cost_model.detect import measure
    from ..errors import InputError

    try:
        with out.step("copies") as step:
            return measure(found, step)
    except InputError as error:
        out.say(f"bandwidths are from the specification: {error}")
        return found


def _counts(machine: Any) -> dict[str, int]:
    parts = ("devices", "buses", "links", "switches")
    return {part: len(getattr(machine, part)) for part in parts}


def list_schedulers(out: Output) -> None:
    """List the schedulers with their options."""
    from .. import schedulers
    from ..report.tables import table

    found = [schedulers.get(name) for name in schedulers.names()]
    described: list[dict[str, Any]] = [
        {"name": s.name, "summary": s.summary, "options": option_descriptions(s.options)} for s in found
    ]
    for scheduler in described:
        out.show(f"[bold]{escape(scheduler['name'])}[/bold]  {escape(scheduler['summary'])}")
        rows = [
            (f"  {o['name']}", o["type"], msgspec.json.encode(o["default"]).decode(), o["description"])
            for o in scheduler["options"]
        ]
        if rows:
            out.show(table(("  option", "type", "default", ""), rows, text_columns=4))
        else:
            out.show("  no options\n")
    out.result(described)


def option_descriptions(options: type[msgspec.Struct]) -> list[dict[str, Any]]:
    """Name, type, default and description (numpydoc ``Parameters`` of the class and its bases) of each option."""
    texts: dict[str, str] = {}
    for base in reversed(options.__mro__):
        texts |= _parameter_texts(base.__dict__.get("__doc__") or "")
    described = []
    for field in msgspec.structs.fields(options):
        default = field.default if field.default is not msgspec.NODEFAULT else None
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        kind = getattr(field.type, "__name__", str(field.type))
        kind = (
            str(field.type).replace("typing.", "")
            if kind in ("Optional", "Union", "Literal", "list", "tuple")
            else kind
        )
        described.append(
            {"name": field.name, "type": kind, "default": default, "description": texts.get(field.name, "")}
        )
    return described


def _parameter_texts(docstring: str) -> dict[str, str]:
    """Descriptions in a numpydoc ``Parameters`` section, a line each; ``a, b : int`` describes both."""
    import inspect

    texts: dict[str, str] = {}
    names: list[str] = []
    inside = False
    lines = inspect.cleandoc(docstring).splitlines()
    for n, line in enumerate(lines):
        following = lines[n + 1] if n + 1 < len(lines) else ""
        if following.startswith("---"):
            inside = line.strip() in ("Parameters", "Attributes")
            names = []
        elif not inside or line.startswith("---") or not line.strip():
            continue
        elif not line.startswith(" "):
            names = [name.strip() for name in line.split(":")[0].split(",")]
        else:
            for name in names:
                texts[name] = f"{texts.get(name, '')} {line.strip()}".strip()
    return texts
