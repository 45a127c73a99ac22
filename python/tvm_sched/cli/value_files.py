"""Read and write values of inputs and outputs in the commands that run a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tvm_sched_runtime.errors import InputError

from .inputs import Writes
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
    typer.Option("--output", "-o", metavar="FOLDER", help="Write the (last) outputs there, as output_0.npy, ..."),
    Writes(folder=True),
]


@dataclass(frozen=True)
class ValueOptions:
    """Values of a model's inputs, and the folder of its outputs."""

    input: InputValues = None
    seed: InputSeed = 0
    output: OutputFolder = None

    def read(self) -> dict[str, Any]:
        """Return the arrays of ``--input``; refuse a wrong seed."""
        if self.seed < 0:
            raise InputError(f"--seed {self.seed}: 0 or more is allowed")
        from tvm_sched_runtime.runtime.values import read_inputs

        return read_inputs(self.input or ())

    def save(self, out: Output, outputs: list[Any]) -> None:
        """Write the outputs as ``output_0.npy``, ...; make the folder if it is missing."""
        if self.output is None:
            return
        from tvm_sched_runtime.runtime.values import save_outputs

        save_outputs(self.output, outputs)
        out.wrote(self.output, f"{len(outputs)} outputs", "output")
