"""Commands that other distributions attach to ``tvm-sched`` by entry points of the group ``tvm_sched.commands``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from ..registry import Registry

COMMAND_SETS: Registry[Callable[[typer.Typer], None]] = Registry("set of commands", "tvm_sched.commands")
"""What adds the commands of each installed distribution to an app."""

DEPLOY, PLAN, SERVE, RESEARCH, MACHINE = PANELS = ("Deploy", "Plan", "Serve", "Research", "Machine")
"""Panels of ``tvm-sched --help``: what a command is for."""
FIRST = ("doctor", "inspect", "schedule", "compile", "run")
"""What a reader needs first."""
DISTRIBUTIONS = dict.fromkeys(("cluster", "serve", "status", "request", "undeploy"), "tvm-sched-cluster")
"""Commands of our other distributions, for the message where these are not installed."""


class AttachedCommands(TyperGroup):
    """The commands of this package, and those that other distributions attach.

    Looking for entry points takes milliseconds, so it waits until a command is asked for that this package does not
    have, or until all commands are listed.
    """

    _attached = False

    # Some releases of typer contain click and others require it, so its types are not named.
    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, by panel and in each panel in the order of its tasks."""
        self._attach(ctx)
        return sorted(super().list_commands(ctx), key=self._place)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; raise a usage error that names the distribution to install where that is known."""
        if cmd_name not in self.commands:
            self._attach(ctx)
        if cmd_name not in self.commands and cmd_name in DISTRIBUTIONS:
            brings = DISTRIBUTIONS[cmd_name]
            ctx.fail(f"the command {cmd_name!r} is part of {brings}, which is not installed: pip install {brings}")
        return super().get_command(ctx, cmd_name)

    def _place(self, name: str) -> tuple[int, bool]:
        panel = getattr(self.commands[name], "rich_help_panel", None)
        return PANELS.index(panel) if panel in PANELS else len(PANELS), name not in FIRST

    def _attach(self, ctx: Any) -> None:
        if self._attached:
            return
        self._attached = True
        for name in COMMAND_SETS.names():
            attached = typer.Typer()
            COMMAND_SETS.get(name)(attached)
            for command, found in typer.main.get_group(attached).commands.items():
                if command in self.commands:
                    ctx.fail(f"the entry point {name!r} brings a command {command!r}, but there is one already")
                self.add_command(found)
