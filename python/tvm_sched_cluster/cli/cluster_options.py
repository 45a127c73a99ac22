"""Shared code of the commands ``cluster``: arguments, reading a state, and writing it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvm_sched.cli.inputs import Writes
from tvm_sched.cli.output import Output
from tvm_sched_runtime.files import locked

if TYPE_CHECKING:
    from .. import Allocation, Cluster, ClusterState, Service

cluster = typer.Typer(
    name="cluster", help="Many services on a cluster of unequal GPUs.", no_args_is_help=True, rich_markup_mode="rich",
)  # fmt: skip

HOME = "tvm_sched_cluster.cluster_summaries"
"""Module of the types of results."""

Name = Annotated[
    str, typer.Argument(metavar="CLUSTER", help="Preset, TOML file, or graph (.txt) of RAMPA's simulator.")
]
Method = Annotated[
    str,
    typer.Option(
        "--allocator", "-a", metavar="NAME", help="anytime, rampa, ncar, pipeedge, first-fit, best-fit or fgd."
    ),
]
Quota = Annotated[
    list[str] | None,
    typer.Option("--quota", metavar="CLASS=PART", help="Most GPUs of a category or service. May be repeated."),
]
AllocationFile = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE.json", help="Write the allocation."),
    Writes((".json",), replaces=True),
]
ChangedFile = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE.json", help="Write here, and leave ALLOCATION as it is."),
    Writes((".json",), replaces=True),
]
ReportFile = Annotated[
    Path | None, typer.Option("--report", metavar="FILE.html", help="Write an HTML report."), Writes((".html", ".htm"))
]


@dataclass(frozen=True)
class ClusterOptions:
    """A cluster, and the services that may run on it."""

    name: Name
    services: Annotated[
        str, typer.Option("--services", metavar="FILE|FOLDER", help="TOML file, or folder of the simulator's models.")
    ] = "rampa-services"

    def state(self, running: Path | None = None) -> ClusterState:
        """Return the state of the cluster, with the services of an allocation file."""
        from .. import Allocation, ClusterState, load_cluster, load_services

        cluster: Cluster = load_cluster(self.name)
        known: tuple[Service, ...] = load_services(self.services)
        return (
            ClusterState(cluster, known)
            if running is None
            else ClusterState.of(cluster, known, Allocation.load(running))
        )


@dataclass(frozen=True, kw_only=True)
class RunningOptions(ClusterOptions):
    """A cluster, its services, and what runs on it."""

    allocation: Annotated[Path, typer.Argument(metavar="ALLOCATION", help="Allocation file (.json) of what runs.")]

    @contextmanager
    def change(self, out: Output, output: Path | None) -> Iterator[ClusterState]:
        """Yield the state, and write what became of it to ``output``, or in place of the allocation.

        Another command that changes the same file waits until this one has written it.
        """
        written = output or self.allocation
        with locked(written):
            state = self.state(self.allocation)
            yield state
            write_allocation(out, written, state.allocation)


def write_allocation(out: Output, path: Path | None, allocation: Allocation) -> None:
    """Write an allocation if ``path`` is given."""
    if path:
        allocation.save(path)
        out.wrote(path, "allocation")


def write_state(out: Output, path: Path | None, state: ClusterState, options: dict[str, Any]) -> None:
    """Write the report of a state if ``path`` is given."""
    if path:
        from ..cluster_report import write_cluster_report

        write_cluster_report(path, state, options=options)
        out.wrote(path, "report")
