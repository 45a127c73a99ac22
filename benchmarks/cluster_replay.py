"""Allocators judged over time: pods on FGD's and on more unequal nodes, RAMPA's sequences with lifetimes, faults, scale.

Reads ``../shared/data``, or the folder ``TVM_SCHED_DATA``. Sections whose data is missing are left out, with the reason.
`anytime`'s settings for pods were chosen on FGD's workload `default` with seeds 42 and 43, so seeds from 47 on are shown.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import multiprocessing
import os
import resource
import tempfile
from pathlib import Path
from statistics import mean, stdev

from _common import parser
from _result_page import NONE, Page, Row, write_json

from tvm_sched_cluster import Cluster, ClusterState, Link, Rack, Server, Switch, load_cluster, load_services
from tvm_sched_cluster.admission import AdmissionRules
from tvm_sched_cluster.files.named_files import demand_of_services
from tvm_sched_cluster.pods.pod_replay import replay_pods
from tvm_sched_cluster.pods.pod_trace import MILLI, Node, draw_pods, read_nodes, read_pods
from tvm_sched_cluster.replay.simulation import Replayed, ReplayOptions, replay
from tvm_sched_cluster.replay.traces import draw_faults, poisson_requests, read_load_times, read_trace

DATA = Path(os.environ.get("TVM_SCHED_DATA", Path(__file__).parents[2] / "shared" / "data"))
POLICIES = ("anytime", "rampa", "ncar", "pipeedge", "first-fit", "best-fit", "fgd")
PARTS = ("fgd", "nodes", "services", "scale")
AT_ONCE = 240
NOTES = """\
Times are processor times on a machine that others shared. Requests that find no place when they come are lost. Bounds hold
for every policy, even one that knows what comes."""
HEAD = ("accepted, %", "bound, %", "running, % of bound", "fragmented, %", "moves", "unavailable, s", "decision, ms")


def fgd(page: Page, workloads: list[str], seeds: range) -> list[Row]:
    """Compare with the published allocations of FGD's policies."""
    page.text("## FGD's pods on 1,213 nodes: GPUs allocated when pods have asked for 130 % of them, %")
    folder, rows, lines = DATA / "fgd", [], []
    if not folder.is_dir():
        page.text("Left out: shared/data/fgd is not there.")
        return []
    nodes = read_nodes(folder / "nodes.csv")
    gpus = sum(node.gpus for node in nodes)
    expected = json.loads((folder / "expected_allocation.json").read_text())["workloads"]
    for workload in workloads:
        pods = read_pods(folder / f"pods_{workload}.csv.gz")
        line, bound = [workload], 0.0
        for policy, name in (("best-fit", "BestFit"), ("fgd", "FGD"), ("anytime", "")):
            runs = [
                replay_pods(nodes, draw_pods(pods, gpus, 1.3, s), policy, pods, s, policy == "anytime") for s in seeds
            ]
            own = [100 * run.allocated for run in runs]
            theirs = [each["last"] for each in expected[workload][name]] if name else []
            line += [spread(own), *([spread(theirs)] if theirs else [])]
            rows.append(Row(workload, policy, mean(own), "% allocated", mean(theirs) if theirs else None, "published"))
            bound = 100 * mean(run.bound or 0.0 for run in runs)
        lines.append([*line, f"{bound:.2f}"])
    page.table(("workload", "best-fit", "published", "fgd", "published", "anytime", "bound"), lines)
    page.text(
        f"Mean and standard deviation of seeds {seeds[0]} to {seeds[-1]}; the published ones are of seeds 42 to 51, with "
        "pods that their program draws. The bound may refuse pods that find room; the policies never do. best-fit and fgd "
        "score and break ties as the authors' program ([rules](../cluster.md#replay-of-weeks))."
    )
    return rows


