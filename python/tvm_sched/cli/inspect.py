"""The command `inspect`: what a model, problem or artifact is, before it is compiled or run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.markup import escape

from tvm_sched_runtime.errors import InputError

from .attached_commands import START
from .model_options import ShapeOptions
from .output import Output
from .registration import app, command

Backend = Literal["cpu", "cuda"]


@command(app, "inspect", ".relax.inspection:Inspection", panel=START, apart=True)
def inspect(
    out: Output,
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL|PROBLEM|ARTIFACT",
            help="Model: .onnx, .pt2, .json or .py, a folder of Hugging Face or ONNX Runtime GenAI; a problem file (.json); "
            "or an artifact (.so).",
        ),
    ],
    shapes: ShapeOptions,
    backend: Annotated[
        Backend,
        typer.Option(help="cuda: also look whether GPUs have a kernel for each operator, and which run on one thread."),
    ] = "cpu",
) -> None:
    """Describe inputs, outputs and operators of a model, and what would be refused, without compiling it.

    If dimensions are open, only its operators are looked up; with --shape or --constant it is imported as by `compile`.

    $ tvm-sched inspect model.onnx
    $ tvm-sched inspect bert.onnx --shape batch=1 --shape tokens=128 --json
    $ tvm-sched inspect model.onnx --backend cuda
    $ tvm-sched inspect model.so
    """
    from ..problem_sources import decoder_config, is_problem

    sets, constants = shapes.sets(), shapes.constants()
    is_artifact = model.suffix == ".so"
    if is_artifact or (is_problem(model) and decoder_config(model) is None):
        if sets or constants:
            kind = "an artifact" if is_artifact else "a problem file"
            raise InputError(f"{model} is {kind}, whose shapes are fixed: --shape and --constant are for models")
        from ..report.contents import inspect_artifact, inspect_problem

        inspection = inspect_artifact(model) if is_artifact else inspect_problem(model)
    else:
        with out.step(f"Inspecting {model.name}"):
            from ..relax.inspection import inspect_model

            inspection = inspect_model(model, sets[0] if sets else None, constants, backend=backend)
    from ..report.contents import inspection_tables, verdict

    for note in inspection.notes:
        out.say(note)
    out.show(*inspection_tables(inspection), *map(escape, verdict(inspection)))
    out.result(inspection)
