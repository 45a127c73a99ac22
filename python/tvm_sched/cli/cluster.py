"""Commands that place services on a cluster, bound their number, and keep them through failures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.markup import escape

from ..errors import InputError
from .command import Output, command
from .inputs import Options, check_outputs, common_options, parse_options
from .interrupt import interruptible
from .plan import JSON

if TYPE_CHECKING:
    from ..cluster import Allocation, Cluster, ClusterState, Placement, Request, Service

cluster = typer.Typer(help="Many services on a cluster of unequal GPUs.", no_args_is_help=True, rich_markup_mode="rich")

Name = Annotated[
    str, typer.Argument(metavar="CLUSTER", help="Preset, TOML file, or graph (.txt) of RAMPA's simulator.")
]
Services = Annotated[
    str, typer.Option("--services", metavar="FILE|DIR", help="TOML file, or folder of the simulator's models.")
]
Requests = Annotated[
    Path | None, typer.Option("--requests", metavar="FILE", help="Request sequence of RAMPA's simulator (.txt).")
]
Demand = Annotated[
    str | None,
    typer.Option("--demand", metavar="CASE", help="Random requests: same, high-throughput, low-delay or huge-model."),
]
Wanted = Annotated[
    list[str] | None, typer.Option("--service", metavar="NAME", help="One request for it. May be repeated.")
]
Count = Annotated[int, typer.Option("--count", metavar="N", help="Random requests at most.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Of the random requests and of the allocator.")]
Method = Annotated[
    str, typer.Option("--allocator", "-a", metavar="NAME", help="cluster-exact, rampa, ncar, pipeedge or first-fit.")
]
Running = Annotated[Path, typer.Argument(metavar="ALLOCATION", help="Allocation file (.json) of what runs.")]
AllocationFile = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE.json", help="Write the allocation.")
]


@command(cluster, "list", ("tvm-sched cluster list",))
def list_clusters(out: Output) -> None:
    """List the presets and the allocators."""
    from .. import cluster as room
    from ..report.tables import table

    made = [room.load_cluster(name) for name in room.preset_names()]
    rows = [(c.name, str(len(c.gpus)), ", ".join(k.name for k in c.kinds), str(len(c.links))) for c in made]
    methods = [room.get(name) for name in room.names()]
    out.show(table(("cluster", "GPUs", "kinds", "links"), rows, text_columns=1))
    out.show(table(("allocator", "what it does"), [(m.name, m.summary) for m in methods], text_columns=2))
    out.result(
        {
            "clusters": [{"name": c.name, "gpus": len(c.gpus), "source": c.source} for c in made],
            "allocators": [{"name": m.name, "summary": m.summary} for m in methods],
        }
    )


@command(cluster, "show", ("tvm-sched cluster show rampa-base", "tvm-sched cluster show mine.toml --json"))
def show_cluster(out: Output, name: Name) -> None:
    """Show kinds of GPUs and racks; a file is checked on the way."""
    from ..cluster import load_cluster
    from ..report.tables import table

    made = load_cluster(name)
    counts = [sum(gpu.kind == k for gpu in made.gpus) for k in range(len(made.kinds))]
    rows = [
        (kind.name, str(count), f"{kind.flops / 1e12:g}", f"{kind.memory / 1e9:g}", f"{kind.memory_bandwidth / 1e9:g}")
        for kind, count in zip(made.kinds, counts, strict=True)
    ]
    out.show(
        f"[bold]{escape(made.name)}[/bold]: {len(made.racks)} racks, {len(made.switches)} switches, {len(made.links)} links"
    )
    out.show(table(("kind", "GPUs", "TFLOP/s", "GB", "GB/s"), rows, text_columns=1))
    out.result({**msgspec.to_builtins(made), "digest": made.digest})


@command(
    cluster,
    "place",
    (
        "tvm-sched cluster place rampa-base --service service1 --service service5 -o allocation.json",
        "tvm-sched cluster place rampa-base --demand same --seed 1 -o allocation.json",
        "tvm-sched cluster place rampa-base --demand huge-model --allocator rampa --option agents=10 --json",
        "tvm-sched cluster place graph1.txt --services MODELS --requests allocSeq1.txt",
    ),
)
def place(
    out: Output,
    name: Name,
    services: Services = "rampa-services",
    requests: Requests = None,
    demand: Demand = None,
    service: Wanted = None,
    count: Count = 1000,
    seed: Seed = 0,
    allocator: Method = "cluster-exact",
    option: Options = None,
    running: Annotated[
        Path | None, typer.Option("--running", metavar="ALLOCATION", help="What runs already: an allocation file.")
    ] = None,
    output: AllocationFile = None,
) -> None:
    """Place requests one after another until one finds no place, and say why it does not.

    With `--service`, every one of them must find a place.
    """
    from ..cluster import place as place_one
    from ..errors import InfeasibleError

    check_outputs({"--output": (output, JSON)}, [p for p in (requests, running) if p])
    state = _state(name, services, running)
    asked = _requests(state, requests, demand, service, count, seed)
    options = _options(allocator, option, seed)
    placed: list[Placement] = []
    reason = ""
    with interruptible(out), out.step(f"Placing with {allocator}") as step:
        for position, request in enumerate(asked):
            step("placing", position, len(asked))
            try:
                placed.append(place_one(state, request, allocator, options))
            except InfeasibleError as error:
                if service:
                    raise
                reason = str(error)
                break
    _write(out, output, state.allocation)
    out.show(_placements_table(placed[-20:]), escape(f"{len(placed)} of {len(asked)} requests placed. {reason}"))
    out.result({**_about(state), "placed": len(placed), "asked": len(asked), "reason": reason, "placements": placed})


@command(
    cluster,
    "bound",
    (
        "tvm-sched cluster bound rampa-base --demand same",
        "tvm-sched cluster bound graph1.txt --services MODELS --requests allocSeq1.txt",
    ),
)
def bound(
    out: Output,
    name: Name,
    services: Services = "rampa-services",
    requests: Requests = None,
    demand: Demand = None,
    count: Count = 1000,
    seed: Seed = 0,
) -> None:
    """Say how many of these requests any allocator can place at most before one fails, and of the demand in the long run."""
    from ..cluster.bound import bound_of_demand, bound_of_requests
    from ..cluster.service import demand_of

    state = _state(name, services, None)
    asked = _requests(state, requests, demand, None, count, seed)
    known = list(state.services.values())
    with interruptible(out), out.step("Solving linear programs"):
        most = bound_of_requests(state.search, known, asked)
        proportion = bound_of_demand(state.search, known, demand_of(asked))
    out.show(
        f"At most {most} of {len(asked)} requests, in their order; at most {proportion:.1f} services in the proportions of "
        "them all."
    )
    out.result({**_about(state), "asked": len(asked), "bound": most, "proportional_bound": proportion})


@command(cluster, "verify", ("tvm-sched cluster verify rampa-base allocation.json",))
def verify_allocation(out: Output, name: Name, allocation: Running, services: Services = "rampa-services") -> None:
    """Check an allocation by every rule; the first broken one is named, and the exit status is 2."""
    state = _state(name, services, allocation)
    out.show(escape(f"{allocation}: {len(state.running)} services keep all rules"))
    out.result({**_about(state), "right": True})


@command(cluster, "release", ("tvm-sched cluster release rampa-base allocation.json r7 -o allocation.json",))
def release(
    out: Output,
    name: Name,
    allocation: Running,
    request: Annotated[list[str], typer.Argument(metavar="REQUEST...", help="Names of deployments.")],
    services: Services = "rampa-services",
    output: AllocationFile = None,
) -> None:
    """End services; what they held is free again, for those that wait since a failure first."""
    from ..cluster import recover

    check_outputs({"--output": (output, JSON)})
    state = _state(name, services, allocation)
    for one in request:
        state.release(one)
    recovery = recover(state)
    _write(out, output, state.allocation)
    out.show(
        f"{len(request)} services ended; {len(recovery.replaced)} that waited found a place; {len(state.running)} run"
    )
    out.result({**_about(state), "replaced": recovery.replaced})


@command(
    cluster,
    "fail",
    ("tvm-sched cluster fail rampa-base allocation.json rack0-server1 -o allocation.json",),
)
def fail(
    out: Output,
    name: Name,
    allocation: Running,
    part: Annotated[str, typer.Argument(metavar="PART", help="A GPU, server, rack or link that fails.")],
    services: Services = "rampa-services",
    allocator: Method = "cluster-exact",
    output: AllocationFile = None,
) -> None:
    """A part fails: place anew what it carried, on what is left."""
    from ..cluster import fail as fail_part

    check_outputs({"--output": (output, JSON)})
    state = _state(name, services, allocation)
    recovery = fail_part(state, part, allocator)
    _write(out, output, state.allocation)
    waiting = ", ".join(request.name for request in recovery.waiting)
    out.show(escape(f"{len(recovery.replaced)} services placed anew; without a place: {waiting or 'none'}"))
    out.result({**_about(state), "replaced": recovery.replaced})


@command(
    cluster, "defragment", ("tvm-sched cluster defragment rampa-base allocation.json --moves 5 -o allocation.json",)
)
def defragment(
    out: Output,
    name: Name,
    allocation: Running,
    moves: Annotated[int, typer.Option("--moves", metavar="N", help="Services that move at most.")] = 10,
    services: Services = "rampa-services",
    output: AllocationFile = None,
) -> None:
    """Move a few services so that more fit besides; each is copied before it is given up."""
    from ..cluster import defragment as move

    check_outputs({"--output": (output, JSON)})
    state = _state(name, services, allocation)
    with interruptible(out), out.step("Looking for moves"):
        done = move(state, moves)
    _write(out, output, state.allocation)
    total, gain = sum(one.bytes for one in done), sum(one.gain for one in done)
    out.show(f"{len(done)} moves of {total / 1e9:.1f} GB of parameters; {gain:.2f} services more fit")
    told = [{"request": m.after.request, "gpus": m.after.gpus, "bytes": m.bytes, "gain": m.gain} for m in done]
    out.result({**_about(state), "moves": told, "bytes": total, "gain": gain})


def _state(name: str, services: str, running: Path | None) -> ClusterState:
    from ..cluster import Allocation, ClusterState, load_cluster, load_services

    made: Cluster = load_cluster(name)
    known: tuple[Service, ...] = load_services(services)
    return ClusterState(made, known) if running is None else ClusterState.of(made, known, Allocation.load(running))


def _requests(
    state: ClusterState, file: Path | None, demand: str | None, wanted: list[str] | None, count: int, seed: int
) -> list[Request]:
    """The requests that are asked for in one of three ways; their names do not meet those of what runs."""
    from ..cluster import Request, demand_of_services, requests_of
    from ..cluster.simulator_format import read_requests

    if sum(way is not None and way != [] for way in (file, demand, wanted)) != 1:
        raise InputError("give one of --requests FILE, --demand CASE and --service NAME")
    if count < 1:
        raise InputError(f"--count {count}: a number from 1 is allowed")
    if file is not None:
        made = read_requests(file)
    elif demand is not None:
        made = requests_of(demand_of_services(demand, list(state.services.values())), count, seed)
    else:
        made = [Request(f"r{i}", one) for i, one in enumerate(wanted or ())]
    for request in made:
        state.service(request.service)
    taken = iter(
        name
        for i in range(len(made) + len(state.running) + len(state.waiting))
        if (name := f"r{i}") not in state.running | state.waiting
    )
    return [msgspec.structs.replace(request, name=next(taken)) for request in made]


def _options(allocator: str, texts: list[str] | None, seed: int) -> dict[str, Any]:
    from ..cluster import get

    known = set(get(allocator).options.__struct_fields__)
    common = common_options(None, seed, known)
    return {**{key: value for key, value in common.items() if key in known}, **parse_options(texts)}


def _write(out: Output, path: Path | None, allocation: Allocation) -> None:
    if path:
        allocation.save(path)
        out.wrote(path, "allocation")


def _about(state: ClusterState) -> dict[str, Any]:
    free = {kind.name: int(n) for kind, n in zip(state.cluster.kinds, state.kind_gpus, strict=True)}
    return {
        "cluster": state.cluster.name,
        "running": len(state.running),
        "free_gpus": free,
        "free_fibres": int(state.fibres.sum()),
        "failed": state.failed,
        "waiting": list(state.waiting),
    }


def _placements_table(placed: list[Placement]) -> Any:
    from ..report.tables import table

    rows = [
        (p.request, p.service, " ".join(p.gpus), str(len(p.hops)), f"{p.throughput:.3g}", f"{p.latency_ns / 1e6:.1f}")
        for p in placed
    ]
    return table(("request", "service", "GPUs", "fibres", "inputs a second", "latency, ms"), rows, text_columns=3)
