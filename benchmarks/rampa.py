"""Many services on a mixed cluster: RAMPA's evaluation (IEEE TCC 2025, Figures 7 to 11) with all allocators.

Requests come in random sequences until the first one that finds no place; the services placed until then are counted.
`pipeedge` and `ncar` have fixed numbers of stages: of the 288 combinations of Table IX, `--combinations` are drawn, and
the best, the mean and the worst of them are shown. The bound holds even if the sequences were known in advance.
Throughput, latency and stages are of the demand `same` (Figures 8 to 10). With ``--resume FILE`` finished cells are kept
there, and a run that was interrupted goes on where it was.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from _common import Row, parser, report
from rich.console import Console

from tvm_sched.bench.kinds.cluster import STAGES
from tvm_sched.cluster import (
    DEMANDS,
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
from tvm_sched.cluster.bound import bound_of_requests
from tvm_sched.cluster.search import ClusterSearch

REFERENCES = {
    ("rampa-base", "same"): 201,
    ("rampa-base", "high-throughput"): 217,
    ("rampa-base", "low-delay"): 286,
    ("rampa-base", "huge-model"): 142,
    ("rampa-large", "same"): 441,
    ("rampa-large", "high-throughput"): 483,
    ("rampa-large", "low-delay"): 641,
    ("rampa-large", "huge-model"): 314,
}
"""What the authors' code placed, with its slips in units and formulas, on a sequence of its own."""

MOST_REQUESTS = 2000


@dataclass(frozen=True)
class Run:
    """The services of a sequence that were placed before the first failure, and seconds of all attempts."""

    placed: Sequence[ServicePlacement]
    seconds: Sequence[float]


def main() -> None:
    arguments = parser(__doc__ or "", models=False)
    arguments.add_argument("--clusters", default=",".join(preset_names()), metavar="NAME,NAME")
    arguments.add_argument("--demands", default=",".join(DEMANDS), metavar="NAME,NAME")
    arguments.add_argument("--sequences", type=int, default=3, metavar="N", help="of requests, seeds 0 to N - 1")
    arguments.add_argument("--combinations", type=int, default=288, metavar="N", help="of fixed numbers of stages")
    arguments.add_argument("--resume", type=Path, metavar="FILE", help="keep finished cells there, and go on from them")
    given = arguments.parse_args()
    if given.quick:
        given.sequences, given.combinations = 1, 2
    done = _Cells(given.resume)
    rows: list[Row] = []
    for name in given.clusters.split(","):
        search = ClusterSearch(load_cluster(name))
        for demand in given.demands.split(","):
            key = f"{name}, {demand}, {given.sequences} sequences, {given.combinations} combinations"
            if key not in done.rows:
                done.add(key, list(_cell(search, demand, given.sequences, _combinations(given.combinations))))
            rows += done.rows[key]
    if "scale" not in done.rows:
        done.add("scale", list(_scale()))
    rows += done.rows["scale"]
    title = f"Services on mixed clusters, {given.sequences} sequences"
    report(title, rows, given.json, given.markdown, notes=_summary(rows, given.sequences, given.combinations))


