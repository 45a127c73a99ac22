"""Commands of a controlled cluster: the controller, and what asks it for services and maintenance."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from tvm_sched.cli.output import INTERRUPTED, Output
from tvm_sched.cli.registration import command
from tvm_sched_runtime.errors import InputError

from .cluster_options import ClusterOptions, Method, Quota, cluster
from .replaying import admission_rules

if TYPE_CHECKING:
    from ..control.store import Store

HOME = "tvm_sched_cluster.control.control_results"
MOST_REPLICAS = 10_000
StoreFile = Annotated[Path, typer.Argument(metavar="STORE", help="Store of a controller.")]
Lifetime = Annotated[
    float | None,
    typer.Option("--lifetime", metavar="SECONDS", help="It ends then unless it is renewed. Default: never."),
]


@dataclass(frozen=True)
class ControlRules:
    """Limits on the controller's actions."""

    allocator: Method = "anytime"
    moves_per_hour: Annotated[
        int, typer.Option("--moves-per-hour", metavar="N", help="Most moves, to empty drained parts and to make room.")
    ] = 20
    defragment: Annotated[bool, typer.Option("--defragment", help="Move services so that more fit.")] = False
    preempt: Annotated[
        bool, typer.Option("--preempt", help="End services of lower priority if another finds no place.")
    ] = False
    quota: Quota = None


@dataclass(frozen=True)
class ControlService:
    """How the controller works on, and whom it answers."""

    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", help="Between two looks at the store.")
    ] = 2.0
    http: Annotated[
        str | None,
        typer.Option("--http", metavar="HOST:PORT", help="Serve the page and the API there; needs --tokens."),
    ] = None
    tokens: Annotated[
        Path | None, typer.Option("--tokens", metavar="FILE", help="Lines of a user's name and token, for --http.")
    ] = None


@dataclass(frozen=True)
class RayOptions:
    """The Ray cluster on which placements are deployed."""

    artifacts: Annotated[
        Path | None,
        typer.Option("--artifacts", metavar="FOLDER", help="Deploy on Ray; compiled placements are kept there."),
    ] = None
    address: Annotated[
        str | None, typer.Option("--address", metavar="HOST:PORT", help="Of the Ray cluster, with --artifacts.")
    ] = None
    backend: Annotated[str, typer.Option("--backend", metavar="NAME", help="Of compiled placements: cuda or cpu.")] = (
        "cuda"
    )
    pin: Annotated[bool, typer.Option("--pin", help="Deploy on the placement's servers, by Ray's labels.")] = False


@command(cluster, "controller", f"{HOME}:Controlled")
def controller(
    out: Output,
    *,
    on: ClusterOptions,
    store: Annotated[Path, typer.Option("--store", metavar="FILE.db", help="Made if it is not there.")],
    rules: ControlRules,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Bring the cluster to the wanted state, and end.")] = False,
    service: ControlService,
    ray: RayOptions,
) -> None:
    """Keep the cluster in the state that is wanted: place, end, move and revive services, until Ctrl-C.

    Without `--artifacts` nothing is deployed: the store is the plan. One controller at a time works on a store. It may be
    killed at any moment; the next one goes on.

    $ tvm-sched cluster controller rampa-base --store state.db
    $ tvm-sched cluster controller rampa-base --store state.db --dry-run
    $ tvm-sched cluster controller rampa-base --store state.db --http 127.0.0.1:8400 --tokens tokens.txt
    """
    from ..control.control_results import Controlled, actions_table
    from ..control.drivers import PlanDriver, RayDriver
    from ..control.reconcile import Controller, ControllerOptions, new_holder
    from ..control.store import Store
    from ..search.cluster_state import ClusterState

    interval, http, tokens = service.interval, service.http, service.tokens
    if not 0 < interval < float("inf"):
        raise InputError(f"--interval {interval}: seconds above 0 are allowed")
    if (http is None) != (tokens is None):
        raise InputError("--http and --tokens belong together: without tokens, anyone could end services")
    state = on.state()
    services = list(state.services.values())
    if not dry_run:
        Store.create(store, on.name, on.services, state.cluster.digest)
    opened = Store(store, new_holder())
    if opened.meta["digest"] != state.cluster.digest:
        raise InputError(f"{store} is the store of {opened.meta['cluster']!r}, another cluster")
    options = ControllerOptions(
        allocator=rules.allocator,
        moves_per_hour=rules.moves_per_hour,
        defragment=rules.defragment,
        preempt=rules.preempt,
        admission=admission_rules(rules.quota, None),
        lease_seconds=max(30.0, 5 * interval),
    )
    driver = PlanDriver() if ray.artifacts is None else RayDriver(state.cluster, state.services, **vars(ray))
    loop = Controller(opened, lambda: ClusterState(state.cluster, services, state.search), driver, options)
    if dry_run:
        actions = loop.plan()
    elif once:
        actions = []
        while step := loop.step():
            actions += step
        opened.give_up()
    else:
        _serve(out, loop, interval, http, tokens)
        return
    out.show(actions_table(actions))
    out.result(Controlled.of(opened, actions))


