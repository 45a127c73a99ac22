"""What commands are given: models and problems, topologies, shapes, options, and the files that they are to write."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ..errors import InputError
from .command import Output

if TYPE_CHECKING:
    from ..problem import DecoderConfig, OpGraph, Problem, Topology
    from ..schedule import Schedule, Timeline

Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Model: .onnx, .pt2 (torch.export), .json or .py (Relax).")
]
Models = Annotated[
    list[Path],
    typer.Argument(
        metavar="MODEL...",
        help="Models: .onnx, .pt2, .json or .py; a config.json of Hugging Face; or one of gpt2-large, gpt2-xl, "
        "openllama-3b, openllama-7b. Several run at once.",
    ),
]
ModelsOrProblems = Annotated[
    list[Path],
    typer.Argument(
        metavar="MODEL|PROBLEM...",
        help="Models (.onnx, .pt2, .json or .py; a config.json of Hugging Face; gpt2-large, gpt2-xl, openllama-3b, "
        "openllama-7b) or problem files (.json). Several run at once.",
    ),
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
TokenShape = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="BATCHxTOKENS",
        help="Of a language model given by its name or config.json, e.g. 1x32. One for all, or one for each.",
    ),
]
Phase = Annotated[
    str,
    typer.Option(
        "--phase",
        metavar="full|prefill|decode",
        help="Of such a model: all tokens at once; the same, keeping keys and values; or one more token, with those of "
        "--shape's tokens as parameters.",
    ),
]
TimeLimit = Annotated[
    float | None, typer.Option("--time-limit", metavar="SECONDS", help="Time limit of the scheduler in all.")
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Random seed of the scheduler.")]
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
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="HOST:PORT|auto",
        help="Spread the search over a Ray cluster (extra [cluster]). The result is the same.",
    ),
]
ReportFile = Annotated[Path | None, typer.Option("--report", metavar="FILE.html", help="Write an HTML report.")]
TraceFile = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE.json", help="Write a Chrome trace; open it in https://ui.perfetto.dev."),
]
TimelineFile = Annotated[Path | None, typer.Option("--timeline", metavar="FILE.json", help="Write the timeline.")]


def workers_of(ray: str | None) -> AbstractContextManager[None]:
    """What lets a search use a Ray cluster while it is open; nothing without an address."""
    if ray is None:
        return nullcontext()
    from ..serving import RayExecutor
    from ..spread import workers

    return workers(RayExecutor(ray))


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
        from ..report.page import require_plotly

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
    known = known_options(name)
    common = common_options(time_limit, seed, known)
    for key in common.keys() - known:
        out.say(f"scheduler {name!r} has no option {key}; --{key.replace('_', '-')} is ignored")
    return {**{key: value for key, value in common.items() if key in known}, **parse_options(texts)}


def common_options(time_limit: float | None, seed: int | None, known: set[str]) -> dict[str, Any]:
    """``--time-limit`` and ``--seed`` as options of a scheduler that knows ``known``, where given.

    The time limit is that of the whole: where a scheduler has one for each submodel too, its ``total_time_limit``.
    """
    if time_limit is not None and not 0 < time_limit < float("inf"):
        raise InputError(f"--time-limit {time_limit}: a number of seconds above 0 is allowed")
    whole = "total_time_limit" if "total_time_limit" in known else "time_limit"
    given = {whole: time_limit, "seed": seed}
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


def parse_token_shapes(texts: Sequence[str] | None, count: int) -> list[tuple[int, int]]:
    """``1x32`` texts as (batch, tokens), one for each of ``count`` models; a single text is for all of them."""
    shapes = []
    for text in texts or ():
        match = re.fullmatch(r"(\d+)x(\d+)", text.strip())
        if match is None:
            raise InputError(f"--shape {text}: expected BATCHxTOKENS, e.g. 1x32")
        shapes.append((int(match[1]), int(match[2])))
    if len(shapes) not in (1, count):
        raise InputError(
            f"--shape stands {len(shapes)} times for {count} language models given by name or config.json; "
            "give one for all of them (BATCHxTOKENS, e.g. 1x32), or one for each in their order"
        )
    return shapes * count if len(shapes) == 1 else shapes


def decoder_config(path: Path) -> DecoderConfig | None:
    """The language model that a name or a ``config.json`` stands for; None for all other files."""
    from ..problem.decoder_config import PRESETS, is_config, read_config

    if path.is_file():
        return read_config(path) if is_config(path) else None
    return PRESETS.get(str(path))


def load_problem(
    out: Output,
    sources: Sequence[Path],
    topology: str | None,
    input_shapes: list[str] | None = None,
    shapes: list[str] | None = None,
    phase: str = "full",
    costs: str | None = None,
) -> Problem:
    """The problem of models and problem files on a machine; several of them run at once (`merge_problems`).

    Topology and costs beside a problem file replace its own.

    Raises
    ------
    InputError
        A model without a topology, shapes for what has none, and all that reading can find wrong.
    """
    from ..problem import merge_problems

    configs = {path: config for path in sources if (config := decoder_config(path)) is not None}
    named = [path for path in sources if path in configs]
    if shapes and not named:
        raise InputError(
            "--shape is for language models given by name or config.json; --input-shape is for model files"
        )
    if phase != "full" and not named:
        raise InputError("--phase is for language models given by name or config.json")
    if input_shapes and len(sources) > 1:
        raise InputError(
            "--input-shape is for one model; make a problem file of each model first (`tvm-sched problem`)"
        )
    sizes = iter(parse_token_shapes(shapes, len(named)) if named else [])
    problems = []
    for path in sources:
        config = configs.get(path)
        if config is not None:
            graph_of = partial(_decoder_graph, out, config, next(sizes), phase)
            problems.append(_on_machine(out, path, topology, graph_of, costs))
        else:
            problems.append(_load_file(out, path, topology, input_shapes, costs))
    return merge_problems(problems)


def _decoder_graph(out: Output, config: DecoderConfig, shape: tuple[int, int], phase: str) -> OpGraph:
    with out.step(f"Making {config.name}"):
        from ..relax.decoders import decoder_graph

        return decoder_graph(config, *shape, phase=phase)


def _on_machine(
    out: Output, path: Path, topology: str | None, graph_of: Callable[[], OpGraph], costs: str | None
) -> Problem:
    from ..cost_model import default_cost_model, get_cost_model
    from ..problem import Problem

    machine = _machine_for(path, topology)
    cost_model = get_cost_model(costs or default_cost_model(machine))
    graph = graph_of()
    with cost_warnings(out):
        return Problem(graph, machine, cost_model(graph, machine))


def _machine_for(path: Path, topology: str | None) -> Topology:
    if topology is None:
        raise InputError(
            f"{path} is a model, so it needs a machine: --topology NAME|FILE (see `tvm-sched topology list`)"
        )
    return load_topology(topology)


def _load_file(out: Output, path: Path, topology: str | None, shapes: list[str] | None, costs: str | None) -> Problem:
    """The problem of a model file, or a problem file."""
    from ..problem import Problem

    if not is_problem(path):
        if not path.is_file():
            from ..problem.decoder_config import PRESETS

            raise InputError(f"{path}: no such file, nor one of the language models {', '.join(PRESETS)}")
        return import_problem(out, path, _machine_for(path, topology), shapes, costs)
    if shapes:
        raise InputError(f"{path} is a problem file, whose shapes are fixed: --input-shape is for models")
    problem = Problem.load(path)
    if topology is None and costs is None:
        return problem
    machine = problem.topology if topology is None else load_topology(topology)
    from ..cost_model import default_cost_model, get_cost_model

    chosen = costs or default_cost_model(machine)
    if costs is None:
        out.say(f"{path}: on {machine.name} instead of {problem.topology.name}, latencies from the {chosen} model")
    with cost_warnings(out):
        return Problem(problem.graph, machine, get_cost_model(chosen)(problem.graph, machine))


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
    out: Output, path: Path, topology: Topology, shapes: list[str] | None, costs: str | None = None
) -> Problem:
    """The problem of a model file."""
    from ..cost_model import get_cost_model

    if costs is not None:
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