class _Cells:
    """The rows of finished cells; with a file, they are written as soon as they are there."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.rows = path, dict[str, list[Row]]()
        if path is not None and path.is_file():
            self.rows = msgspec.json.decode(path.read_bytes(), type=dict[str, list[Row]])

    def add(self, key: str, rows: list[Row]) -> None:
        self.rows[key] = rows
        if self.path is not None:
            beside = self.path.with_suffix(".tmp")
            beside.write_bytes(msgspec.json.encode(self.rows))
            beside.replace(self.path)


NOTES = """
RAMPA's evaluation (IEEE TCC 2025, Figures 7 to 11): services placed before the first one that finds no place, by the
formulas of [the model](../model.md#clusters). Means over {sequences} random sequences of requests with the probabilities of
Table IV; the bound holds even if the sequences were known in advance. `anytime` knows no demand in advance: it
counts what was asked for. `ncar` and `pipeedge` have fixed numbers of stages: of the paper's 288 combinations {combinations}
were drawn, and the best is shown here. What the authors' code placed, its slips included, is in the table below; its
sequences were its own.

`anytime` places most on {most} of {cells} cells.

| cluster, demand | {methods} |
|---|{rule}
{lines}
"""
SHOWN = ("bound", "anytime", "rampa", "first-fit", "ncar best", "pipeedge best")


def _summary(rows: Sequence[Row], sequences: int, combinations: int) -> str:
    """What all methods placed, a line for each cluster and demand."""
    cells: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.unit in ("placed", "bound"):
            what = "bound" if row.unit == "bound" else row.method
            cells.setdefault(row.case, {})[what] = row.figure
    most = sum(
        all(placed["anytime"] > placed[other] for other in SHOWN if other not in ("bound", "anytime"))
        for placed in cells.values()
    )
    best = {case: max(placed[name] for name in SHOWN if name != "bound") for case, placed in cells.items()}
    lines = [
        f"| {case} | "
        + " | ".join(
            f"**{placed[name]:g}**" if name != "bound" and placed[name] == best[case] else f"{placed[name]:g}"
            for name in SHOWN
        )
        + " |"
        for case, placed in cells.items()
    ]
    return NOTES.format(
        sequences=sequences,
        combinations=combinations,
        most=most,
        cells=len(cells),
        methods=" | ".join(SHOWN),
        rule="---|" * len(SHOWN),
        lines="\n".join(lines),
    ).rstrip()


def _scale(times: int = 7) -> Iterator[Row]:
    """Seconds of an allocation on as many racks as the large cluster has several times, for its switches."""
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
    run = _run(ClusterSearch(cluster), services, asked, "anytime", {})
    yield from _seconds(f"{len(cluster.gpus)} GPUs, {len(asked)} requests", "anytime", [run])


def _combinations(count: int) -> list[dict[str, int]]:
    """Numbers of stages for each service: all of Table IX, or a sample of them."""
    ranges = [range(least, most + 1) for least, most in STAGES.values()]
    all_of_them = [dict(zip(STAGES, stages, strict=True)) for stages in itertools.product(*ranges)]
    chosen = np.random.default_rng(0).permutation(len(all_of_them))[:count]
    return [all_of_them[i] for i in sorted(chosen)]


def _cell(search: ClusterSearch, demand: str, sequences: int, combinations: Sequence[dict[str, int]]) -> Iterator[Row]:
    """All rows of one cluster and one demand."""
    services = load_services()
    case = f"{search.cluster.name}, {demand}"
    Console(stderr=True).print(case)
    weights = demand_of_services(demand, services)
    asked = [requests_of(weights, MOST_REQUESTS, seed) for seed in range(sequences)]
    bound = float(np.mean([bound_of_requests(search, services, requests) for requests in asked]))
    reference = REFERENCES.get((search.cluster.name, demand))
    yield Row(case, "any allocator, at most", bound, "bound")
    for method in ("anytime", "rampa", "first-fit"):
        runs = [_run(search, services, requests, method, {}) for requests in asked]
        placed = float(np.mean([len(run.placed) for run in runs]))
        yield Row(case, method, placed, "placed", reference if method == "rampa" else None, "authors' code")
        yield from _seconds(case, method, runs)
        if demand == "same":
            yield from _services(case, method, runs)
    for method in ("pipeedge", "ncar"):
        yield from _fixed(search, services, asked, method, combinations, case)


def _fixed(
    search: ClusterSearch,
    services: Sequence[Service],
    asked: Sequence[Sequence[Request]],
    method: str,
    combinations: Sequence[dict[str, int]],
    case: str,
) -> Iterator[Row]:
    """The best, the mean and the worst combination of fixed numbers of stages."""
    outcomes = []
    for stages in combinations:
        runs = [_run(search, services, requests, method, {"stages": stages}) for requests in asked]
        outcomes.append((float(np.mean([len(run.placed) for run in runs])), tuple(stages.values()), runs))
    best, worst = max(outcomes, key=lambda o: o[0]), min(outcomes, key=lambda o: o[0])
    yield Row(case, f"{method} best", best[0], "placed", note=_stages(best[1]))
    yield from _seconds(case, f"{method} best", best[2])
    yield Row(case, f"{method} mean", float(np.mean([o[0] for o in outcomes])), "placed")
    yield Row(case, f"{method} worst", worst[0], "placed", note=_stages(worst[1]))


def _stages(counts: Sequence[int]) -> str:
    """The numbers of stages of a combination, service after service."""
    return f"stages {' '.join(map(str, counts))}"


def _run(
    search: ClusterSearch,
    services: Sequence[Service],
    requests: Sequence[Request],
    method: str,
    options: Mapping[str, Any],
) -> Run:
    state = ClusterState(search.cluster, services, search)
    seconds = []
    for request in requests:
        begin = time.perf_counter()
        placement = try_place(state, request, method, options)
        seconds.append(time.perf_counter() - begin)
        if placement is None:
            break
    verify(search.cluster, services, state.allocation)
    return Run(list(state.running.values()), seconds)


def _seconds(case: str, method: str, runs: Sequence[Run]) -> Iterator[Row]:
    seconds = [s for run in runs for s in run.seconds]
    yield Row(case, method, 1e3 * float(np.mean(seconds)), "ms an allocation")
    yield Row(case, method, 1e3 * max(seconds), "slowest, ms")


def _services(case: str, method: str, runs: Sequence[Run]) -> Iterator[Row]:
    """Means over the placements of each service: stages, throughput, latency, time to place."""
    placed = [placement for run in runs for placement in run.placed]
    for service in sorted({placement.service for placement in placed}):
        own = [placement for placement in placed if placement.service == service]
        line = f"{case}, {service}"
        yield Row(line, method, float(np.mean([len(p.stages) for p in own])), "stages")
        yield Row(line, method, float(np.mean([p.throughput for p in own])), "inputs a second")
        yield Row(line, method, float(np.mean([p.latency_ns for p in own])) / 1e6, "latency, ms")
        yield Row(line, method, 1e3 * float(np.mean([p.seconds for p in own])), "ms an allocation")


if __name__ == "__main__":
    main()
