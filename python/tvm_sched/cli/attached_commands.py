"""Commands that other distributions attach to ``tvm-sched`` by entry points of the group ``tvm_sched.commands``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click
import typer
from typer.core import TyperGroup

from ..registry import Registry


@dataclass(frozen=True)
class CommandSet:
    """The commands of a distribution; an entry point names one.

    Attributes
    ----------
    add : callable
        Adds the commands to a `typer.Typer`.
    results : callable
        Returns what each command prints with ``--json``, by command, as `tvm_sched.cli.results.RESULTS` does. It may
        import heavy packages: it is called only when a result is printed.
    """

    add: Callable[[typer.Typer], None]
    results: Callable[[], dict[str, Any]]


COMMAND_SETS: Registry[CommandSet] = Registry("set of commands", "tvm_sched.commands")
"""The sets of commands of the installed distributions."""

DISTRIBUTIONS = dict.fromkeys(("cluster", "serve", "status", "request", "undeploy"), "tvm-sched-cluster")
"""Commands of our other distributions, for the message where these are not installed."""


class AttachedCommands(TyperGroup):
    """The commands of this package, and those that other distributions attach.

    Looking for entry points takes milliseconds, so it waits until a command is asked for that this package does not
    have, or until all commands are listed.
    """

    _attached = False

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        self._attach()
        return super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; raise a usage error that names the distribution to install where that is known."""
        if cmd_name not in self.commands:
            self._attach()
        if cmd_name not in self.commands and cmd_name in DISTRIBUTIONS:
            brings = DISTRIBUTIONS[cmd_name]
            ctx.fail(f"the command {cmd_name!r} is part of {brings}, which is not installed: pip install {brings}")
        return super().get_command(ctx, cmd_name)

    def _attach(self) -> None:
        if self._attached:
            return
        self._attached = True
        for name in COMMAND_SETS.names():
            attached = typer.Typer()
            COMMAND_SETS.get(name).add(attached)
            for command, found in typer.main.get_group(attached).commands.items():
                if command in self.commands:
                    raise click.UsageError(f"{name!r} brings a command {command!r}, which there is already")
                self.add_command(found)
