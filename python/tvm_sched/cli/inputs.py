"""What commands are given: models and problems, topologies, shapes, options, and the files that they are to write."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ..errors import InputError
from .command import Output

if TYPE_CHECKING:
    from ..problem import Problem, Topology
    from ..schedule import Schedule, Timeline

Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Model: .onnx, .pt2 (torch.export), .json or .py (Relax).")
]
ModelOrProblem = Annotated[
    Path, typer.Argument(metavar="MODEL|PROBLEM", help="Model (.onnx, .pt2, .json or .py) or problem file (.json).")
]
ProblemFile = Annotated[Path, typer.Argument(metavar="PROBLEM", help="Problem file (.json).")]
ScheduleFile = Annotated[Path, typer.Argument(metavar="SCHEDULE", help="Schedule file (.json).")]
TopologyName = Annotated[
    str,
    typer.Option("--topology", "-t", metavar="NAME|FILE", help="Preset or TOML file; see `tvm-sched topology list`."),
]
SchedulerName = Annotated[str, typer.Option("--scheduler", "-s", metavar="NAME", help="See `tvm-sched schedulers`.")]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="KEY=VALUE", help="Option of the scheduler; see `tvm-sched schedulers`. May be repeated."
    ),
]
InputShapes = Annotated[
    list[str] | None,
    typer.Option(
        "--input-shape", metavar="NAME:DIMS", help="Shape of an input, e.g. data:1,3,224,224. May be repeated."
    ),
]
TimeLimit = Annotated[
    float | None, typer.Option("--time-limit", metavar="SECONDS", help="Time limit of the scheduler in all.")
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Random seed of the scheduler.")]
CostsName = Annotated[
    str,
    typer.Option(
        "--costs",
        metavar="NAME|FILE",
        help="Latencies: roofline, learned, measured, or a file: table .csv, profile .parquet/.json, model .msgpack.",
    ),
]
OptionalCosts = Annotated[
    str | None,
    typer.Option("--costs", metavar="NAME|FILE", help="As in `compile`; a problem file brings its own latencies."),
]
ReportFile = Annotated[Path | None, typer.Option("--report", metavar="FILE.html", help="Write an HTML report.")]
TraceFile = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE.json", help="Write a Chrome trace; open it in https://ui.perfetto.dev."),
]
TimelineFile = Annotated[Path | None, typer.Option("--timeline", metavar="FILE.json", help="Write the timeline.")]


def check_outputs(outputs: Mapping[str, tuple[Path | None, Iterable[str]]], inputs: Iterable[Path] = ()) -> None:
    """Refuse files that cannot be written, before the long work begins.

    Parameters
    ----------
    outputs : mapping
        Option to its file (None: not asked for) and the allowed endings.
    inputs : iterable of Path
        Files that must not be overwritten.
    """
    taken = {path.resolve(): f"the input {path}" for path in inputs}
    for option, (path, endings) in outputs.items():
        if path is None:
            continue
        allowed = " or ".join(endings)
        if path.suffix.lower() not in tuple(endings):
            raise InputError(f"{option} {path}: the name must end in {allowed}")
        if path.is_dir():
            raise InputError(f"{option} {path}: that is a directory; give a file that ends in {allowed}")
        check_directory(option, path.parent)
        if path.exists() and not os.access(path, os.W_OK):
            raise InputError(f"{option} {path}: the file is there and may not be written")
        if path.resolve() in taken:
            raise InputError(f"{option} {path}: that is {taken[path.resolve()]}; give another name")
        taken[path.resolve()] = f"the file of {option}"
    if any(option == "--report" and path for option, (path, _) in outputs.items()):
        from ..report.html import require_plotly

        require_plotly()


def check_directory(option: str, directory: Path) -> None:
    """Refuse a directory that is missing or may not be written."""
    if not directory.is_dir():
        raise InputError(f"{option}: there is no directory {directory}; make it first")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise InputError(f"{option}: directory {directory} may not be written")


def parse_options(texts: Iterable[str] | None) -> dict[str, str]:
    """``KEY=VALUE`` texts as a dictionary; ``-`` in a key is ``_``."""
    options = {}
    for text in texts or ():
        key, mark, value = text.partition("=")
        if not mark or not key.strip():
            raise InputError(f"--option {text}: expected KEY=VALUE, e.g. --option time_limit=60")
        options[key.strip().replace("-", "_")] = value.strip()
    return options


def parse_shapes(texts: Iterable[str] | None) -> list[dict[str, tuple[int, ...]]]:
    """``NAME:1,3,224,224`` texts as sets of input shapes; a name that comes again begins the next set.

    The name may hold colons; ``NAME:`` is a scalar. Without texts the list is empty.
    """
    sets: list[dict[str, tuple[int, ...]]] = []
    for text in texts or ():
        name, mark, sizes = text.rpartition(":")
        try:
            shape = tuple(int(size) for size in sizes.split(",")) if sizes.strip() else ()
        except ValueError:
            mark = ""
        if not mark or not name or any(size < 0 for size in shape):
            raise InputError(f"--input-shape {text}: expected NAME:DIMS with whole numbers, e.g. data:1,3,224,224")
        if not sets or name in sets[-1]:
            sets.append({})
        sets[-1][name] = shape
    return sets


def scheduler_options(
    out: Output, name: str, texts: list[str] | None, time_limit: float | None, seed: int | None
) -> dict[str, Any]:
    """Options of ``--option``, ``--time-limit`` and ``--seed``; the last two are dropped where unknown."""
    common = common_options(time_limit, seed)
    known = known_options(name)
    for key in common.keys() - known:
        out.say(f"scheduler {name!r} has no option {key}; --{key.replace('_', '-')} is ignored")
    return {**{key: value for key, value in common.items() if key in known}, **parse_options(texts)}


def common_options(time_limit: float | None, seed: int | None) -> dict[str, Any]:
    """``--time-limit`` and ``--seed`` as options, where given."""
    if time_limit is not None and not 0 < time_limit < float("inf"):
        raise InputError(f"--time-limit {time_limit}: a number of seconds above 0 is allowed")
    given = {"time_limit": time_limit, "seed": seed}
    return {key: value for key, value in given.items() if value is not None}


def known_options(name: str) -> set[str]:
    """Names of the options of a scheduler."""
    from ..schedulers import get

    return {field.name for field in msgspec.structs.fields(get(name).options)}


def is_problem(path: Path) -> bool:
    """Whether a file is to be read as one of ours: JSON, whole or damaged, but no Relax module saved as JSON."""
    if path.suffix.lower() != ".json" or not path.is_file():
        return False
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Head).root_index is None
    except msgspec.MsgspecError:
        return True
    except OSError:
        return False


class _Head(msgspec.Struct):
    """What a graph of objects has that ``tvm.ir.save_json`` wrote."""

    root_index: Any = None


def load_topology(name: str) -> Topology:
    """A preset or a file."""
    from .. import problem

    return problem.load_topology(name)


def load_problem(
    out: Output, path: Path, topology: str | None, shapes: list[str] | None, costs: str | None = None
) -> Problem:
    """The problem of a model on a topology, or a problem file; topology and costs beside one replace its own.

    Raises
    ------
    InputError
        A model without a topology, a problem with input shapes, and all that reading can find wrong.
    """
    from ..problem import Problem

    if not is_problem(path):
        if not path.is_file():
            raise InputError(f"{path}: no such file")
        if topology is None:
            raise InputError(
                f"{path} is a model, so it needs a machine: --topology NAME|FILE (see `tvm-sched topology list`)"
            )
        return import_problem(out, path, load_topology(topology), shapes, costs or "roofline")
    if shapes:
        raise InputError(f"{path} is a problem file, whose shapes are fixed: --input-shape is for models")
    problem = Problem.load(path)
    if topology is None and costs is None:
        return problem
    machine = problem.topology if topology is None else load_topology(topology)
    if costs is None:
        out.say(f"{path}: on {machine.name} instead of {problem.topology.name}, latencies from the roofline model")
    from ..cost_model import get_cost_model

    with cost_warnings(out):
        return Problem(problem.graph, machine, get_cost_model(costs or "roofline")(problem.graph, machine))


@contextmanager
def cost_warnings(out: Output) -> Iterator[None]:
    """Say what a cost model warns of, as plain messages."""
    from ..cost_model import CostWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CostWarning)
        yield
    for warning in caught:
        if issubclass(warning.category, CostWarning):
            out.say(f"warning: {warning.message}")
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def import_problem(
    out: Output, path: Path, topology: Topology, shapes: list[str] | None, costs: str = "roofline"
) -> Problem:
    """The problem of a model file."""
    from ..cost_model import get_cost_model

    get_cost_model(costs)  # a wrong name is said before the long work
    sets = parse_shapes(shapes)
    if len(sets) > 1:
        raise InputError("--input-shape gives an input two shapes; a problem has one, only `compile` takes several")
    with out.step(f"Importing {path.name}"), cost_warnings(out):
        from ..relax import make_problem

        return make_problem(path, topology, input_shapes=sets[0] if sets else None, cost_model=costs)


def load_schedule(problem: Problem, path: Path) -> Schedule:
    """A schedule file; one of another problem is refused."""
    from ..schedule import Schedule

    schedule = Schedule.load(path)
    if schedule.problem != problem.digest:
        raise InputError(f"{path} is a schedule of problem {schedule.problem}; the problem given is {problem.digest}")
    return schedule


def load_timeline(problem: Problem, path: Path) -> Timeline:
    """A timeline file; one of another problem is refused."""
    from ..schedule import Timeline

    timeline = Timeline.load(path)
    if timeline.problem != problem.digest:
        raise InputError(f"{path} is a timeline of problem {timeline.problem}; the problem given is {problem.digest}")
    return timeline
