"""Commands that change an allocation: verify it, end services, place them again after a failure, move them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from tvm_sched.cli.interrupt import interruptible
from tvm_sched.cli.output import Output
from tvm_sched.cli.registration import command
from tvm_sched_runtime.errors import InputError

from .cluster_options import (
    HOME,
    ChangedFile,
    Method,
    ReportFile,
    RunningOptions,
    cluster,
    write_state,
)
from .control_commands import HOME as CONTROL
from .control_commands import mark_part

if TYPE_CHECKING:
    from .. import ClusterState
    from ..controller import Recovery

CHANGED = f"{CONTROL}:Changed"


@command(cluster, "verify", f"{HOME}:CheckedAllocation")
def verify_allocation(out: Output, on: RunningOptions, report: ReportFile = None) -> None:
    """Check an allocation by every rule; the first broken one is named, and the exit status is 2.

    $ tvm-sched cluster verify rampa-base allocation.json
    $ tvm-sched cluster verify rampa-base allocation.json --report cluster.html
    """
    from ..cluster_summaries import CheckedAllocation

    state = on.state(on.allocation)
    write_state(out, report, state, {"allocation": str(on.allocation)})
    out.show(escape(f"{on.allocation}: {len(state.running)} services keep all rules"))
    out.result(CheckedAllocation.of(state, right=True))


@command(cluster, "release", f"{HOME}:Recovered")
def release(
    out: Output,
    on: RunningOptions,
    request: Annotated[list[str], typer.Argument(metavar="REQUEST...", help="Names of deployments.")],
    output: ChangedFile = None,
) -> None:
    """End services; what they held is free again, first for services that wait since a failure.

    $ tvm-sched cluster release rampa-base allocation.json r7
    """
    from .. import recover
    from ..cluster_summaries import Recovered

    with on.change(out, output) as state:
        for one in request:
            state.release(one)
        recovery = recover(state)
    out.show(
        f"{len(request)} services ended; {len(recovery.replaced)} that waited found a place; {len(state.running)} run"
    )
    out.result(Recovered.of(state, replaced=recovery.replaced))


@command(cluster, "fail", (f"{HOME}:Recovered", CHANGED))
def fail(
    out: Output,
    on: RunningOptions,
    part: Annotated[str, typer.Argument(metavar="PART", help="A GPU, server, rack or link that fails.")],
    allocator: Method = "anytime",
    output: ChangedFile = None,
) -> None:
    """Mark a part of the cluster as failed, and place its services again on the remaining parts.

    If ALLOCATION is the store of a controller (.db), the controller places them.

    $ tvm-sched cluster fail rampa-base allocation.json rack0-server1
    """
    from .. import fail as fail_part

    if on.allocation.suffix == ".db":
        mark_part(out, on.allocation, part, failed=True)
        return

    with on.change(out, output) as state:
        recovery = fail_part(state, part, allocator)
    _show_recovery(out, state, recovery, "services placed again; without a place")


@command(cluster, "repair", (f"{HOME}:Recovered", CHANGED))
def repair(
    out: Output,
    on: RunningOptions,
    part: Annotated[str, typer.Argument(metavar="PART", help="A GPU, server, rack or link that works again.")],
    allocator: Method = "anytime",
    output: ChangedFile = None,
) -> None:
    """Put a part of the cluster back into service, and place services there that wait since a failure.

    If ALLOCATION is the store of a controller (.db), the part may also have been drained, and the controller places them.

    $ tvm-sched cluster repair rampa-base allocation.json rack0-server1
    """
    from .. import recover

    if on.allocation.suffix == ".db":
        mark_part(out, on.allocation, part, failed=False)
        return
    with on.change(out, output) as state:
        if not set(state.parts(part)).intersection(state.failed):
            raise InputError(f"{part!r} has not failed; what has: {', '.join(state.failed) or 'nothing'}")
        state.repair(part)
        recovery = recover(state, allocator)
    _show_recovery(out, state, recovery, "services that waited found a place; without one")


def _show_recovery(out: Output, state: ClusterState, recovery: Recovery, what: str) -> None:
    from ..cluster_summaries import Recovered

    waiting = ", ".join(request.name for request in recovery.waiting)
    out.show(escape(f"{len(recovery.replaced)} {what}: {waiting or 'none'}"))
    out.result(Recovered.of(state, replaced=recovery.replaced))


@command(cluster, "defragment", f"{HOME}:Defragmented")
def defragment(
    out: Output,
    *,
    moves: Annotated[int, typer.Option("--moves", metavar="N", help="Services that move at most.")] = 10,
    on: RunningOptions,
    output: ChangedFile = None,
) -> None:
    """Move a few services so that more fit; each is copied to its new GPUs before the old ones are released.

    $ tvm-sched cluster defragment rampa-base allocation.json --moves 5
    """
    from .. import defragment as move
    from ..cluster_summaries import Defragmented, MovedService

    with on.change(out, output) as state, interruptible(out), out.step("Looking for moves"):
        done = move(state, moves)
    total, gain = sum(one.bytes for one in done), sum(one.gain for one in done)
    out.show(f"{len(done)} moves of {total / 1e9:.1f} GB of parameters; {gain:.2f} services more fit")
    moved = [MovedService(request=m.after.request, gpus=m.after.gpus, bytes=m.bytes, gain=m.gain) for m in done]
    out.result(Defragmented.of(state, moves=moved, bytes=total, gain=gain))