def unequal_nodes(page: Page, seeds: range) -> list[Row]:
    """Place FGD's default pods on the nodes of the spot trace, whose kinds and numbers of GPUs are less equal."""
    page.text("## FGD's pods `default` on 4,278 nodes with 1, 4 or 8 GPUs of six kinds: GPUs allocated at 130 %, %")
    table, file = DATA / "spot_gpu" / "nodes.csv", DATA / "fgd" / "pods_default.csv.gz"
    if not (table.is_file() and file.is_file()):
        page.text("Left out: shared/data/spot_gpu or fgd is not there.")
        return []
    with table.open() as text:
        nodes = [
            Node(MILLI * int(row["cpu_num"]), 1 << 40, int(row["gpu_capacity_num"]), row["gpu_model"])
            for row in csv.DictReader(text)
        ]
    pods, gpus, lines, rows = read_pods(file), sum(node.gpus for node in nodes), [], []
    for policy in ("anytime", "fgd", "best-fit", "first-fit"):
        runs = [replay_pods(nodes, draw_pods(pods, gpus, 1.3, s), policy, pods, s, policy == "anytime") for s in seeds]
        own = [100 * run.allocated for run in runs]
        bound = f"{100 * mean(run.bound or 0.0 for run in runs):.2f}" if policy == "anytime" else NONE
        lines.append([policy, spread(own), bound, f"{mean(run.decision_ms for run in runs):.2f}"])
        rows.append(Row("unequal nodes", policy, mean(own), "% allocated"))
    page.table(("policy", "allocated", "bound", "decision, ms"), lines)
    page.text(
        f"{len(nodes):,} nodes, {gpus:,} GPUs; seeds {seeds[0]} to {seeds[-1]}. The trace states no memory, so none is "
        "limited, and its jobs are not public, so the pods are FGD's. Nobody has published figures for this mix."
    )
    return rows


def spread(values: list[float]) -> str:
    """Return mean and standard deviation."""
    return f"{mean(values):.2f} ± {stdev(values):.2f}" if len(values) > 1 else f"{values[0]:.2f}"


def line(name: str, made: Replayed) -> list[str]:
    """Return the row of a replay."""
    bound = NONE if made.accepted_bound is None else f"{100 * made.accepted_bound / made.requests:.1f}"
    return [
        name, f"{100 * made.acceptance:.1f}", bound, f"{100 * (made.running_to_bound or 0):.1f}",
        f"{100 * made.fragmentation:.1f}", f"{made.moves}", f"{made.unavailable:.0f}", f"{made.decision_ms['mean']:.2f}",
    ]  # fmt: skip


def services(page: Page, policies: tuple[str, ...], count: int) -> list[Row]:
    """Replay RAMPA's sequences, and bursts of Azure's requests with faults and moves."""
    cluster, known, rows = load_cluster("rampa-base"), load_services(), []
    state = ClusterState(cluster, known)
    page.text(f"## RAMPA's sequences on rampa-base, lifetimes scaled so that {AT_ONCE} services would run at once")
    for case in range(1, 5):
        file = DATA / "rampa" / "sequences" / f"case{case}-seq2.txt"
        if not file.is_file():
            page.text("Left out: shared/data/rampa is not there.")
            break
        asked = read_trace(file, {}, 1, AT_ONCE / 10, 0)[:count]
        made = {policy: replay(ClusterState(cluster, known, state.search), asked, policy) for policy in policies}
        page.table((f"case {case}, sequence 2", *HEAD), [line(policy, each) for policy, each in made.items()])
        rows += [Row(f"case {case}", policy, 100 * each.acceptance, "% accepted") for policy, each in made.items()]
    page.text("## Arrivals of Azure's conversations, load times of GenTD26, failing servers, moves each 30 s")
    azure, loads = DATA / "azure_llm" / "conv.csv.gz", DATA / "gentd26" / "basemodel_update_latency_anon.tar.gz"
    if not (azure.is_file() and loads.is_file()):
        page.text("Left out: shared/data/azure_llm or gentd26 is not there.")
    else:
        asked, times = azure_requests(azure, loads, known, 2 * count)
        faults = draw_faults(cluster, 6000, 60, asked[-1].time, 1)
        how = ReplayOptions(load_times=times, defragment_every=30, moves=3, seed=1)
        made = {
            p: replay(ClusterState(cluster, known, state.search), asked, p, faults=faults, settings=how)
            for p in policies
        }
        page.table(("policy", *HEAD), [line(policy, each) for policy, each in made.items()])
        rows += [Row("Azure, faults", policy, 100 * each.acceptance, "% accepted") for policy, each in made.items()]
    page.text("## Admission under overload: 300 services offered, anytime", "Accepted by service, %:")
    asked, lines = poisson_requests(demand_of_services("same", known), 3 * count, 300, 86400, 1), []
    for name, slack in (("no rule", None), ("slack 0.05", 0.05)):
        how = ReplayOptions(admission=AdmissionRules({}, slack))
        each = replay(ClusterState(cluster, known, state.search), asked, settings=how, bounds=False)
        parts = [100 * one.accepted / one.requests for one in each.services.values()]
        lines.append([name, f"{100 * each.acceptance:.1f}", *(f"{part:.0f}" for part in parts)])
    page.table(("rule", "all", *each.services), lines)
    return rows


