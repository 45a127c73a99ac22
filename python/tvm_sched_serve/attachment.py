"""Attaches ``serve`` to the command ``tvm-sched``; the entry point ``tvm_sched.commands`` names `attach`."""

from __future__ import annotations

import argparse
import inspect
from typing import Annotated, Any

import typer

from tvm_sched.cli.attached_commands import SERVE

from .command import main, make_parser


def attach(app: typer.Typer) -> None:
    """Add ``serve`` with the options of `tvm_sched_serve.command`, which reads them."""
    parser = make_parser("tvm-sched serve")
    actions = [action for action in parser._actions if action.dest != "help"]

    def serve(**values: Any) -> None:
        raise typer.Exit(main(_arguments(actions, values)))

    parameters = [_parameter(action) for action in actions]
    serve.__doc__ = parser.description
    serve.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    app.command("serve", rich_help_panel=SERVE, epilog=parser.epilog)(serve)


def _parameter(action: argparse.Action) -> inspect.Parameter:
    """An option of typer like one of argparse; its value is checked there."""
    text = (action.help or "") + (f" (default: {action.default})" if action.default not in (None, False) else "")
    metavar = str(action.metavar) if action.metavar else None
    kind: Any
    default: Any
    if not action.option_strings:
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
            arguments.append(value)
    return arguments
