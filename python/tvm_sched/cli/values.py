"""Read and write values of inputs and outputs in the commands that run a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from .inputs import check_directory
from .output import Output

InputValues = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="NAME=FILE.npy|FILE.npz",
        help="Value of an input, or of several. May be repeated; others are random.",
    ),
]
InputSeed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the random inputs.")]
OutputFolder = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="Write the (last) outputs there, as output_0.npy, ..."),
]


def read_values(texts: list[str] | None, seed: int, output: Path | None) -> dict[str, Any]:
    """Arrays of ``--input`` texts; refuses a wrong seed, and a folder for outputs that cannot be made or written."""
    if seed < 0:
        raise InputError(f"--seed {seed}: 0 or more is allowed")
    if output is not None:
        _check_output_directory(output)
    from ..runtime.values import read_inputs

    return read_inputs(texts or ())


def _check_output_directory(output: Path) -> None:
    """Refuse a folder that cannot be made or written."""
    if output.exists() and not output.is_dir():
        raise InputError(f"--output {output}: that is a file; a directory is expected")
    check_directory("--output", output if output.is_dir() else output.absolute().parent)


def save_outputs(out: Output, directory: Path | None, outputs: list[Any]) -> None:
    """Write the outputs as ``output_0.npy``, ..., and say so; makes the folder."""
    if directory is None:
        return
    from ..runtime import values

    values.save_outputs(directory, outputs)
    out.wrote(directory, f"{len(outputs)} outputs")
