"""All commands of ``tvm-sched``, those of groups included."""

import typer

from tvm_sched.cli import app


def _commands(group, path=()):
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def every_command():
    """Each command under its whole name."""
    return dict(_commands(typer.main.get_command(app)))
