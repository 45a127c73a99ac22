"""Arguments and options that several commands share, and checks of the files they name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tvm_sched_runtime.errors import InputError

if TYPE_CHECKING:
    from tvm_sched_runtime.problem import Problem
    from tvm_sched_runtime.schedule import Schedule, Timeline

Loaded = TypeVar("Loaded", "Schedule", "Timeline")

Model = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="Model: .onnx, .pt2 (torch.export), .json or .py (Relax), or a folder of Hugging Face or ONNX Runtime GenAI.",
    ),
]
Models = Annotated[
    list[Path],
    typer.Argument(
        metavar="MODEL...",
        help="Models: .onnx, .pt2, .json or .py; a folder of Hugging Face or ONNX Runtime GenAI, or a config.json alone; or "
        "one of gpt2-large, gpt2-xl, openllama-3b, openllama-7b, llama-2-7b, llama-2-13b, llama-2-70b, llama-3-8b, "
        "llama-3-70b, mistral-7b. Several run at once.",
    ),
]
ModelsOrProblems = Annotated[
    list[Path],
    typer.Argument(
        metavar="MODEL|PROBLEM...",
        help="Models (.onnx, .pt2, .json or .py; a folder of Hugging Face or ONNX Runtime GenAI, or a config.json alone; a "
        "name such as gpt2-large or llama-3-8b) or problem files (.json). Several run at once.",
    ),
]
ProblemFile = Annotated[Path, typer.Argument(metavar="PROBLEM", help="Problem file (.json).")]
ScheduleFile = Annotated[Path, typer.Argument(metavar="SCHEDULE", help="Schedule file (.json).")]
TopologyName = Annotated[
    str,
    typer.Option("--topology", "-t", metavar="NAME|FILE", help="Preset or TOML file; see `tvm-sched topology list`."),
]
OptionalTopology = Annotated[
    str | None,
    typer.Option("--topology", "-t", metavar="NAME|FILE", help="Preset or TOML file. A problem file brings its own."),
]
CostsName = Annotated[
    str | None,
    typer.Option(
        "--costs",
        metavar="NAME|FILE",
        help="Latencies: calibrated, roofline, learned, measured, or a file: table .csv, profile .parquet/.json, model "
        ".msgpack. Default: calibrated (kernels are measured) for this machine's cores, learned with a GPU, else "
        "roofline.",
    ),
]
OptionalCosts = Annotated[
    str | None,
    typer.Option("--costs", metavar="NAME|FILE", help="As in `compile`; a problem file brings its own latencies."),
]
Workers = Annotated[
    str | None,
    typer.Option(
        "--workers",
        metavar="KIND[:ADDRESS]",
        help="Distribute the search over workers, of a kind that an installed package offers. The result is the same.",
    ),
]


@dataclass(frozen=True)
class StoredParameters:
    """The parameter file that `run` and `generate` read."""

    parameter_file: Annotated[
        Path | None, typer.Option("--parameter-file", metavar="FILE", help="Safetensors file of the parameters.")
    ] = None
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare the parameter file with its checksum first, whatever its size.")
    ] = False


@dataclass(frozen=True)
class Writes:
    """Mark of an option that names a file to write."""

    endings: tuple[str, ...] = ()
    """Allowed endings of the name; none: any."""
    folder: bool = False
    """Whether it is a folder, which may be missing."""
    charts: bool = False
    """Whether the file has charts, which need plotly."""
    replaces: bool = False
    """Whether the file may be one of the inputs."""


JSON, HTML = Writes((".json",)), Writes((".html", ".htm"), charts=True)
ReportFile = Annotated[Path | None, typer.Option("--report", metavar="FILE.html", help="Write an HTML report."), HTML]
TraceFile = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE.json", help="Write a Chrome trace; open it in https://ui.perfetto.dev."),
    JSON,
]
TimelineFile = Annotated[Path | None, typer.Option("--timeline", metavar="FILE.json", help="Write the timeline."), JSON]
EvidenceFile = Annotated[
    Path | None,
    typer.Option(
        "--evidence", metavar="FILE.json", help="Write what the lower bound rests on; `tvm-sched check` verifies it."
    ),
    JSON,
]


def check_files(parameters: Iterable[Parameter], values: Mapping[str, Any]) -> None:
    """Refuse files that cannot be written, before the long work begins.

    An option marked with `Writes` names a file to write; any other path in ``values`` is an input.
    """
    outputs: list[tuple[str, Path, Writes]] = []
    taken: dict[Path, str] = {}
    for parameter in parameters:
        value = values.get(parameter.name)
        marks: tuple[Any, ...] = getattr(parameter.annotation, "__metadata__", ())
        mark = next((mark for mark in marks if isinstance(mark, Writes)), None)
        if mark is not None:
            flags = (marks[0].default, *marks[0].param_decls)  # typer takes the first one for the default
            option = next(flag for flag in flags if flag.startswith("--"))
            outputs += [(option, value, mark)] if value is not None else []
            continue
        for path in value if isinstance(value, list) else [value]:
            if isinstance(path, Path):
                taken[path.resolve()] = f"the input {path}"
    inputs = set(taken)
    for option, path, mark in outputs:
        _check_file(option, path, mark)
        place = path.resolve()
        if place in taken and not (mark.replaces and place in inputs):
            raise InputError(f"{option} {path}: that is {taken[place]}; give another name")
        taken[place] = f"the file of {option}"
    if any(mark.charts for _, _, mark in outputs):
        from ..report.page import require_plotly

        require_plotly()


def _check_file(option: str, path: Path, mark: Writes) -> None:
    if mark.folder:
        if path.exists() and not path.is_dir():
            raise InputError(f"{option} {path}: that is a file; give a folder")
        return check_directory(option, path if path.is_dir() else path.absolute().parent)
    allowed = " or ".join(mark.endings)
    if mark.endings and path.suffix.lower() not in mark.endings:
        raise InputError(f"{option} {path}: the name must end in {allowed}")
    if path.is_dir():
        raise InputError(
            f"{option} {path}: that is a directory; give a file" + (f" that ends in {allowed}" if allowed else "")
        )
    check_directory(option, path.parent)
    if path.exists() and not os.access(path, os.W_OK):
        raise InputError(f"{option} {path}: the file is there and may not be written")


def check_directory(option: str, directory: Path) -> None:
    """Refuse a directory that is missing or may not be written."""
    if not directory.is_dir():
        raise InputError(f"{option}: there is no directory {directory}; make it first")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise InputError(f"{option}: directory {directory} may not be written")


def load_schedule(problem: Problem, path: Path) -> Schedule:
    """Load a schedule file of a problem."""
    from tvm_sched_runtime.schedule import Schedule

    return _of_problem(problem, Schedule.load(path), "schedule", path)


def load_timeline(problem: Problem, path: Path) -> Timeline:
    """Load a timeline file of a problem."""
    from tvm_sched_runtime.schedule import Timeline

    return _of_problem(problem, Timeline.load(path), "timeline", path)


def _of_problem(problem: Problem, loaded: Loaded, what: str, path: Path) -> Loaded:
    """Refuse a file of another problem."""
    if loaded.problem != problem.digest:
        raise InputError(f"{path} is a {what} of problem {loaded.problem}; this problem is {problem.digest}")
    return loaded