def _serve(out: Output, loop: object, interval: float, http: str | None, tokens: Path | None) -> None:
    """Work until Ctrl-C; the lease is given back then."""
    from ..control.reconcile import Controller

    assert isinstance(loop, Controller)
    loop.step()  # another controller's lease is told at once
    out.say(f"controlling {loop.store.path}; Ctrl-C ends it, services stay")
    try:
        if http and tokens:
            from ..control.http_api import serve

            serve(loop, http, tokens, interval, out.say)
        while True:
            for action in loop.step():
                out.say(action.line)
            time.sleep(interval)
    except KeyboardInterrupt:
        out.say("the controller ends; the services stay")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        loop.store.give_up()


@command(cluster, "submit", f"{HOME}:Changed")
def submit(
    out: Output,
    store: StoreFile,
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="Which service.")],
    *,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Of this deployment.")],
    priority: Annotated[int, typer.Option("--priority", metavar="N", help="Higher ones are placed first.")] = 0,
    lifetime: Lifetime = None,
    replicas: Annotated[
        int, typer.Option("--replicas", metavar="N", help="Of it; more than one are named NAME-0, NAME-1, ...")
    ] = 1,
) -> None:
    """Ask a controller for a service, or for several replicas of it: all of them, or none.

    $ tvm-sched cluster submit state.db service5 --name chat --priority 2 --lifetime 86400
    $ tvm-sched cluster submit state.db service5 --name chat --replicas 3
    """
    opened = _open(store)
    known = _services(opened)
    if service not in known:
        raise InputError(f"there is no service {service!r}; there are {', '.join(known)}")
    if not 1 <= replicas <= MOST_REPLICAS:
        raise InputError(f"--replicas {replicas}: 1 to {MOST_REPLICAS} are allowed")
    names = [name] if replicas == 1 else [f"{name}-{n}" for n in range(replicas)]
    opened.submit(names, service, priority, lifetime)
    _show(out, opened, f"{name}: {service} is wanted")


@command(cluster, "withdraw", f"{HOME}:Changed")
def withdraw(
    out: Output,
    store: StoreFile,
    name: Annotated[list[str], typer.Argument(metavar="NAME...", help="Of deployments.")],
) -> None:
    """Let services end.

    $ tvm-sched cluster withdraw state.db chat
    """
    opened = _open(store)
    for one in name:
        opened.withdraw(one)
    _show(out, opened, f"{', '.join(name)}: no longer wanted")


@command(cluster, "renew", f"{HOME}:Changed")
def renew(
    out: Output,
    store: StoreFile,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of a deployment.")],
    *,
    lifetime: Annotated[float, typer.Option("--lifetime", metavar="SECONDS", help="From now on.")],
) -> None:
    """Give a service a new lifetime.

    $ tvm-sched cluster renew state.db chat --lifetime 86400
    """
    opened = _open(store)
    opened.renew(name, lifetime)
    _show(out, opened, f"{name}: ends in {lifetime:g} s")


@command(cluster, "drain", f"{HOME}:Changed")
def drain(
    out: Output,
    store: StoreFile,
    part: Annotated[str, typer.Argument(metavar="PART", help="A GPU, server, rack or link.")],
) -> None:
    """Empty a part for maintenance: its services move elsewhere without a gap, and no new ones come.

    `cluster repair CLUSTER STORE PART` puts it back into service.

    $ tvm-sched cluster drain state.db rack0-server1
    """
    opened = _open(store)
    check_part(opened, part)
    opened.mark(part, "drained")
    _show(out, opened, f"{part}: drained")


@command(cluster, "events", f"{HOME}:Events")
def events(
    out: Output,
    store: StoreFile,
    *,
    last: Annotated[int, typer.Option("--last", metavar="N", help="Lines at most.")] = 20,
) -> None:
    """Show what runs, what waits, and the last lines of the audit log.

    $ tvm-sched cluster events state.db
    """
    from ..control.control_results import Events, events_table, services_table

    opened = _open(store)
    entries = opened.events(last)
    out.show(services_table(opened), events_table(entries))
    out.result(Events(events=entries, **Events.fields(opened)))


def mark_part(out: Output, store: Path, part: str, failed: bool) -> None:
    """Mark a part of a store's cluster as failed or working: `cluster fail` and `cluster repair` on a store."""
    opened = _open(store)
    check_part(opened, part)
    opened.mark(part, "failed" if failed else None)
    _show(out, opened, f"{part}: {'failed' if failed else 'works'}")


def check_part(store: Store, part: str) -> None:
    """Raise `InputError` if the store's cluster has no such part."""
    from .. import ClusterState, load_cluster, load_services

    meta = store.meta
    ClusterState(load_cluster(meta["cluster"]), load_services(meta["services"])).parts(part)


def _open(store: Path) -> Store:
    from ..control.store import Store

    return Store(store)


def _services(store: Store) -> list[str]:
    from .. import load_services

    return [service.name for service in load_services(store.meta["services"])]


def _show(out: Output, store: Store, said: str) -> None:
    from ..control.control_results import Changed

    out.show(escape(said))
    out.result(Changed(**Changed.fields(store)))
