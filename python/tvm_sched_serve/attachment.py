"""Attaches ``serve`` to the command ``tvm-sched``; the entry point ``tvm_sched.commands`` names `attach`."""

from __future__ import annotations

import typer

from tvm_sched.cli.attached_commands import SERVE

from .command import main


def attach(app: typer.Typer) -> None:
    """Add ``serve``, whose options `tvm_sched_serve.command` reads."""

    @app.command(
        "serve",
        rich_help_panel=SERVE,
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def serve(context: typer.Context) -> None:
        """Serve compiled models on this machine over HTTP, gRPC and shared memory."""
        raise typer.Exit(main(context.args))
