"""Make one problem of models and problem files that run at once, on a machine, with a cost model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import msgspec

from tvm_sched_runtime.checks import require_number_or_auto
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.files import UNREADABLE
from tvm_sched_runtime.input_shapes import (
    ShapeSet,
    is_token_shape,
    one_shape,
    parse_constants,
    parse_shapes,
    token_shapes,
)
from tvm_sched_runtime.problem import (
    DecoderConfig,
    Group,
    OpGraph,
    Problem,
    Request,
    Topology,
    load_topology,
    merge_problems,
    problem_of,
)
from tvm_sched_runtime.problem.decoder_config import PRESETS
from tvm_sched_runtime.problem.decoder_config_file import is_config, read_config
from tvm_sched_runtime.schedule import requests_of
from tvm_sched_runtime.startup import import_when_used, without_torch

from .cost_model import CostModel, default_cost_model, get_cost_model
from .cost_model.calibrated_model import NAME as CALIBRATED
from .cost_model.calibrated_model import is_of_this_machine
from .progress import Progress
from .resident_texts import parse_requests


class ProblemWarning(UserWarning):
    """A problem file has new latencies, since it is used for another machine."""


@dataclass(frozen=True)
class SourceOptions:
    """Options for making a problem of models and problem files.

    Parameters
    ----------
    shape : list of str, optional
        See `input_shapes`.
    constant : list of str, optional
        Frozen inputs as ``NAME=VALUE``.
    phase : {"full", "prefill", "decode"}
        For language models by name or config.json: all tokens at once; the same, and return keys and values; or one more
        token, with the keys and values of --shape's tokens as parameters.
    costs : str, optional
        Cost model, or a file of latencies.
    variants, rows, row_parts
        As in `CompileOptions`.
    resident : str, optional
        Parameters that are on the devices when a run begins, see `resident_texts`.
    """

    shape: list[str] | None = None
    constant: list[str] | None = None
    phase: str = "full"
    costs: str | None = None
    variants: bool = True
    rows: bool | None = None
    row_parts: int | Literal["auto"] = 1
    resident: str | None = None

    def __post_init__(self) -> None:
        require_number_or_auto("row_parts", self.row_parts)

    def one_shape(self, why: str) -> ShapeSet | None:
        """Return the only set of shapes; if there are several, the error gives the reason ``why``."""
        return one_shape(parse_shapes(self.shape), why)

    def constants(self) -> dict[str, Any]:
        """Return the values of frozen inputs."""
        return parse_constants(self.constant)

    @property
    def offers_rows(self) -> bool:
        """Whether splits by rows are offered even if only warm runs can gain."""
        return bool(self.resident) if self.rows is None else self.rows

    def requests(self, problem: Problem) -> tuple[Request, ...]:
        """Return the requests to schedule for; none without ``resident``."""
        return () if self.resident is None else requests_of(problem, parse_requests(self.resident))


def is_problem(path: Path) -> bool:
    """Return whether a file is a problem file: JSON, even if damaged, but not a Relax module saved as JSON."""
    if path.suffix.lower() != ".json" or not path.is_file():
        return False
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Head).root_index is None
    except UNREADABLE:
        return True
    except OSError:
        return False


class _Head(msgspec.Struct):
    """Field of a graph of objects by ``tvm.ir.save_json``."""

    root_index: Any = None


def decoder_config(path: Path) -> DecoderConfig | None:
    """Return the language model of a name or a ``config.json``; None for other files."""
    if path.is_file():
        return read_config(path) if is_config(path) else None
    return PRESETS.get(str(path))


def load_problem(
    sources: Sequence[Path], topology: Topology | str | None, options: SourceOptions, progress: Progress
) -> Problem:
    """Make the problem of models and problem files on a machine; several of them run at once (`merge_problems`).

    Topology and costs beside a problem file replace its own.

    Raises
    ------
    InputError
        A model has no topology, a source takes no shapes, or it cannot be read.
    """
    configs = {path: config for path in sources if (config := decoder_config(path)) is not None}
    named = [path for path in sources if path in configs or path.is_dir()]
    tokens = [text for text in options.shape or () if is_token_shape(text)]
    others = [text for text in options.shape or () if not is_token_shape(text)]
    shapes = one_shape(parse_shapes(others), "a problem has one")
    _check_options(options, sources, tokens if not named else [], others, bool(configs))
    sizes = iter(token_shapes(tokens, len(named)) if tokens or configs else [])
    problems = []
    for path in sources:
        config = configs.get(path)
        if config is not None:
            graph_of = partial(_decoder_graph, config, next(sizes), options, progress)
            problems.append(_on_machine(path, topology, graph_of, options, progress))
            continue
        own: ShapeSet | None = shapes
        if path in named and tokens:
            own = dict(zip(("batch", "tokens"), next(sizes), strict=True))
        problems.append(_load_file(path, topology, own, options, progress))
    return merge_problems(problems)


def problems_of_range(
    sources: Sequence[Path],
    topology: Topology | str | None,
    options: SourceOptions,
    limits: Mapping[str, tuple[int, int]],
) -> Callable[[Mapping[str, int]], Problem] | None:
    """Return what makes the problem of a model at sizes within ``limits``; None: `load_problem` makes it for each size."""
    path, *others = sources
    if others or is_problem(path) or path.is_dir() or decoder_config(path) is not None or not path.exists():
        return None
    if len(options.shape or ()) != len(limits) or options.rows or options.row_parts != 1:
        return None
    with packages_for(path):
        from .relax.api import range_problems

    return range_problems(path, _machine_for(path, topology), limits, options.constants(), cost_model=options.costs)


def _check_options(
    options: SourceOptions, sources: Sequence[Path], misplaced: list[str], named_shapes: list[str], configs: bool
) -> None:
    """Refuse options that fit no source; ``misplaced`` are BATCHxTOKENS without a language model."""
    if misplaced:
        raise InputError(
            f"--shape {misplaced[0]} is for language models by name, config.json or folder; for a model file give "
            "NAME:DIMS or SYMBOL=SIZE"
        )
    if options.phase != "full" and not configs:
        raise InputError("--phase is for language models by name or config.json")
    if options.rows and not options.variants:
        raise InputError("--rows offers more variants, and --no-variants none; one of them is allowed")
    for option, texts in ((f"--shape {next(iter(named_shapes), '')}", named_shapes), ("--constant", options.constant)):
        if texts and len(sources) > 1:
            raise InputError(
                f"{option} is for one model; make a problem file of each model first (`tvm-sched problem`)"
            )


def _decoder_graph(
    config: DecoderConfig,
    shape: tuple[int, int],
    options: SourceOptions,
    progress: Progress,
    machine: Topology,
    row_parts: int,
) -> tuple[OpGraph, tuple[Group, ...]]:
    progress(f"making {config.name}", 0, 0)
    from .cost_model.occupancy_model import BY_LAUNCHES
    from .relax.decoders import decoder_variants
    from .relax.variants.offer_variants import pieces_for

    gpus = machine if options.costs in BY_LAUNCHES else None
    return decoder_variants(
        config,
        *shape,
        phase=options.phase,
        pieces=pieces_for(machine),
        rows=options.offers_rows,
        row_parts=row_parts,
        gpus=gpus,
    )


def _on_machine(
    path: Path,
    topology: Topology | str | None,
    graph_of: Callable[[Topology, int], tuple[OpGraph, tuple[Group, ...]]],
    options: SourceOptions,
    progress: Progress,
) -> Problem:
    machine = _machine_for(path, topology)
    cost_model = _cost_model(options.costs or default_cost_model(machine), machine, progress)
    offers = options.variants and len(machine.devices) > 1

    def in_parts(parts: int) -> Problem:
        graph, groups = graph_of(machine, parts)
        return problem_of(graph, groups if offers else (), machine, cost_model, joinable=True)

    if options.row_parts != "auto":
        return in_parts(options.row_parts)
    from .relax.variants.choose_row_parts import with_best_parts

    return with_best_parts(in_parts, lambda made: made, len(machine.devices), options.requests, progress)


def _machine_for(path: Path, topology: Topology | str | None) -> Topology:
    if isinstance(topology, Topology):
        return topology
    if topology is None:
        raise InputError(
            f"{path} is a model, so it needs a machine: --topology NAME|FILE (see `tvm-sched topology list`)"
        )
    return load_topology(topology)


def _load_file(
    path: Path, topology: Topology | str | None, shapes: ShapeSet | None, options: SourceOptions, progress: Progress
) -> Problem:
    """Load the problem of a model file, or a problem file."""
    if not is_problem(path):
        if not path.exists():
            raise InputError(f"{path}: no such file, nor one of the language models {', '.join(PRESETS)}")
        return _import(path, _machine_for(path, topology), shapes, options, progress)
    if shapes or options.constant:
        option = "--shape" if shapes else "--constant"
        raise InputError(f"{path} is a problem file, whose shapes are fixed: {option} is for models")
    if options.rows:
        raise InputError(f"{path} is a problem file, which has its variants: --rows is for models")
    if options.row_parts != 1:
        raise InputError(f"{path} is a problem file, whose operators are fixed: --row-parts is for models")
    problem = Problem.load(path)
    if not options.variants:
        problem = problem.resolve({})
    if topology is None and options.costs is None:
        return problem
    machine = problem.topology if topology is None else _machine_for(path, topology)
    chosen = options.costs or default_cost_model(machine)
    if options.costs is None:
        text = f"{path}: on {machine.name} instead of {problem.topology.name}, latencies from the {chosen} model"
        warnings.warn(text, ProblemWarning, stacklevel=2)
    return on_machine(problem, machine, chosen, progress)


def on_machine(problem: Problem, machine: Topology, costs: str, progress: Progress) -> Problem:
    """Return a problem's graph and variants on another machine, with latencies by a cost model or a file of them."""
    groups = problem.variants.groups if problem.variants else ()
    return problem_of(problem.graph, groups, machine, _cost_model(costs, machine, progress), problem.joinable)


