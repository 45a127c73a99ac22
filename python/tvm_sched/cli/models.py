"""Problems from the models and problem files that commands are given, and the options for that."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._library import without_torch
from ..errors import InputError
from ..input_shapes import ShapeSet, is_token_shape, one_shape, parse_shapes, token_shapes
from ..late_import import import_when_used
from .inputs import OptionalCosts, is_problem
from .option_groups import FromApi
from .output import Output
from .residency import ResidentRequests, requests_from
from .shapes import ShapeOptions

if TYPE_CHECKING:
    from ..problem import DecoderConfig, Group, OpGraph, Problem, Request, Topology

COMPILE_OPTIONS = "tvm_sched.relax.options:CompileOptions"
OfferedVariants = Annotated[dict[str, Any], FromApi(COMPILE_OPTIONS, ("variants", "rows"))]


@dataclass(frozen=True)
class ModelOptions(ShapeOptions):
    """Options for making a problem of models: their shapes, a phase, the cost model.

    ``variants``, ``rows`` and ``resident`` are not on the command line of each command; elsewhere they keep their defaults.
    """

    phase: Annotated[
        str,
        typer.Option(
            "--phase",
            metavar="full|prefill|decode",
            help="For language models by name or config.json: all tokens at once; the same, with keys and values kept; or "
            "one more token, with the keys and values of --shape's tokens as parameters.",
        ),
    ] = "full"
    costs: OptionalCosts = None
    variants: bool = True
    rows: bool | None = None
    resident: str | None = None

    @property
    def offers_rows(self) -> bool:
        """Whether parts by rows are offered also where only warm runs can gain."""
        return bool(self.resident) if self.rows is None else self.rows

    def requests(self, problem: Problem) -> tuple[Request, ...]:
        """The requests to schedule for; none where ``--resident`` is not given."""
        return requests_from(problem, self.resident)


@dataclass(frozen=True)
class RequestOptions(ModelOptions):
    """`ModelOptions`, and the requests to schedule for: what is on the devices when a run begins."""

    resident: ResidentRequests = None


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
    options: ModelOptions,
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
    named = [path for path in sources if path in configs or path.is_dir()]
    tokens = [text for text in options.shape or () if is_token_shape(text)]
    others = [text for text in options.shape or () if not is_token_shape(text)]
    given = one_shape(parse_shapes(others), "a problem has one")
    _check_options(options, sources, tokens if not named else [], others, bool(configs))
    sizes = iter(token_shapes(tokens, len(named)) if tokens or configs else [])
    problems = []
    for path in sources:
        config = configs.get(path)
        if config is not None:
            graph_of = partial(_decoder_graph, out, config, next(sizes), options)
            problems.append(_on_machine(out, path, topology, graph_of, options))
            continue
        own = dict(zip(("batch", "tokens"), next(sizes), strict=True)) if path in named and tokens else given
        problems.append(_load_file(out, path, topology, own, options))
    return merge_problems(problems)


def _check_options(
    options: ModelOptions, sources: Sequence[Path], misplaced: list[str], named_shapes: list[str], configs: bool
) -> None:
    """Refuse options that fit no source; ``misplaced`` are BATCHxTOKENS where no source is a language model."""
    if misplaced:
        raise InputError(
            f"--shape {misplaced[0]} is for language models given by name, config.json or folder; for a model file give "
            "NAME:DIMS or SYMBOL=SIZE"
        )
    if options.phase != "full" and not configs:
        raise InputError("--phase is for language models given by name or config.json")
    if options.rows and not options.variants:
        raise InputError("--rows offers more variants, and --no-variants none; one of them is allowed")
    for option, given in ((f"--shape {next(iter(named_shapes), '')}", named_shapes), ("--constant", options.constant)):
        if given and len(sources) > 1:
            raise InputError(
                f"{option} is for one model; make a problem file of each model first (`tvm-sched problem`)"
            )


def _decoder_graph(
    out: Output, config: DecoderConfig, shape: tuple[int, int], options: ModelOptions, machine: Topology
) -> tuple[OpGraph, tuple[Group, ...]]:
    with out.step(f"Making {config.name}"):
        from ..cost_model.occupancy_model import BY_LAUNCHES
        from ..relax.decoders import decoder_variants
        from ..relax.variants.offer_variants import pieces_for

        gpus = machine if options.costs in BY_LAUNCHES else None
        return decoder_variants(
            config, *shape, phase=options.phase, pieces=pieces_for(machine), rows=options.offers_rows, gpus=gpus
        )


def _on_machine(
    out: Output,
    path: Path,
    topology: str | None,
    graph_of: Callable[[Topology], tuple[OpGraph, tuple[Group, ...]]],
    options: ModelOptions,
) -> Problem:
    from ..cost_model import default_cost_model, get_cost_model
    from ..problem import problem_of

    machine = _machine_for(path, topology)
    cost_model = get_cost_model(options.costs or default_cost_model(machine))
    graph, groups = graph_of(machine)
    with model_warnings(out):
        return problem_of(graph, groups if options.variants and len(machine.devices) > 1 else (), machine, cost_model)


def _machine_for(path: Path, topology: str | None) -> Topology:
    from ..problem import load_topology

    if topology is None:
        raise InputError(
            f"{path} is a model, so it needs a machine: --topology NAME|FILE (see `tvm-sched topology list`)"
        )
    return load_topology(topology)


def _load_file(
    out: Output, path: Path, topology: str | None, shapes: ShapeSet | None, options: ModelOptions
) -> Problem:
    """The problem of a model file, or a problem file."""
    from ..problem import Problem, load_topology, problem_of

    if not is_problem(path):
        if not path.exists():
            from ..problem.decoder_config import PRESETS

            raise InputError(f"{path}: no such file, nor one of the language models {', '.join(PRESETS)}")
        return _import(out, path, _machine_for(path, topology), shapes, options)
    if shapes or options.constant:
        option = "--shape" if shapes else "--constant"
        raise InputError(f"{path} is a problem file, whose shapes are fixed: {option} is for models")
    if options.rows:
        raise InputError(f"{path} is a problem file, which has its variants: --rows is for models")
    problem = Problem.load(path)
    if not options.variants:
        problem = problem.resolve({})
    if topology is None and options.costs is None:
        return problem
    machine = problem.topology if topology is None else load_topology(topology)
    from ..cost_model import default_cost_model, get_cost_model

    chosen = options.costs or default_cost_model(machine)
    if options.costs is None:
        out.say(f"{path}: on {machine.name} instead of {problem.topology.name}, latencies from the {chosen} model")
    with model_warnings(out):
        groups = problem.variants.groups if problem.variants else ()
        return problem_of(problem.graph, groups, machine, get_cost_model(chosen))


def _import(out: Output, path: Path, topology: Topology, shapes: ShapeSet | None, options: ModelOptions) -> Problem:
    """The problem of a model file."""
    from ..cost_model import get_cost_model

    constants = options.constants()
    if options.costs is not None:
        get_cost_model(options.costs)  # report a wrong name before the long work
    with out.step(f"Importing {path.name}"), model_warnings(out):
        with packages_for(path):
            from ..relax import make_problem

        return make_problem(
            path, topology, input_shapes=shapes, constants=constants, cost_model=options.costs,
            variants=options.variants, rows=options.offers_rows,
        )  # fmt: skip


def packages_for(model: Path) -> AbstractContextManager[None]:
    """Within it, tvm is imported without PyTorch, which takes seconds, unless the model is one of PyTorch's.

    For other models sympy is imported when it is first used: onnx_ir imports it for arithmetic on symbols in shapes, which
    few models have, and so does the module of it that reads such arithmetic.
    """
    if model.is_dir() or model.suffix.lower() in (".pt2", ".py"):
        return nullcontext()
    import_when_used("sympy", "onnx_ir._symbolic_shapes")
    return without_torch()


@contextmanager
def model_warnings(out: Output) -> Iterator[None]:
    """Print warnings of the importers and of a cost model as plain messages, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        yield
    said: set[str] = set()
    for warning in caught:
        text = str(warning.message)
        if warning.category.__name__ not in ("CostWarning", "ModelWarning", "EmulationWarning"):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        elif text not in said:
            said.add(text)
            out.say(f"warning: {text}" if warning.category.__name__ == "CostWarning" else text)
