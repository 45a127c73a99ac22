"""Options of how a schedule runs: streams, order, and what an artifact keeps from run to run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .residency import ResidentParameters, resident_of

if TYPE_CHECKING:
    from ..problem import Problem
    from ..schedule import Schedule


@dataclass(frozen=True)
class LaunchOptions:
    """On which streams kernels start, and in which order."""

    streams: Annotated[
        str | None,
        typer.Option(
            "--streams",
            metavar="one|opara|nimble|wavefront|fewest|best",
            help="How operators of a device share its streams. Default, and best: the one of least predicted latency "
            "among these and the scheduler's own; where schedules are measured (-t cpu), best also measures each of them.",
        ),
    ] = None
    launch_order: Annotated[
        str | None,
        typer.Option(
            "--launch-order",
            metavar="depth-first|breadth-first|critical-path|opara|best",
            help="Order in which kernels start. Default, and best: with several streams the one of least predicted "
            "latency among these and the scheduler's own, else the scheduler's.",
        ),
    ] = None

    def check(self) -> None:
        """Refuse unknown methods before the long work begins."""
        from ..streams import check_methods

        check_methods(self.streams, self.launch_order)

    def choose(self, problem: Problem, schedule: Schedule) -> Schedule:
        """The schedule with the streams and the order that are asked for; of a problem without variants."""
        from ..streams import choose_launch_order, choose_streams

        return choose_launch_order(problem, choose_streams(problem, schedule, self.streams), self.launch_order)


@dataclass(frozen=True)
class RunOptions:
    """What `tvm_sched.runtime.ScheduledModule.configure` sets, and `compile` notes in the artifact."""

    graph: Annotated[
        bool | None, typer.Option("--graph/--no-graph", help="GPUs: capture a run as a CUDA graph and replay it.")
    ] = None
    resident: ResidentParameters = None
    instances: Annotated[
        int | None,
        typer.Option("--instances", metavar="N", help="Runs that may proceed at once, each with memory of its own."),
    ] = None

    def settings(self) -> dict[str, Any]:
        """The same by the names that both give it."""
        return {"graph": self.graph, "resident": resident_of(self.resident), "instances": self.instances}