def azure_requests(azure: Path, loads: Path, known: tuple, count: int) -> tuple[list, tuple[float, ...]]:
    """Read the first requests, with drawn services and lifetimes, and the load times."""
    import tarfile

    with tempfile.TemporaryDirectory() as folder:
        trace, table = Path(folder) / "trace.csv", Path(folder) / "loads.csv"
        trace.write_bytes(gzip.decompress(azure.read_bytes()))
        with tarfile.open(loads) as archive:
            table.write_bytes(archive.extractfile(archive.getnames()[0]).read())  # type: ignore[union-attr]
        asked = read_trace(trace, demand_of_services("same", known), 45.0, 1.0, 1)[:count]
        return asked, read_load_times(table)


def wide(gpus: int) -> Cluster:
    """Return racks in a row, of the kinds of rampa-base in turns."""
    base = load_cluster("rampa-base")
    size = 24 if gpus < 1000 else 40
    racks = max(len(base.kinds), round(gpus / size))
    made, link = [], base.links[0]
    for r in range(racks):
        kind = base.kinds[r % len(base.kinds)].name
        servers = tuple(Server(f"rack{r}-server{i}", kind, 8) for i in range(size // 8))
        made.append(Rack(f"rack{r}", f"sw{r}", servers, base.racks[0].bandwidth, base.racks[0].delay))
    switches = tuple(Switch(f"sw{r}", base.switches[0].delay) for r in range(racks))
    links = tuple(Link((f"sw{r}", f"sw{r + 1}"), link.bandwidth, link.delay, 8) for r in range(racks - 1))
    return Cluster(f"wide-{gpus}", base.kinds, switches, tuple(made), links)


def measure(gpus: int, requests: int) -> tuple[int, Replayed, float, float]:
    """Replay on a filled cluster in a process of its own; return GPUs, figures, processor seconds and MiB."""
    import time

    cluster, known = wide(gpus), load_services()
    asked = poisson_requests(demand_of_services("same", known), requests, len(cluster.gpus) / 3.3, 86400, 1)
    begin = time.process_time()
    made = replay(ClusterState(cluster, known), asked, settings=ReplayOptions(windows=5), bounds=False)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return len(cluster.gpus), made, time.process_time() - begin, most


def scale(page: Page, sizes: dict[int, int]) -> list[Row]:
    """Measure a decision and memory over the number of GPUs."""
    page.text("## Scale: anytime, as many services offered as there are GPUs / 3.3")
    found = []
    for gpus, requests in sizes.items():
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found.append(pool.apply(measure, (gpus, requests)))
    head = (
        "GPUs", "requests", "accepted, %", "GPUs used at the end, %", "decision, ms: mean", "99th percentile", "replay, s",
        "memory, MiB",
    )  # fmt: skip
    page.table(head, [
        (f"{gpus:,}", f"{made.requests:,}", f"{100 * made.acceptance:.1f}", f"{100 * made.windows[-1].used:.0f}",
         f"{made.decision_ms['mean']:.2f}",
         f"{made.decision_ms['99th percentile']:.1f}", f"{seconds:.0f}", f"{memory:.0f}")
        for gpus, made, seconds, memory in found
    ])  # fmt: skip
    (small, first, *_), (large, last, *_) = found[0], found[-1]
    exponent = math.log(last.decision_ms["mean"] / first.decision_ms["mean"]) / math.log(large / small)
    page.text(f"The time of a decision grows with the number of GPUs to the power of {exponent:.2f}.")
    return [Row(f"{gpus:,} GPUs", "anytime", made.decision_ms["mean"], "ms a decision") for gpus, made, *_ in found]


def main() -> None:
    """Run all sections."""
    arguments = parser(__doc__)
    arguments.add_argument("--seeds", type=int, default=5, help="seeds of FGD's pods, from 47 on")
    arguments.add_argument("--workloads", nargs="*", default=["default", "gpuspec33", "gpushare100", "multigpu50"])
    arguments.add_argument("--requests", type=int, default=1000, help="of each of RAMPA's sequences")
    arguments.add_argument("--large", type=int, default=100_000, help="requests on 10,000 GPUs")
    arguments.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS, help="of the page")
    given = arguments.parse_args()
    page, rows = Page("A cluster over time", given.markdown, notes=NOTES), []
    seeds = range(47, 47 + (1 if given.quick else given.seeds))
    if "fgd" in given.parts:
        rows += fgd(page, given.workloads, seeds)
    if "nodes" in given.parts:
        rows += unequal_nodes(page, seeds)
    if "services" in given.parts:
        rows += services(page, POLICIES[::4] if given.quick else POLICIES, 100 if given.quick else given.requests)
    if "scale" in given.parts:
        sizes = {100: given.requests, 1000: given.requests, 10_000: given.large, 100_000: given.requests}
        rows += scale(page, dict.fromkeys((100, 1000), 100) if given.quick else sizes)
    write_json(given.json, [row.__dict__ for row in rows])
    page.write()


if __name__ == "__main__":
    main()
