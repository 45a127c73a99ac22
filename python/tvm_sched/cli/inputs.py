"""What commands are given: files, topologies, options, and the files that they are to write."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer

from ..errors import InputError
from ..files import UNREADABLE
from ..registry import Registry

if TYPE_CHECKING:
    from ..problem import Problem
    from ..schedule import Schedule, Timeline

Loaded = TypeVar("Loaded", "Schedule", "Timeline")

Model = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", help="Model: .onnx, .pt2 (torch.export), .json or .py (Relax), or a folder of Hugging Face."
    ),
]
Models = Annotated[
    list[Path],
    typer.Argument(
        metavar="MODEL...",
        help="Models: .onnx, .pt2, .json or .py; a folder of Hugging Face, or a config.json alone; or one of gpt2-large, "
        "gpt2-xl, openllama-3b, openllama-7b, llama-2-7b, llama-2-13b, llama-2-70b, llama-3-8b, llama-3-70b, mistral-7b. "
        "Several run at once.",
    ),
]
ModelsOrProblems = Annotated[
    list[Path],
    typer.Argument(
        metavar="MODEL|PROBLEM...",
        help="Models (.onnx, .pt2, .json or .py; a folder of Hugging Face, or a config.json alone; a name such as "
        "gpt2-large or llama-3-8b) or problem files (.json). Several run at once.",
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
        ".msgpack. Default: calibrated (kernels are measured) for this machine's cores, else roofline.",
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
class Writes:
    """Mark of an option that names a file to write.

    Attributes
    ----------
    endings : tuple of str
        Allowed endings of its name; none: any.
    charts : bool
        Whether the file has charts, for which plotly is needed.
    replaces : bool
        Whether it may be one of the inputs.
    """

    endings: tuple[str, ...] = ()
    charts: bool = False
    replaces: bool = False


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


def workers_of(kind: str | None) -> AbstractContextManager[None]:
    """Return a context in which searches use the workers of ``--workers``; without the option they work here."""
    if kind is None:
        return nullcontext()
    from ..worker_pool import workers

    return workers(_executor(kind))


EXECUTORS: Registry[Callable[[str], Executor]] = Registry("kind of workers", "tvm_sched.executors")
"""What makes a `concurrent.futures.Executor` of an address, by kind of workers."""


def _executor(given: str) -> Executor:
    kind, _, address = given.partition(":")
    offered = EXECUTORS.names()
    if kind not in offered:
        raise InputError(
            f"--workers {given}: no installed package offers workers of the kind {kind!r}; there are "
            f"{', '.join(offered) or 'none'}. Those of a cluster come with tvm-sched-cluster: pip install tvm-sched-cluster"
        )
    return EXECUTORS.get(kind)(address)


def check_files(parameters: Iterable[Parameter], values: Mapping[str, Any]) -> None:
    """Refuse files that cannot be written, before the long work begins.

    Parameters
    ----------
    parameters : iterable of Parameter
        Of a command; an option marked with `Writes` names a file to write, any other path is an input.
    values : mapping
        The values given, by parameter.
    """
    outputs: list[tuple[str, Path, Writes]] = []
    taken: dict[Path, str] = {}
    for parameter in parameters:
        value, marks = values.get(parameter.name), getattr(parameter.annotation, "__metadata__", ())
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


def is_problem(path: Path) -> bool:
    """Whether a file is to be read as one of ours: JSON, whole or damaged, but no Relax module saved as JSON."""
    if path.suffix.lower() != ".json" or not path.is_file():
        return False
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Head).root_index is None
    except UNREADABLE:
        return True
    except OSError:
        return False


class _Head(msgspec.Struct):
    """What a graph of objects has that ``tvm.ir.save_json`` wrote."""

    root_index: Any = None


def load_schedule(problem: Problem, path: Path) -> Schedule:
    """A schedule file; one of another problem is refused."""
    from ..schedule import Schedule

    return _of_problem(problem, Schedule.load(path), "schedule", path)


def load_timeline(problem: Problem, path: Path) -> Timeline:
    """A timeline file; one of another problem is refused."""
    from ..schedule import Timeline

    return _of_problem(problem, Timeline.load(path), "timeline", path)


def _of_problem(problem: Problem, loaded: Loaded, what: str, path: Path) -> Loaded:
    if loaded.problem != problem.digest:
        raise InputError(f"{path} is a {what} of problem {loaded.problem}; the problem given is {problem.digest}")
    return loaded
