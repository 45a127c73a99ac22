"""Attaches the commands of this package to ``tvm-sched``; the entry point ``tvm_sched.commands`` names `attach`."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from tvm_sched.cli.attached_commands import SERVE

from . import command, triton_command


def attach(app: typer.Typer) -> None:
    """Add the commands with the options of their parsers, which read them."""
    for name, module in (("serve", command), ("export-triton", triton_command)):
        attach_parser(app, name, module.make_parser(f"tvm-sched {name}"), module.main)


def attach_parser(
    app: typer.Typer, name: str, parser: argparse.ArgumentParser, main: Callable[[Sequence[str]], int]
) -> None:
    """Add a command with the options of a parser, which ``main`` reads."""
    actions = [action for action in parser._actions if action.dest != "help"]

    def run(**values: Any) -> None:
        raise typer.Exit(main(_arguments(actions, values)))

    run.__doc__ = " ".join((parser.description or "").split())  # typer would keep the line ends
    run.__signature__ = inspect.Signature([_parameter(action) for action in actions])  # type: ignore[attr-defined]
    app.command(name, rich_help_panel=SERVE, epilog=parser.epilog)(run)


def _parameter(action: argparse.Action) -> inspect.Parameter:
    """Return an option of typer like argparse's; the parser checks its value."""
    text = (action.help or "") + (f" (default: {action.default})" if action.default not in (None, False) else "")
    metavar = str(action.metavar) if action.metavar else None
    kind: Any
    default: Any
    if action.nargs == "+":
        kind, default = Annotated[list[str], typer.Argument(metavar=metavar, help=text)], inspect.Parameter.empty
    elif not action.option_strings:
        kind, default = Annotated[str, typer.Argument(metavar=metavar, help=text)], inspect.Parameter.empty
    elif action.nargs == 0:
        kind, default = Annotated[bool, typer.Option(*action.option_strings, help=text)], False
    else:
        option = typer.Option(*action.option_strings, metavar=metavar, help=text)
        kind, default = Annotated[str | None, option], None
    return inspect.Parameter(action.dest, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _arguments(actions: list[argparse.Action], values: dict[str, Any]) -> list[str]:
    arguments: list[str] = []
    for action in actions:
        value = values[action.dest]
        if value in (None, False):
            continue
        arguments += action.option_strings[:1]
        if value is not True:
            arguments += value if isinstance(value, list) else [value]
    return arguments
