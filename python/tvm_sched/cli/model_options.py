"""The options that make a problem of models and problem files."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from .inputs import OptionalCosts
from .option_groups import FromApi
from .output import Output
from .resident_option import ResidentRequests
from .shape_options import Constants, Shapes

if TYPE_CHECKING:
    from ..problem import Problem
    from ..problem_sources import SourceOptions

COMPILE_OPTIONS = "tvm_sched.relax.options:CompileOptions"
OfferedVariants = Annotated[dict[str, Any], FromApi(COMPILE_OPTIONS, ("variants", "rows"))]
_SOURCE = "tvm_sched.problem_sources:SourceOptions"
_OWN = {"shape": Shapes, "constant": Constants, "costs": OptionalCosts}
ModelOptions = Annotated[Any, FromApi(_SOURCE, ("shape", "constant", "phase", "costs"), _OWN, makes=True)]
RequestOptions = Annotated[
    Any,
    FromApi(
        _SOURCE, ("shape", "constant", "phase", "costs", "resident"), {**_OWN, "resident": ResidentRequests}, makes=True
    ),
]


def load_problem(out: Output, sources: Sequence[Path], topology: str | None, options: SourceOptions) -> Problem:
    """The problem of models and problem files on a machine, with progress and warnings on standard error."""
    from ..problem_sources import load_problem

    with out.step("Making the problem") as step, model_warnings(out):
        return load_problem(sources, topology, options, step)


@contextmanager
def model_warnings(out: Output) -> Iterator[None]:
    """Print warnings of the importers and of a cost model as plain messages, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        yield
    said: set[str] = set()
    for warning in caught:
        text = str(warning.message)
        if warning.category.__name__ not in ("CostWarning", "ModelWarning", "EmulationWarning", "ProblemWarning"):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        elif text not in said:
            said.add(text)
            out.say(f"warning: {text}" if warning.category.__name__ == "CostWarning" else text)