def _cost_model(name: str, machine: Topology, progress: Progress) -> CostModel:
    """Return the cost model for a graph without kernels; `calibrated` measures typical layers at a processor's first use."""
    model = get_cost_model(name)
    if name == CALIBRATED and is_of_this_machine(machine) and find_spec("tvm"):
        from .relax.first_use import calibrate_once

        calibrate_once(machine, progress)
    return model


def _import(
    path: Path, topology: Topology, shapes: ShapeSet | None, options: SourceOptions, progress: Progress
) -> Problem:
    """Import a model file as a problem."""
    constants = options.constants()
    if options.costs is not None:
        get_cost_model(options.costs)  # report a wrong name before the long work
    progress(f"importing {path.name}", 0, 0)
    with packages_for(path):
        from .relax import make_problem

    return make_problem(
        path, topology, input_shapes=shapes, constants=constants, cost_model=options.costs, variants=options.variants,
        rows=options.offers_rows, row_parts=options.row_parts,
    )  # fmt: skip


def packages_for(model: Path) -> AbstractContextManager[None]:
    """Return a context that imports tvm without PyTorch, which takes seconds, unless the model is one of PyTorch's.

    For other models sympy is imported at its first use: onnx_ir needs it for symbolic shapes alone.
    """
    if model.is_dir() or model.suffix.lower() in (".pt2", ".py"):
        return nullcontext()
    import_when_used("sympy", "onnx_ir._symbolic_shapes")
    return without_torch()


def parse_carried(texts: list[str] | None) -> dict[str, str] | None:
    """Read ``OUTPUT=TENSOR`` texts: outputs of the prefill by tensors of the decode."""
    if not texts:
        return None
    carried: dict[str, str] = {}
    for text in texts:
        output, mark, tensor = text.partition("=")
        if not (mark and output and tensor):
            raise InputError(f"--carry {text}: expected OUTPUT=TENSOR")
        if tensor in carried:
            raise InputError(f"--carry {text}: {tensor} stands for {carried[tensor]} already")
        carried[tensor] = output
    return carried


def device_names(option: str, text: str | None) -> list[str]:
    """Read names of devices with commas between."""
    names = [name.strip() for name in text.split(",")] if text is not None else []
    if not all(names):
        raise InputError(f"{option} {text}: a name is empty; expected names of devices with one comma between")
    return names
