"""The commands of clusters and of serving; the entry point ``tvm_sched.commands`` names `COMMANDS`."""

from __future__ import annotations

import typer

from tvm_sched.cli.attached_commands import SERVE
from tvm_sched.cli.registration import command

from . import allocation_changes, placing, service_deployment  # noqa: F401 - they register the commands of `cluster`
from .cluster_options import cluster as cluster_commands
from .deployment_commands import request, serve, status, undeploy

_HOME = "tvm_sched_cluster.summaries"


def add_commands(app: typer.Typer) -> None:
    """Add ``serve``, ``status``, ``request``, ``undeploy`` and the group ``cluster``."""
    command(
        app,
        "serve",
        (
            "tvm-sched serve googlenet.pipeline",
            "tvm-sched serve googlenet.toml --address 10.0.0.1:6379 --name googlenet-2",
        ),
        f"{_HOME}:DeploymentStatus",
        SERVE,
    )(serve)
    command(app, "status", ("tvm-sched status", "tvm-sched status googlenet --json"), f"{_HOME}:Statuses", SERVE)(
        status
    )
    command(
        app,
        "request",
        (
            "tvm-sched request googlenet --input data_0=image.npy -o results/",
            "tvm-sched request googlenet --repeat 1000 --json",
        ),
        f"{_HOME}:Requested",
        SERVE,
    )(request)
    command(app, "undeploy", ("tvm-sched undeploy googlenet",), f"{_HOME}:Undeployed", SERVE)(undeploy)
    app.add_typer(cluster_commands, name="cluster", rich_help_panel=SERVE)


COMMANDS = add_commands
