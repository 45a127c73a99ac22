"""The commands of clusters and of serving; the entry point ``tvm_sched.commands`` names `COMMANDS`."""

from __future__ import annotations

import typer

from tvm_sched.cli.attached_commands import SERVE

from . import allocation_changes, control_commands, placing, replaying, service_deployment  # noqa: F401 - they register the commands of `cluster`
from .cluster_options import cluster
from .deployment_commands import deployments


def COMMANDS(app: typer.Typer) -> None:  # noqa: N802 - the name of the entry point
    """Add ``deploy``, ``rollout``, ``status``, ``request``, ``undeploy`` and the group ``cluster``."""
    app.add_typer(deployments)
    app.add_typer(cluster, rich_help_panel=SERVE)
