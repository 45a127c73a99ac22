"""The commands of clusters and of serving; the entry point ``tvm_sched.commands`` names `COMMANDS`."""

from __future__ import annotations

import typer

from tvm_sched.cli.attached_commands import SERVE
from tvm_sched_serve.attachment import attach_parser

from . import allocation_changes, control_commands, placing, replaying, service_deployment  # noqa: F401 - they register the commands of `cluster`
from .cluster_options import cluster
from .deployment_commands import deployments
from .gateway_command import main, make_parser


def COMMANDS(app: typer.Typer) -> None:  # noqa: N802 - the name of the entry point
    """Add ``deploy``, ``gateway``, ``rollout``, ``status``, ``request``, ``undeploy`` and the group ``cluster``."""
    app.add_typer(deployments)
    attach_parser(app, "gateway", make_parser("tvm-sched gateway"), main)
    app.add_typer(cluster, rich_help_panel=SERVE)
