"""Commands that place services on a cluster, and bound their number."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from tvm_sched.cli.evidence import show_verdict
from tvm_sched.cli.inputs import JSON
from tvm_sched.cli.interrupt import interruptible
from tvm_sched.cli.methods import MethodOptions, Options
from tvm_sched.cli.output import Output
from tvm_sched.cli.registration import command
from tvm_sched_runtime.checks import require_seed
from tvm_sched_runtime.files import locked

from .cluster_options import (
    HOME,
    AllocationFile,
    ClusterOptions,
    Method,
    Name,
    ReportFile,
    cluster,
    write_allocation,
    write_state,
)

if TYPE_CHECKING:
    from .. import ClusterState, ServicePlacement, ServiceRequest


@dataclass(frozen=True)
class Demand:
    """Requests: of a file, random ones, or one for each service that is named."""

    requests: Annotated[
        Path | None, typer.Option("--requests", metavar="FILE", help="Request sequence of RAMPA's simulator (.txt).")
    ] = None
    demand: Annotated[
        str | None,
        typer.Option(
            "--demand", metavar="CASE", help="Random requests: same, high-throughput, low-delay or huge-model."
        ),
    ] = None
    service: list[str] | None = None
    count: Annotated[int, typer.Option("--count", metavar="N", help="Random requests at most.")] = 1000
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of the random requests and of the allocator.")] = 0

    def sequence(self, state: ClusterState) -> list[ServiceRequest]:
        """Return the requests; their names differ from those of the running services."""
        from ..search.request_sequence import request_sequence

        require_seed(self.seed)
        return request_sequence(state, self.requests, self.demand, self.service or (), self.count, self.seed)


@dataclass(frozen=True)
class NamedDemand(Demand):
    """`Demand` by a case or by the names of services."""

    service: Annotated[
        list[str] | None,
        typer.Option("--service", metavar="NAME[=REQUEST]", help="One request for it, by that name. May be repeated."),
    ] = None


@command(cluster, "list", f"{HOME}:Clusters")
def list_clusters(out: Output) -> None:
    """List the presets and the allocators.

    $ tvm-sched cluster list
    """
    import tvm_sched_cluster as package
    from tvm_sched.report.tables import table

    from ..cluster_summaries import Allocator, Clusters, NamedCluster

    clusters = [package.load_cluster(name) for name in package.preset_names()]
    rows = [(c.name, str(len(c.gpus)), ", ".join(k.name for k in c.kinds), str(len(c.links))) for c in clusters]
    methods = [package.get(name) for name in package.names()]
    out.show(table(("cluster", "GPUs", "kinds", "links"), rows, text_columns=1))
    out.show(table(("allocator", "what it does"), [(m.name, m.summary) for m in methods], text_columns=2))
    named = [NamedCluster(name=c.name, gpus=len(c.gpus), source=c.source) for c in clusters]
    out.result(Clusters(clusters=named, allocators=[Allocator(name=m.name, summary=m.summary) for m in methods]))


@command(cluster, "show", f"{HOME}:ShownCluster")
def show_cluster(out: Output, name: Name) -> None:
    """Show kinds of GPUs and racks; a file is checked when it is read.

    $ tvm-sched cluster show rampa-base
    $ tvm-sched cluster show mine.toml --json
    """
    from tvm_sched.report.tables import table

    from .. import load_cluster
    from ..cluster_summaries import ShownCluster

    loaded = load_cluster(name)
    counts = [sum(gpu.kind == k for gpu in loaded.gpus) for k in range(len(loaded.kinds))]
    rows = [
        (kind.name, str(count), f"{kind.flops / 1e12:g}", f"{kind.memory / 1e9:g}", f"{kind.memory_bandwidth / 1e9:g}")
        for kind, count in zip(loaded.kinds, counts, strict=True)
    ]
    out.show(
        f"[bold]{escape(loaded.name)}[/bold]: {len(loaded.racks)} racks, {len(loaded.switches)} switches, "
        f"{len(loaded.links)} links"
    )
    out.show(table(("kind", "GPUs", "TFLOP/s", "GB", "GB/s"), rows, text_columns=1))
    out.result(ShownCluster.of(loaded))


@command(cluster, "place", f"{HOME}:Placed")
def place(
    out: Output,
    *,
    on: ClusterOptions,
    asked: NamedDemand,
    allocator: Method = "anytime",
    option: Options = None,
    running: Annotated[
        Path | None, typer.Option("--running", metavar="ALLOCATION", help="What runs already: an allocation file.")
    ] = None,
    output: AllocationFile = None,
    report: ReportFile = None,
) -> None:
    """Place requests one after another until one finds no place, and say why it does not.

    With `--service`, every one of them must find a place.

    $ tvm-sched cluster place rampa-base --service service1=chat --service service5 -o allocation.json
    $ tvm-sched cluster place rampa-base --demand same --seed 1 -o allocation.json --report cluster.html
    $ tvm-sched cluster place rampa-base --demand huge-model --allocator rampa --option agents=10 --json
    $ tvm-sched cluster place graph1.txt --services MODELS --requests allocSeq1.txt
    """
    from tvm_sched_runtime.errors import InfeasibleError

    from .. import get
    from .. import place as place_one
    from ..cluster_summaries import Placed, placements_table

    with locked(output) if output else nullcontext():  # two commands that change one file wait for each other
        state = on.state(running)
        requests = asked.sequence(state)
        options = MethodOptions(option, seed=asked.seed).of(get(allocator))
        placed: list[ServicePlacement] = []
        reason = ""
        with interruptible(out), out.step(f"Placing with {allocator}") as step:
            for position, request in enumerate(requests):
                step("placing", position, len(requests))
                try:
                    placed.append(place_one(state, request, allocator, options))
                except InfeasibleError as error:
                    if asked.service:
                        raise
                    reason = str(error)
                    break
        write_allocation(out, output, state.allocation)
    write_state(out, report, state, {"allocator": allocator, "asked": len(requests), "reason": reason, **options})
    out.show(placements_table(placed[-20:]), escape(f"{len(placed)} of {len(requests)} requests placed. {reason}"))
    out.result(Placed.of(state, placed=len(placed), asked=len(requests), reason=reason, placements=placed))


@command(cluster, "bound", f"{HOME}:Bounded")
def bound(
    out: Output,
    on: ClusterOptions,
    asked: Demand,
    evidence: Annotated[
        Path | None,
        typer.Option(
            "--evidence", metavar="FILE.json", help="Write what the bound rests on, for `tvm-sched cluster check`."
        ),
        JSON,
    ] = None,
) -> None:
    """Print an upper bound on how many of these requests any allocator can place before one fails, and for the demand.

    $ tvm-sched cluster bound rampa-base --demand same
    $ tvm-sched cluster bound graph1.txt --services MODELS --requests allocSeq1.txt
    """
    from ..bounds.mix_bound import bound_of_demand, bound_of_requests
    from ..cluster_summaries import Bounded
    from ..problem.service import demand_of

    state = on.state()
    requests = asked.sequence(state)
    known = list(state.services.values())
    with interruptible(out), out.step("Solving linear programs"):
        most = bound_of_requests(state.search, known, requests)
        proportion = bound_of_demand(state.search, known, demand_of(requests))
        if evidence:
            from ..bounds.mix_bound_evidence import evidence as evidence_of

            evidence_of(state.search, known, requests).save(evidence)
            out.wrote(evidence, "evidence")
    out.show(
        f"At most {most} of {len(requests)} requests, in their order; at most {proportion:.1f} services in the "
        "proportions of them all."
    )
    out.result(Bounded.of(state, asked=len(requests), bound=most, proportional_bound=proportion))


@command(cluster, "check", "tvm_sched_check.clusters.verdict:Verdict")
def check(
    out: Output,
    allocation: Annotated[Path, typer.Argument(metavar="ALLOCATION", help="File of `cluster place`.")],
    evidence: Annotated[Path, typer.Argument(metavar="EVIDENCE", help="File of `cluster bound --evidence`.")],
) -> None:
    """Verify an allocation and the bound on what can be placed by an implementation that shares nothing with ours.

    Status 0: the allocation keeps all rules and the bound is proved; 1: less is proved; 2: a file is wrong.
    Alone: python -m tvm_sched_check clusters.

    $ tvm-sched cluster check allocation.json evidence.json
    """
    from tvm_sched_check import clusters as checker

    show_verdict(out, checker.check, allocation, evidence)
