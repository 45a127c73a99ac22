"""The command ``generation``: prefill and decode of a language model as one problem."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InputError
from .inputs import JSON, OptionalCosts, OptionalTopology
from .models import COMPILE_OPTIONS, ModelOptions, decoder_config, load_problem
from .option_groups import FromApi
from .output import Output
from .schedule import write_problem
from .shapes import Shapes

if TYPE_CHECKING:
    from ..problem import Problem

Sources = Annotated[
    list[Path],
    typer.Argument(
        metavar="MODEL|PREFILL DECODE",
        help="A language model by name or config.json; or two problem files (.json), of the prefill and of a decode step.",
    ),
]


def generation(
    out: Output,
    *,
    sources: Sources,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.json", help="Where to write the problem."), JSON
    ],
    topology: OptionalTopology = None,
    shape: Shapes = None,
    steps: Annotated[int, typer.Option("--steps", metavar="N", help="Tokens after the first, a decode step each.")] = 1,
    prefill_on: Annotated[
        str | None,
        typer.Option(
            "--prefill-on", metavar="DEVICES", help="Devices that may compute the prefill, with commas between."
        ),
    ] = None,
    decode_on: Annotated[
        str | None,
        typer.Option(
            "--decode-on",
            metavar="DEVICES",
            help="Devices that may compute the decode steps; the cache is copied to them. Default: all.",
        ),
    ] = None,
    carry: Annotated[
        list[str] | None,
        typer.Option(
            "--carry",
            metavar="OUTPUT=TENSOR",
            help="An output of the prefill that the decode takes as this input or parameter; may be repeated. Default: by "
            "shapes and types, in order.",
        ),
    ] = None,
    costs: OptionalCosts = None,
    offered: Annotated[dict[str, Any], FromApi(COMPILE_OPTIONS, ("variants",))],
) -> None:
    """Write the problem of a prefill and the decode steps that follow it: parameters and the cache stay where they are.

    Every command takes it as any other problem. `schedule` says when each part ends: the prefill's end is the time to the
    first token, what the last step takes the time of each further one.
    """
    from ..problem import generation_problem

    given = ModelOptions(shape=shape, costs=costs, **offered)
    prefill, decode = _phases(out, sources, topology, given)
    made = generation_problem(
        prefill, decode, steps, _carried(carry), _names("--prefill-on", prefill_on), _names("--decode-on", decode_on)
    )
    write_problem(out, made, output)


def _phases(out: Output, sources: list[Path], topology: str | None, options: ModelOptions) -> tuple[Problem, Problem]:
    """The problems of the two phases: of two files, or of a language model."""
    if len(sources) == 1 and decoder_config(sources[0]) is not None:
        return (
            load_problem(out, sources, topology, replace(options, phase="prefill")),
            load_problem(out, sources, topology, replace(options, phase="decode")),
        )
    if len(sources) != 2:
        raise InputError(
            "generation takes a language model by name or config.json, or two problem files, the prefill's and the decode's "
            f"(`tvm-sched problem`); {len(sources)} given: {', '.join(map(str, sources))}"
        )
    first, second = (load_problem(out, [source], topology, options) for source in sources)
    return first, second


def _carried(texts: list[str] | None) -> dict[str, str] | None:
    """Outputs of the prefill by tensors of the decode."""
    if not texts:
        return None
    found: dict[str, str] = {}
    for text in texts:
        output, mark, tensor = text.partition("=")
        if not (mark and output and tensor):
            raise InputError(f"--carry {text}: expected OUTPUT=TENSOR")
        if tensor in found:
            raise InputError(f"--carry {text}: {tensor} stands for {found[tensor]} already")
        found[tensor] = output
    return found


def _names(option: str, text: str | None) -> list[str]:
    names = [name.strip() for name in text.split(",")] if text is not None else []
    if not all(names):
        raise InputError(f"{option} {text}: a name is empty; expected names of devices with one comma between")
    return names
