"""The command `schema`: JSON Schemas of what commands print with ``--json``."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import InputError
from .output import Output


def schema(
    out: Output,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]", help="Such as `run` or `topology show`. Default: all.")
    ] = None,
) -> None:
    """Print the JSON Schema of what a command prints with `--json`."""
    from .results import RESULTS
    from .results import schema as schema_of

    if not command:
        out.document({name: schema_of(name) for name in RESULTS})
        return
    name = " ".join(command)
    group = [each for each in RESULTS if each.startswith(f"{name} ")]
    if group:
        out.document({each: schema_of(each) for each in group})
        return
    if name not in RESULTS:
        raise InputError(f"no command {name!r} prints a result; there are {', '.join(RESULTS)}")
    out.document(schema_of(name))
