"""Options of commands that read models: ``--shape``, ``--constant``, ``--resident``, and the making of problems."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.input_shapes import ShapeSet, parse_constants, parse_shapes

from .inputs import OptionalCosts
from .option_groups import FromApi
from .output import Output

if TYPE_CHECKING:
    from tvm_sched_runtime.problem import Problem

    from ..problem_sources import SourceOptions

Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME:DIMS|SYMBOL=SIZE|BATCHxTOKENS",
        help="Shape of an input, e.g. data:1,3,224,224; size of a symbol that the model declares, e.g. batch=8; or, of a "
        "language model, e.g. 1x32. `compile` takes sets, 'data:{1,8},3,224,224' or 'batch={1,8}': an artifact with a plan "
        "for each combination; and ranges, 'tokens=1..512': any of these sizes, on CPUs. `schedule` takes ranges on all "
        "devices. May be repeated.",
    ),
]
Constants = Annotated[
    list[str] | None,
    typer.Option(
        "--constant",
        metavar="NAME=VALUE",
        help="Freeze an input, e.g. sr=16000, size=224,224, flag=true, mask='[[1,0]]' or table=file.npy. May be repeated.",
    ),
]
ResidentParameters = Annotated[
    str | None,
    typer.Option(
        "--resident",
        metavar="PART|NAMES|@FILE",
        help="Parameters that remain on devices between runs: a fraction of their bytes, 0 to 1, comma-separated names, or "
        "a file with one a line.",
    ),
]
ResidentRequests = Annotated[
    str | None,
    typer.Option(
        "--resident",
        metavar="PART|NAMES|@FILE|PART:WEIGHT,...",
        help="Parameters that are on the devices when a run begins: a fraction of their bytes, 0 to 1, comma-separated "
        "names, or a file with one name per line. Several kinds of requests have weights: 0:1,1:9 is one cold, nine warm.",
    ),
]
COMPILE_OPTIONS = "tvm_sched.relax.options:CompileOptions"


def number_or_auto(option: str) -> Callable[[str], int | str]:
    """Return the function that reads a number from 1, or ``auto``, of an option."""

    def read(text: str) -> int | str:
        if text == "auto":
            return text
        if not (text.isascii() and text.isdecimal() and len(text) < 10) or int(text) < 1:
            raise InputError(f"{option} {text}: a number from 1, or auto, is allowed")
        return int(text)

    return read


RowParts = Annotated[
    str | None,
    typer.Option(
        "--row-parts",
        metavar="N|auto",
        help="Number of parts of the batch, or of the tokens of a single sequence, in which the whole model is computed; "
        "auto: of 1, 2, 4 and 8 the one with the fastest quick schedule. Default: 1.",
    ),
]
READ_ROW_PARTS = {"row_parts": number_or_auto("--row-parts")}
OfferedVariants = Annotated[
    dict[str, Any],
    FromApi(COMPILE_OPTIONS, ("variants", "rows", "row_parts"), {"row_parts": RowParts}, READ_ROW_PARTS),
]
_SOURCE = "tvm_sched.problem_sources:SourceOptions"
_OWN = {"shape": Shapes, "constant": Constants, "costs": OptionalCosts}
ModelOptions = Annotated[Any, FromApi(_SOURCE, ("shape", "constant", "phase", "costs"), _OWN, makes=True)]
RequestOptions = Annotated[
    Any,
    FromApi(
        _SOURCE, ("shape", "constant", "phase", "costs", "resident"), {**_OWN, "resident": ResidentRequests}, makes=True
    ),
]


@dataclass(frozen=True)
class ShapeOptions:
    """Shapes and values of a model's inputs."""

    shape: Shapes = None
    constant: Constants = None

    def sets(self) -> list[ShapeSet]:
        """Return the sets of shapes of ``--shape``."""
        return parse_shapes(self.shape)

    def constants(self) -> dict[str, Any]:
        """Return the values of frozen inputs."""
        return parse_constants(self.constant)


def resident_of(text: str | None) -> float | list[str] | None:
    """Return the fraction or the names in ``--resident`` of a command with one kind of runs."""
    from ..resident_texts import resident_of

    return resident_of(text)


def load_problem(out: Output, sources: Sequence[Path], topology: str | None, options: SourceOptions) -> Problem:
    """Make the problem of models and problem files on a machine; progress and warnings go to standard error."""
    from ..problem_sources import load_problem

    with out.step("Making the problem") as step, model_warnings(out):
        return load_problem(sources, topology, options, step)


@contextmanager
def model_warnings(out: Output) -> Iterator[None]:
    """Print warnings of the importers and of a cost model as plain messages, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        yield
    printed: set[str] = set()
    for warning in caught:
        text = str(warning.message)
        if warning.category.__name__ not in ("CostWarning", "ModelWarning", "EmulationWarning", "ProblemWarning"):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        elif text not in printed:
            printed.add(text)
            out.say(f"warning: {text}" if warning.category.__name__ == "CostWarning" else text)
