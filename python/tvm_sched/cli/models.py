"""What commands make of the models that they are given: problems on a machine."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._library import without_torch
from ..errors import InputError
from ..late_import import import_when_used
from .inputs import is_problem, load_topology
from .output import Output
from .shapes import ShapeSet, one_shape, parse_constants, parse_shapes, parse_token_sizes

if TYPE_CHECKING:
    from ..problem import DecoderConfig, Group, OpGraph, Problem, Topology


@dataclass(frozen=True)
class ModelOptions:
    """What is said of models: ``--input-shape``, ``--shape``, ``--constant``, ``--phase``, ``--variants`` and ``--rows``.

    ``resident``: whether parameters may be on the devices already, so that rows are offered, but for ``--no-rows``.
    """

    input_shape: list[str] | None = None
    shape: list[str] | None = None
    constant: list[str] | None = None
    phase: str = "full"
    variants: bool = True
    rows: bool | None = None
    resident: bool = False

    @property
    def offers_rows(self) -> bool:
        """Whether parts by rows are offered also where only warm runs can gain."""
        return self.resident if self.rows is None else self.rows

    def sets(self) -> list[ShapeSet]:
        """All shapes that are given, ``--shape`` as sizes of the symbols ``batch`` and ``tokens``."""
        if self.shape and self.input_shape:
            raise InputError(
                "--shape and --input-shape are given; one of them is allowed (batch=1 and tokens=128 are symbols)"
            )
        return parse_token_sizes(self.shape) if self.shape else parse_shapes(self.input_shape)

    def constants(self) -> dict[str, Any]:
        """The values of frozen inputs."""
        return parse_constants(self.constant)


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
    options: ModelOptions | None = None,
    costs: str | None = None,
) -> Problem:
    """The problem of models and problem files on a machine; several of them run at once (`merge_problems`).

    Topology and costs beside a problem file replace its own.

    Raises
    ------
    InputError
        A model without a topology, shapes for what has none, and all that reading can find wrong.
    """
    from ..cost_model.occupancy_model import BY_LAUNCHES
    from ..problem import merge_problems

    options = options or ModelOptions()
    configs = {path: config for path in sources if (config := decoder_config(path)) is not None}
    named = [path for path in sources if path in configs or path.is_dir()]
    _check_options(options, sources, named, bool(configs))
    sizes = iter(token_shapes(options.shape, len(named)) if options.shape or configs else [])
    problems = []
    for path in sources:
        config = configs.get(path)
        if config is not None:
            graph_of = partial(_decoder_graph, out, config, next(sizes), options, costs in BY_LAUNCHES)
            problems.append(_on_machine(out, path, topology, graph_of, costs, options.variants))
            continue
        given = one_shape(parse_shapes(options.input_shape), "a problem has one")
        if path in named and options.shape:
            given = dict(zip(("batch", "tokens"), next(sizes), strict=True))
        problems.append(_load_file(out, path, topology, given, options, costs))
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
    out: Output, config: DecoderConfig, shape: tuple[int, int], options: ModelOptions, demands: bool, machine: Topology
) -> tuple[OpGraph, tuple[Group, ...]]:
    with out.step(f"Making {config.name}"):
        from ..relax.decoders import decoder_variants
        from ..relax.variants import pieces_for

        gpus = machine if demands else None
        return decoder_variants(
            config, *shape, phase=options.phase, pieces=pieces_for(machine), rows=options.offers_rows, gpus=gpus
        )


def _on_machine(
    out: Output,
    path: Path,
    topology: str | None,
    graph_of: Callable[[Topology], tuple[OpGraph, tuple[Group, ...]]],
    costs: str | None,
    variants: bool,
) -> Problem:
    from ..cost_model import default_cost_model, get_cost_model
    from ..problem import problem_of

    machine = _machine_for(path, topology)
    cost_model = get_cost_model(costs or default_cost_model(machine))
    graph, groups = graph_of(machine)
    with model_warnings(out):
        return problem_of(graph, groups if variants and len(machine.devices) > 1 else (), machine, cost_model)


def _machine_for(path: Path, topology: str | None) -> Topology:
    if topology is None:
        raise InputError(
            f"{path} is a model, so it needs a machine: --topology NAME|FILE (see `tvm-sched topology list`)"
        )
    return load_topology(topology)


def _load_file(
    out: Output,
    path: Path,
    topology: str | None,
    shapes: ShapeSet | None,
    options: ModelOptions,
    costs: str | None,
) -> Problem:
    """The problem of a model file, or a problem file."""
    from ..problem import Problem, problem_of

    constants = options.constants()

    if not is_problem(path):
        if not path.exists():
            from ..problem.decoder_config import PRESETS

            raise InputError(f"{path}: no such file, nor one of the language models {', '.join(PRESETS)}")
        machine = _machine_for(path, topology)
        return import_problem(out, path, machine, shapes, constants, costs, options.variants, options.offers_rows)
    if shapes or constants:
        option = "--input-shape" if shapes else "--constant"
        raise InputError(f"{path} is a problem file, whose shapes are fixed: {option} is for models")
    if options.rows:
        raise InputError(f"{path} is a problem file, which has its variants: --rows is for models")
    problem = Problem.load(path)
    if not options.variants:
        problem = problem.resolve({})
    if topology is None and costs is None:
        return problem
    machine = problem.topology if topology is None else load_topology(topology)
    from ..cost_model import default_cost_model, get_cost_model

    chosen = costs or default_cost_model(machine)
    if costs is None:
        out.say(f"{path}: on {machine.name} instead of {problem.topology.name}, latencies from the {chosen} model")
    with model_warnings(out):
        groups = problem.variants.groups if problem.variants else ()
        return problem_of(problem.graph, groups, machine, get_cost_model(chosen))


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
    """Say what the importers and a cost model warn of, as plain messages, each once."""
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


def import_problem(
    out: Output,
    path: Path,
    topology: Topology,
    shapes: ShapeSet | None,
    constants: dict[str, Any],
    costs: str | None = None,
    variants: bool = True,
    rows: bool = False,
) -> Problem:
    """The problem of a model file."""
    from ..cost_model import get_cost_model

    if costs is not None:
        get_cost_model(costs)  # a wrong name is said before the long work
    with out.step(f"Importing {path.name}"), model_warnings(out):
        with packages_for(path):
            from ..relax import make_problem

        return make_problem(
            path, topology, input_shapes=shapes, constants=constants, cost_model=costs, variants=variants, rows=rows
        )
