"""Problems from the models and problem files that commands are given, and the options for that."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .._library import without_torch
from ..errors import InputError
from ..late_import import import_when_used
from .inputs import OptionalCosts, is_problem, load_topology
from .output import Output
from .residency import ResidentRequests, requests_from
from .shapes import ShapeOptions, ShapeSet, one_shape, parse_shapes, parse_token_sizes

if TYPE_CHECKING:
    from ..problem import DecoderConfig, Group, OpGraph, Problem, Request, Topology

Variants = Annotated[
    bool,
    typer.Option(
        "--variants/--no-variants",
        help="Offer the scheduler several ways to compute operators: fused kernels with their ends apart, products and "
        "convolutions in pieces, blocks tensor-parallel or by rows. Schedulers that do not choose take the fused kernels.",
    ),
]
Rows = Annotated[
    bool | None,
    typer.Option(
        "--rows/--no-rows",
        help="Offer parts by rows (of the batch, of tokens, of a picture), each of which needs all weights, also where only "
        "runs with parameters on the devices can gain. Default: with --resident.",
    ),
]


@dataclass(frozen=True)
class ModelOptions(ShapeOptions):
    """Options for making a problem of models: their shapes, a phase, and the cost model.

    ``variants``, ``rows`` and ``resident`` are options in the subclasses below; commands that take this class use defaults.
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


@dataclass(frozen=True)
class ProblemOptions(ModelOptions):
    """`ModelOptions`, and the ways in which operators can be computed."""

    variants: Variants = True
    rows: Rows = None


@dataclass(frozen=True)
class RequestOptions(ProblemOptions):
    """`ProblemOptions`, and the requests to schedule for: what is on the devices when a run begins."""

    resident: ResidentRequests = None

    def requests(self, problem: Problem) -> tuple[Request, ...]:
        """The requests to schedule for; none where ``--resident`` is not given."""
        return requests_from(problem, self.resident)


def token_shapes(texts: Sequence[str] | None, count: int) -> list[tuple[int, int]]:
    """``1x32`` texts as (batch, tokens), one for each of ``count`` models; a single text is for all of them."""
    shapes = []
    for text, sizes in zip(texts or (), parse_token_sizes(texts), strict=True):
        batch, tokens = sizes["batch"], sizes["tokens"]
        if not isinstance(batch, int) or not isinstance(tokens, int):
            raise InputError(f"--shape {text}: a set of sizes; a problem has one shape, only `compile` takes several")
        shapes.append((batch, tokens))
    if len(shapes) not in (1, count):
        raise InputError(
            f"--shape stands {len(shapes)} times for {count} language models given by name, config.json or folder; "
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
    _check_options(options, sources, named, bool(configs))
    sizes = iter(token_shapes(options.shape, len(named)) if options.shape or configs else [])
    problems = []
    for path in sources:
        config = configs.get(path)
        if config is not None:
            graph_of = partial(_decoder_graph, out, config, next(sizes), options)
            problems.append(_on_machine(out, path, topology, graph_of, options))
            continue
        given = one_shape(parse_shapes(options.input_shape), "a problem has one")
        if path in named and options.shape:
            given = dict(zip(("batch", "tokens"), next(sizes), strict=True))
        problems.append(_load_file(out, path, topology, given, options))
    return merge_problems(problems)


def _check_options(options: ModelOptions, sources: Sequence[Path], named: Sequence[Path], configs: bool) -> None:
    if options.shape and not named:
        raise InputError(
            "--shape is for language models given by name, config.json or folder; --input-shape is for model files"
        )
    if options.phase != "full" and not configs:
        raise InputError("--phase is for language models given by name or config.json")
    if options.rows and not options.variants:
        raise InputError("--rows offers more variants, and --no-variants none; one of them is allowed")
    for option, given in (("--input-shape", options.input_shape), ("--constant", options.constant)):
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
    if topology is None:
        raise InputError(
            f"{path} is a model, so it needs a machine: --topology NAME|FILE (see `tvm-sched topology list`)"
        )
    return load_topology(topology)


def _load_file(
    out: Output, path: Path, topology: str | None, shapes: ShapeSet | None, options: ModelOptions
) -> Problem:
    """The problem of a model file, or a problem file."""
    from ..problem import Problem, problem_of

    if not is_problem(path):
        if not path.exists():
            from ..problem.decoder_config import PRESETS

            raise InputError(f"{path}: no such file, nor one of the language models {', '.join(PRESETS)}")
        return _import(out, path, _machine_for(path, topology), shapes, options)
    if shapes or options.constant:
        option = "--input-shape" if shapes else "--constant"
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
    """Within it, tvm is imported without PyTorch, which takes seconds, where the model is nothing of PyTorch's.

    For such a model sympy is imported when it is first used: the package onnx_ir imports it for arithmetic on symbols in
    shapes, which few models have, and so does the module of it that reads such arithmetic.
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
