"""Many services on a mixed cluster: RAMPA's evaluation (IEEE TCC 2025, Figures 7 to 11) with all allocators.

Requests come in random sequences until the first one that finds no place; the services placed until then are counted.
`pipeedge` and `ncar` have fixed numbers of stages: all 288 combinations of Table IX, or `--combinations` of them drawn at
random; the best, the mean and the worst are shown. The bound holds even if the sequences were known in advance. Throughput,
latency and stages are of the demand `same` (Figures 8 to 10). With ``--resume FILE`` each measurement is kept there, and a
run that was interrupted goes on where it was.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from _checked import allocation_verdict
from _common import parser
from rich.console import Console

from tvm_sched_cluster import (
    DEMANDS,
    Allocation,
    ClusterState,
    Request,
    Service,
    ServicePlacement,
    demand_of_services,
    load_cluster,
    load_services,
    preset_names,
    requests_of,
    try_place,
    verify,
)
from tvm_sched_cluster.benchmark_kind import STAGES
from tvm_sched_cluster.bounds.mix_bound import bound_of_requests
from tvm_sched_cluster.search.cluster_search import ClusterSearch

MOST_REQUESTS = 2000
FREE, FIXED = ("anytime", "rampa", "first-fit"), ("pipeedge", "ncar")
BOUND, SCALE = "bound", "scale"
DETAILED = ("rampa-base", "same")
"""The cell of Figures 9 and 10, where the placements of methods with fixed stages are kept, too."""


class Placed(msgspec.Struct, frozen=True, array_like=True):
    """A service that found a place."""

    service: str
    stages: int
    throughput: float
    latency_ms: float
    ms: float  # to place it


class Measured(msgspec.Struct, frozen=True):
    """What a method placed of a sequence of requests; or the bound, or a run on a cluster many times as large.

    ``stages`` are the fixed numbers of stages of the services in turn; ``mean_ms`` and ``most_ms`` milliseconds of an
    attempt; ``services`` what was placed, where it is kept; ``checked`` what `tvm_sched_check.clusters` said of it.
    """

    cluster: str
    demand: str
    seed: int
    method: str
    stages: tuple[int, ...]
    placed: int
    mean_ms: float = 0.0
    most_ms: float = 0.0
    services: tuple[Placed, ...] = ()
    checked: str = ""

    @property
    def key(self) -> tuple[str, str, int, str, tuple[int, ...]]:
        """What is not measured twice."""
        return self.cluster, self.demand, self.seed, self.method, self.stages


class Kept:
    """Measurements by key; with a file, each is added to it as soon as it is there."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.found = path, dict[Any, Measured]()
        if path is not None and path.is_file():
            whole, _, rest = path.read_bytes().rpartition(b"\n")
            lines = [msgspec.json.decode(line, type=Measured) for line in whole.splitlines()]
            self.found = {line.key: line for line in lines}
            if rest:  # half a line of a run that was interrupted
                path.write_bytes(whole + b"\n" if whole else b"")

    def add(self, measured: Measured) -> None:
        """Keep one."""
        self.found[measured.key] = measured
        if self.path is not None:
            with self.path.open("ab") as file:
                file.write(msgspec.json.encode(measured) + b"\n")


def main() -> None:
    arguments = parser(__doc__ or "", models=False)
    arguments.add_argument("--clusters", default=",".join(preset_names()), metavar="NAME,NAME")
    arguments.add_argument("--demands", default=",".join(DEMANDS), metavar="NAME,NAME")
    arguments.add_argument("--sequences", type=int, default=3, metavar="N", help="of requests, seeds 0 to N - 1")
    arguments.add_argument("--combinations", type=int, default=288, metavar="N", help="of fixed numbers of stages")
    arguments.add_argument("--resume", type=Path, metavar="FILE", help="keep measurements there, and go on from them")
    given = arguments.parse_args()
    if given.quick:
        given.sequences, given.combinations = 1, 2
    from _rampa_page import write

    kept = Kept(given.resume)
    cells = list(itertools.product(given.clusters.split(","), given.demands.split(",")))
    measure(kept, cells, given.sequences, _combinations(given.combinations))
    write(kept.found.values(), cells, given.sequences, given.combinations, given.json, given.markdown)


