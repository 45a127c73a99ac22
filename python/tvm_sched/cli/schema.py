"""The command `schema`: JSON Schemas of what commands print with ``--json``."""

from __future__ import annotations

from fractions import Fraction
from importlib import import_module
from typing import Annotated, Any, TypeAlias, get_type_hints

import msgspec
import typer

from tvm_sched_runtime.errors import InputError

from .attached_commands import COMMAND_SETS
from .output import Output

ResultType: TypeAlias = "str | tuple[str, ...]"
RESULTS: dict[str, ResultType] = {}
"""Types of what each command prints with ``--json``, as ``"module:Type"``; several if it depends on the input.

A module that begins with a dot is one of this package."""


def schema(
    out: Output,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]", help="Such as `run` or `topology show`. Default: all.")
    ] = None,
) -> None:
    """Print the JSON Schema of what a command prints with `--json`.

    $ tvm-sched schema
    $ tvm-sched schema run
    $ tvm-sched schema topology show
    """
    name, known = " ".join(command or ()), all_results()
    schemas = {each: schema_of(each) for each in known if not name or each == name or each.startswith(f"{name} ")}
    if not schemas:
        raise InputError(f"no command {name!r} prints a result; there are {', '.join(known)}")
    out.document(schemas.get(name, schemas))


def all_results() -> dict[str, ResultType]:
    """Return `RESULTS` with the commands of other distributions."""
    for name in COMMAND_SETS.names():
        COMMAND_SETS.get(name)(typer.Typer())  # registers its commands
    return RESULTS


def schema_of(command: str) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of what a command prints with ``--json``."""
    named = RESULTS[command]
    kinds = tuple(map(_type, (named,) if isinstance(named, str) else named))
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    for each in schemas:
        if "$ref" in each:  # the command adds the files that it wrote
            components[each["$ref"].rpartition("/")[2]]["properties"]["files"] = {
                "type": "object", "additionalProperties": {"type": ["string", "array"], "items": {"type": "string"}},
                "description": "Files that the command wrote, by what they hold.",
            }  # fmt: skip
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"tvm-sched {command}",
        **(schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}),
        "$defs": components,
    }


def _type(name: str) -> Any:
    """Return the type of ``"module:Type"``; ``Type[]`` is a list of it, and a named tuple becomes a struct."""
    module, _, kind = name.partition(":")
    named = getattr(import_module(module, "tvm_sched"), kind.removesuffix("[]"))
    if issubclass(named, tuple):
        fields = [(key, hint if hint is not Fraction else float) for key, hint in get_type_hints(named).items()]
        fields = [(key, float | None if hint == Fraction | None else hint) for key, hint in fields]
        return msgspec.defstruct(named.__module__.replace(".", "_"), fields)
    return list[named] if kind.endswith("[]") else named  # type: ignore[valid-type]
