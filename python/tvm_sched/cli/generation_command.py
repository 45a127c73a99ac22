"""The command ``generation``: prefill and decode of a language model as one problem."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvm_sched_runtime.errors import InputError

from .attached_commands import PLAN
from .inputs import JSON, OptionalCosts, OptionalTopology
from .model_options import COMPILE_OPTIONS, Shapes, load_problem
from .option_groups import FromApi
from .output import Output
from .registration import app, command
from .schedule_commands import write_problem

if TYPE_CHECKING:
    from tvm_sched_runtime.problem import Problem

    from ..problem_sources import SourceOptions

Sources = Annotated[
    list[Path],
    typer.Argument(
        metavar="MODEL|PREFILL DECODE",
        help="A language model by name or config.json; or two problem files (.json), of the prefill and of a decode step.",
    ),
]


@dataclass(frozen=True)
class PhaseOptions:
    """The decode steps, the devices of both phases, and the tensors that the prefill hands on."""

    steps: Annotated[int, typer.Option("--steps", metavar="N", help="Tokens after the first, a decode step each.")] = 1
    prefill_on: Annotated[
        str | None,
        typer.Option(
            "--prefill-on", metavar="DEVICES", help="Devices that may compute the prefill, with commas between."
        ),
    ] = None
    decode_on: Annotated[
        str | None,
        typer.Option(
            "--decode-on",
            metavar="DEVICES",
            help="Devices that may compute the decode steps; the cache is copied to them. Default: all.",
        ),
    ] = None
    carry: Annotated[
        list[str] | None,
        typer.Option(
            "--carry",
            metavar="OUTPUT=TENSOR",
            help="An output of the prefill that the decode takes as this input or parameter; may be repeated. Default: by "
            "shapes and types, in order.",
        ),
    ] = None


@command(app, "generation", ".report.summaries:ProblemSummary", panel=PLAN, apart=True)
def generation(
    out: Output,
    *,
    sources: Sources,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.json", help="Where to write the problem."), JSON
    ],
    topology: OptionalTopology = None,
    shape: Shapes = None,
    phases: PhaseOptions,
    costs: OptionalCosts = None,
    offered: Annotated[dict[str, Any], FromApi(COMPILE_OPTIONS, ("variants",))],
) -> None:
    """Write the problem of a prefill and the decode steps that follow it: parameters and the cache stay where they are.

    Every command takes it as any other problem. `schedule` says when each part ends: the prefill's end is the time to the
    first token, what the last step takes the time of each further one.

    $ tvm-sched generation gpt2-large --shape 1x512 -t v100-server --steps 8 -o generation.json
    $ tvm-sched generation prefill.json decode.json --steps 4 --decode-on gpu2,gpu3 -o generation.json
    $ tvm-sched schedule generation.json --time-limit 30 --report report.html
    """
    from tvm_sched_runtime.problem import generation_problem

    from ..problem_sources import SourceOptions, device_names, parse_carried

    model_options = SourceOptions(shape=shape, costs=costs, **offered)
    prefill, decode = _phases(out, sources, topology, model_options)
    problem = generation_problem(
        prefill,
        decode,
        phases.steps,
        parse_carried(phases.carry),
        device_names("--prefill-on", phases.prefill_on),
        device_names("--decode-on", phases.decode_on),
    )
    write_problem(out, problem, output)


def _phases(out: Output, sources: list[Path], topology: str | None, options: SourceOptions) -> tuple[Problem, Problem]:
    """Make the problems of the two phases from two files or from one language model."""
    from ..problem_sources import decoder_config

    if len(sources) == 1 and decoder_config(sources[0]) is not None:
        return (
            load_problem(out, sources, topology, replace(options, phase="prefill")),
            load_problem(out, sources, topology, replace(options, phase="decode")),
        )
    if len(sources) != 2:
        raise InputError(
            "generation takes a language model by name or config.json, or two problem files, the prefill's and the decode's "
            f"(`tvm-sched problem`); {len(sources)} are there: {', '.join(map(str, sources))}"
        )
    first, second = (load_problem(out, [source], topology, options) for source in sources)
    return first, second