def measure(kept: Kept, cells: Sequence[tuple[str, str]], sequences: int, combinations: Sequence[Any]) -> None:
    """Whatever is missing, sequence after sequence."""
    searches = {name: ClusterSearch(load_cluster(name)) for name, _ in cells}
    services = load_services()
    fixed = [[(method, stages) for stages in combinations] for method in FIXED]
    groups: list[list[tuple[str, dict[str, int]]]] = [[(method, {}) for method in FREE], *fixed]
    for seed, runs, (name, demand) in itertools.product(range(sequences), groups, cells):
        Console(stderr=True).print(
            f"{name}, {demand}, sequence {seed}: {', '.join(dict.fromkeys(method for method, _ in runs))}"
        )
        asked = requests_of(demand_of_services(demand, services), MOST_REQUESTS, seed)
        if (name, demand, seed, BOUND, ()) not in kept.found:
            bound = bound_of_requests(searches[name], services, asked)
            kept.add(Measured(name, demand, seed, BOUND, (), int(bound)))
        for method, stages in runs:
            known = kept.found.get((name, demand, seed, method, tuple(stages.values())))
            if known is None or (not stages and not known.checked):
                kept.add(_measured(searches[name], services, asked, (name, demand, seed, method), stages))
        if runs[0][0] in FIXED:  # the best of all is placed once more, and checked
            of_method = [m for m in kept.found.values() if m.key[:4] == (name, demand, seed, runs[0][0])]
            best = max(of_method, key=lambda m: (m.placed, m.checked))
            if not best.checked:
                stages = dict(zip(STAGES, best.stages, strict=True))
                kept.add(_measured(searches[name], services, asked, best.key[:4], stages, check=True))
    if (SCALE, "", 0, "anytime", ()) not in kept.found:
        kept.add(_scale())


def _measured(
    search: ClusterSearch,
    services: Sequence[Service],
    asked: Sequence[Request],
    key: tuple[str, str, int, str],
    stages: dict[str, int],
    check: bool = False,
) -> Measured:
    """Place requests; without fixed stages, or where it is wanted, the allocation and the bound are checked."""
    allocation, *ms = _run(search, services, asked, key[3], {"stages": stages} if stages else {})
    detailed = key[:2] == DETAILED or (key[1] == DETAILED[1] and not stages)
    told = tuple(map(_told, allocation.placements)) if detailed else ()
    said = allocation_verdict(search, services, asked, allocation) if check or not stages else ""
    return Measured(*key, tuple(stages.values()), len(allocation.placements), *ms, told, said)


def _told(placed: ServicePlacement) -> Placed:
    figures = placed.throughput, placed.latency_ns / 1e6, 1e3 * placed.seconds
    return Placed(placed.service, len(placed.stages), *(float(f"{figure:.6g}") for figure in figures))


def _scale(times: int = 7) -> Measured:
    """An allocation on as many racks as the large cluster has several times, for its switches."""
    large, services = load_cluster("rampa-large"), load_services()
    racks = tuple(
        msgspec.structs.replace(
            rack,
            name=f"{rack.name}x{i}",
            servers=tuple(msgspec.structs.replace(server, name=f"{server.name}x{i}") for server in rack.servers),
        )
        for i in range(times)
        for rack in large.racks
    )
    cluster = msgspec.structs.replace(large, racks=racks)
    asked = [Request(f"r{n}", service.name) for n, service in enumerate(services * 10)]
    allocation, *ms = _run(ClusterSearch(cluster), services, asked, "anytime", {})
    return Measured(SCALE, "", 0, "anytime", (), len(allocation.placements), *ms)


def _combinations(count: int) -> list[dict[str, int]]:
    """Numbers of stages for each service: all of Table IX, or a sample of them."""
    ranges = [range(least, most + 1) for least, most in STAGES.values()]
    all_of_them = [dict(zip(STAGES, stages, strict=True)) for stages in itertools.product(*ranges)]
    chosen = np.random.default_rng(0).permutation(len(all_of_them))[:count]
    return [all_of_them[i] for i in sorted(chosen)]


def _run(
    search: ClusterSearch, services: Sequence[Service], requests: Sequence[Request], method: str, options: Any
) -> tuple[Allocation, float, float]:
    """What is placed until the first failure; mean and most milliseconds of an attempt."""
    state = ClusterState(search.cluster, services, search)
    ms = list(_attempts(state, requests, method, options))
    if not options:  # each placement was verified by itself; of 288 combinations, all placements together are not again
        verify(search.cluster, services, state.allocation)
    return state.allocation, sum(ms) / len(ms), max(ms)


def _attempts(state: ClusterState, requests: Sequence[Request], method: str, options: Any) -> Iterator[float]:
    for request in requests:
        begin = time.perf_counter()
        placement = try_place(state, request, method, options)
        yield 1e3 * (time.perf_counter() - begin)
        if placement is None:
            return


if __name__ == "__main__":
    main()
