"""Gaps of `anytime`, and its losses to other methods, on machines and graphs that a seed draws.

A case is a machine of 1 to 16 GPUs, of up to three models out of 20, with buses of real speeds that are shared or not, and
with NVLink pairs, a mesh, a switch, no peer access or a disk; and a graph: one of three real networks at a random width
and batch, a decoder, a task graph, or two networks at once. Each case runs cold and with all parameters on the devices.
Cases with an even number may be looked at and are listed; the others are held out and appear in sums only. Use a new
seed for each page.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from statistics import median, quantiles
from time import process_time
from typing import Any

import msgspec
from _common import parser
from _result_page import PREDICTED, Page

from tvm_sched.cost_model import roofline
from tvm_sched.relax.decoders.decoder_graph import decoder_graph
from tvm_sched.schedulers import solve
from tvm_sched_bench.testing.task_graphs import FAMILIES, task_graph
from tvm_sched_runtime.errors import TvmSchedError
from tvm_sched_runtime.problem import (
    Bus,
    Device,
    Link,
    OpGraph,
    Problem,
    Storage,
    Switch,
    Topology,
    Workload,
    merge_graphs,
    problem_of,
)
from tvm_sched_runtime.problem.decoder_config import PRESETS
from tvm_sched_runtime.schedule import requests_of

MODELS = Path(__file__).parent / "instances" / "models"
OTHERS = ("single", "heft", "peft", "hios-lp", "hios-mr", "deepplan", "sortinghat")
HALVES = {0: "looked at", 1: "for the page alone"}

KINDS = {
    "P100": (16, 732, 9.3), "V100": (32, 900, 15.7), "T4": (16, 320, 8.1), "A100": (40, 1555, 19.5),
    "A100-80": (80, 2039, 19.5), "A30": (24, 933, 10.3), "A10": (24, 600, 31.2), "A10G": (24, 600, 31.2),
    "A40": (48, 696, 37.4), "L4": (24, 300, 30.3), "L40S": (48, 864, 91.6), "H100": (80, 3350, 67.0),
    "H200": (141, 4800, 67.0), "RTX 2080 Ti": (11, 616, 13.4), "RTX 3060": (12, 360, 12.7),
    "RTX 3090": (24, 936, 35.6), "RTX 4090": (24, 1008, 82.6), "RTX A4000": (16, 448, 19.2),
    "RTX A6000": (48, 768, 38.7), "RTX 6000 Ada": (48, 960, 91.1),
}  # fmt: skip
"""Memory in GB, its bandwidth in GB/s and float32 TFLOP/s, from data sheets."""

BUSES = (6e9, 12e9, 25e9, 50e9)
"""Bytes a second of PCIe 3.0 x8 and x16, 4.0 x16 and 5.0 x16, as copies reach them."""


def draw_machine(dice: random.Random) -> Topology:
    """Draw a machine."""
    count, kinds = dice.choice((1, 2, 2, 3, 4, 4, 6, 8, 16)), dice.sample(sorted(KINDS), dice.choice((1, 1, 2, 3)))
    shared, rate, latency = dice.choice((1, 1, 2, 4)), dice.choice(BUSES), dice.choice((2e-6, 10e-6))
    buses = tuple(Bus(f"pcie{b}", rate, latency) for b in range(-(-count // shared)))
    devices = []
    for d, kind in enumerate(sorted(dice.choices(kinds, k=count))):
        memory, bandwidth, peak = KINDS[kind]
        devices.append(
            Device(
                f"gpu{d}", memory * 10**9, bandwidth * 1e9, {"float32": peak * 1e12}, bus=f"pcie{d // shared}",
                model=kind, launch_overhead=5e-6,
            )
        )  # fmt: skip
    names, wiring = [device.name for device in devices], dice.choice(("none", "pairs", "mesh", "switch", "no peers"))
    links = {
        "pairs": [(a, b) for a, b in zip(names[::2], names[1::2], strict=False)],
        "mesh": [(a, b) for k, a in enumerate(names) for b in names[k + 1 :]] if count <= 8 else [],
    }.get(wiring, [])
    return Topology(
        f"{count} GPUs ({', '.join(sorted({device.model for device in devices}))}; {wiring}; {shared} a bus)",
        tuple(devices),
        buses,
        tuple(Link((a, b), dice.choice((25e9, 50e9)), 2e-6) for a, b in links),
        (Switch("nvswitch", tuple(names), 250e9, 2e-6),) if wiring == "switch" and count > 1 else (),
        peer_access=wiring != "no peers",
        storage=Storage("disk", dice.choice((0.5e9, 3.5e9, 7e9)), 80e-6) if dice.random() < 0.2 else msgspec.UNSET,
    )


def draw_graph(dice: random.Random) -> OpGraph:
    """Draw a graph."""
    kind = dice.choice(("network", "network", "network", "decoder", "tasks", "two networks"))
    if kind == "tasks":
        return task_graph(dice.choice(sorted(FAMILIES)), dice.randrange(1000))
    if kind == "decoder":
        config = msgspec.structs.replace(
            PRESETS[dice.choice(("gpt2-large", "openllama-3b"))], layers=dice.randint(4, 16)
        )
        return decoder_graph(config, dice.choice((1, 4)), dice.choice((16, 64, 256)))
    networks = [_network(dice) for _ in range(2 if kind == "two networks" else 1)]
    return networks[0] if len(networks) == 1 else merge_graphs(networks)


def _network(dice: random.Random) -> OpGraph:
    """Draw a real network; its width multiplies channels, its batch activations."""
    graph = Problem.load(dice.choice(sorted(MODELS.glob("*.json.gz")))).graph
    width, batch = dice.choice((0.5, 0.75, 1.0, 1.5)), dice.choice((1, 1, 2, 8))
    factor = {"parameter": width * width, "activation": width * batch, "input": batch}
    tensors = tuple(
        msgspec.structs.replace(t, size=max(1, int(t.size * factor[t.kind])), shape=()) for t in graph.tensors
    )
    operators = tuple(
        msgspec.structs.replace(
            o, flops=int(o.flops * width * width * batch), read_bytes=msgspec.UNSET, demand=msgspec.UNSET
        )
        for o in graph.operators
    )
    return msgspec.structs.replace(
        graph, name=f"{graph.name} width {width:g} batch {batch}", operators=operators, tensors=tensors
    )


def draw(seed: int, number: int) -> Problem:
    """Draw a case of a seed."""
    dice = random.Random(f"{seed}/{number}")
    return problem_of(draw_graph(dice), (), draw_machine(dice), roofline, joinable=True)


def run(seed: int, number: int, work: float, limit: float) -> list[dict[str, Any]]:
    """Return the results of a case, cold and warm; empty if no schedule fits into memory.

    SortingHat gets ``limit`` seconds for all submodels of a run.
    """
    rows = []
    for kind, part in (("cold", 0.0), ("warm", 1.0)):
        try:
            problem = draw(seed, number)
            workload, before = Workload(requests_of(problem, part)), process_time()
            found = solve(problem, workload, "anytime", {"work": work}).certificate
        except TvmSchedError as error:
            print(f"case {number}: {error}", file=sys.stderr)
            continue
        assert found is not None
        seconds, others = process_time() - before, {}
        for method in OTHERS:
            try:
                limits = {"total_time_limit": limit} if method == "sortinghat" else {}
                answer = solve(problem, workload, method, limits).certificate
                others[method] = answer.latency_ns if answer else None
            except TvmSchedError:
                others[method] = None
        name = f"{problem.graph.name} on {problem.topology.name}"
        row = {"seed": seed, "number": number, "kind": kind, "name": name, "work": work, "value": found.latency_ns}
        rows.append(row | {"bound": found.lower_bound_ns, "seconds": seconds, "others": others})
    return rows


def write(page: Page, results: list[dict[str, Any]], work: float, limit: float) -> None:
    """Write the page: figures of both halves, and the cases that are looked at."""
    found = [(ns, r["value"]) for r in results for ns in r["others"].values() if ns is not None]
    page.text(*(__doc__ or "").split("\n\n", 1)[1].strip().split("\n"), "")
    page.text(
        f"Seeds {sorted({r['seed'] for r in results})}, {work:g} s of work a search. {PREDICTED} Slower than another method "
        f"({', '.join(OTHERS)}, the last with {limit:g} s by the clock): {sum(ns < value for ns, value in found)} of "
        f"{len(found)} comparisons with a schedule of it.",
        "",
    )
    rows = []
    for part, half in HALVES.items():
        for kind in ("cold", "warm"):
            gaps = sorted(1 - r["bound"] / r["value"] for r in results if r["number"] % 2 == part and r["kind"] == kind)
            if gaps:
                ninth = quantiles(gaps, n=10, method="inclusive")[-1] if len(gaps) > 1 else gaps[0]
                rows.append((half, kind, len(gaps), f"{median(gaps):.1%}", f"{ninth:.1%}", f"{gaps[-1]:.1%}"))
    page.table(("half", "runs", "cases", "median gap", "90th percentile", "largest"), rows)
    page.text("## Cases that are looked at", "")
    seen = sorted((r for r in results if r["number"] % 2 == 0), key=lambda r: r["bound"] / r["value"])
    page.table(
        ("case", "runs", "latency, ms", "bound, ms", "gap"),
        [
            (
                r["name"],
                r["kind"],
                f"{r['value'] / 1e6:.3f}",
                f"{r['bound'] / 1e6:.3f}",
                f"{1 - r['bound'] / r['value']:.1%}",
            )
            for r in seen
        ],
    )


def main() -> None:
    """Run the cases that the file of results lacks, and write the page."""
    arguments = parser(__doc__)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--cases", type=int, default=100)
    arguments.add_argument("--work", type=float, default=1.0, help="seconds of work on an idle core")
    arguments.add_argument("--sortinghat", type=float, default=5.0, metavar="SECONDS", help="for all its submodels")
    arguments.add_argument("--results", type=Path, required=True, metavar="FILE.jsonl", help="a run goes on there")
    options = arguments.parse_args()
    done = [json.loads(line) for line in options.results.read_text().splitlines()] if options.results.exists() else []
    known = {(r["seed"], r["number"], r["work"]) for r in done}
    for number in range(4 if options.quick else options.cases):
        if (options.seed, number, options.work) not in known:
            rows = run(options.seed, number, options.work, options.sortinghat)
            done += rows
            with options.results.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
            for row in rows:
                gap = 1 - row["bound"] / row["value"]
                print(number, row["kind"], f"{gap:.1%}", row["name"], f"{row['seconds']:.0f} s", file=sys.stderr)
    page = Page("Machines and graphs of strangers", options.markdown)
    kept = [r for r in done if (r["seed"], r["work"]) == (options.seed, options.work)]
    write(page, kept, options.work, options.sortinghat)
    page.write()


if __name__ == "__main__":
    main()
