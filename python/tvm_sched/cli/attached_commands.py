"""What other distributions attach to ``tvm-sched`` by entry points: commands, and compilers with options of ``compile``."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import typer
from typer.core import TyperGroup

from ..registry import Registry

if TYPE_CHECKING:
    from tvm_sched_runtime.problem import Problem
    from tvm_sched_runtime.schedule import Schedule

    from ..cost_model.roofline_model import SlowKernel
    from ..relax.options import CompileOptions

COMMAND_SETS: Registry[Callable[[typer.Typer], None]] = Registry("set of commands", "tvm_sched.commands")
"""Functions that add the commands of an installed distribution to an app."""

START, PLAN, SERVE, RESEARCH, MACHINE = PANELS = ("Start", "Plan", "Serve", "Research", "Machine")
"""Panels of ``tvm-sched --help``, by the purpose of the commands."""
FIRST = ("auto", "inspect", "schedule", "compile", "run", "doctor", "sweep", "explain")
"""Commands that are listed first in their panel, in this order; the first five are the panel `START`."""
DISTRIBUTIONS = {
    **dict.fromkeys(("cluster", "deploy", "gateway", "rollout", "status", "request", "undeploy"), "tvm-sched-cluster"),
    "bench": "tvm-sched-bench",
    "export-triton": "tvm-sched-runtime",
    "generate": "tvm-sched-language",
    "learn": "tvm-sched-bench",
    "plan": "tvm-sched-plans",
    "serve": "tvm-sched-runtime",
}
"""Distribution of each command of our other distributions, for the message if it is not installed."""


class Compiled(Protocol):
    """What such a compiler returns, such as `tvm_sched.relax.CompiledModel`."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """One for each plan."""
        ...

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """One for each problem."""
        ...

    @property
    def slow_kernels(self) -> tuple[SlowKernel, ...]:
        """Generated kernels that are far from their roofline."""
        ...

    def export(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write the artifact, or several, and return the files: each artifact, then its parameters."""
        ...


class CompilerOptions(Protocol):
    """A group of options of ``compile`` (`option_groups`) that asks for a compiler of its own."""

    def options_for(self, model: Path) -> dict[str, Any] | None:
        """Return the checked options, by which the cache finds the result; None if they do not ask for this compiler."""
        ...

    def compile(self, model: Path, options: CompileOptions, progress: Any) -> Compiled:
        """Compile the model."""
        ...


COMPILERS: Registry[type[CompilerOptions]] = Registry(
    "compiler", "tvm_sched.compilers", elsewhere={"generate": "tvm-sched-language"}
)
"""Option groups by the option that asks for the compiler: ``generate`` for ``--generate``."""


class AttachedCommands(TyperGroup):
    """The commands of this package, and those that other distributions attach.

    Looking for entry points takes milliseconds. It is done only to list all commands, or for a command that this
    package does not have.
    """

    _attached = False

    # Some releases of typer contain click and others require it, so its types are not named.
    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, by panel."""
        self._attach(ctx)
        return sorted(super().list_commands(ctx), key=self._place)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; for one of our other distributions, raise a usage error that names it."""
        if cmd_name not in self.commands:
            self._attach(ctx)
        if cmd_name not in self.commands and cmd_name in DISTRIBUTIONS:
            brings = DISTRIBUTIONS[cmd_name]
            ctx.fail(f"the command {cmd_name!r} is part of {brings}, which is not installed: pip install {brings}")
        return super().get_command(ctx, cmd_name)

    def _place(self, name: str) -> tuple[int, int]:
        panel = getattr(self.commands[name], "rich_help_panel", None)
        first = FIRST.index(name) if name in FIRST else len(FIRST)
        return PANELS.index(panel) if panel in PANELS else len(PANELS), first

    def _attach(self, ctx: Any) -> None:
        if self._attached:
            return
        self._attached = True
        for name in COMMAND_SETS.names():
            attached = typer.Typer()
            COMMAND_SETS.get(name)(attached)
            for command, callback in typer.main.get_group(attached).commands.items():
                if command in self.commands:
                    ctx.fail(f"the entry point {name!r} brings a command {command!r}, but there is one already")
                self.add_command(callback)
