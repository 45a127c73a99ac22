"""Make the instances of HIOS's simulation, and what its authors' own code reaches on them, for ``benchmarks/hios.py``.

``git clone https://github.com/SHUs-Lab/HIOS build/hios`` first (commit 1e774de was used; it has no licence, so its code is
not here), then ``python benchmarks/instances_hios.py build/hios/simulation build/data/hios``. It needs networkx. A file
takes minutes. The authors' code runs twice: on the graph as its generator numbers it ("asis"), which it evaluates in an
order that breaks precedence, and on the graph renumbered by priority ("renum"). Their mapping and their stages of the
second are priced under the paper's constraint: an operator starts when its device is free and its inputs are there.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import math
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

OPERATORS, EDGES, LAYERS, COMMUNICATION = 200, 400, 14, 0.8
Stages = dict[int, list[set[int]]]


def load(folder: Path) -> tuple[ModuleType, ModuleType, ModuleType]:
    """Import the authors' generator, scheduler and IOS; the scheduler also returns its stages, and copies graphs faster."""
    sys.path.insert(0, str(folder))
    generator, ios = __import__("main"), __import__("ios_optimizer")
    scheduler = ModuleType("optimizer_sim")
    text = (folder / "optimizer_sim.py").read_text().replace("return cr_exec_time", "return cr_exec_time, brank_stage")
    exec(compile(text, str(folder / "optimizer_sim.py"), "exec"), scheduler.__dict__)
    plain = copy.deepcopy
    quick = ModuleType("copy")
    quick.deepcopy = lambda each: each.copy() if hasattr(each, "nodes") else plain(each)  # type: ignore[attr-defined]
    scheduler.copy = quick  # type: ignore[attr-defined]
    return generator, scheduler, ios


def generate(generator: ModuleType, seed: int) -> Any:
    """Return a graph of the authors' generator with its weights rounded as its file has them."""
    import networkx as nx

    random.seed(seed)
    graph = nx.DiGraph(latency=0)
    least, most = math.ceil(LAYERS * 0.5), math.ceil(LAYERS * 10)
    layers = generator.generate_nodes(graph, LAYERS, OPERATORS, most, least)
    if not generator.generate_edges(graph, layers, LAYERS, EDGES, OPERATORS):
        raise SystemExit(f"seed {seed} makes more than {EDGES} edges")
    generator.set_edge_weight(graph, COMMUNICATION, OPERATORS)
    for *_, edge in graph.edges(data=True):
        edge["weight"] = max(0.1, float(f"{edge['weight']:.6f}"))
    return graph


def priorities(graph: Any) -> list[int]:
    """Return the operators by descending longest path to the end, transfers included."""
    import networkx as nx

    longest: dict[int, float] = {}
    for o in reversed(list(nx.topological_sort(graph))):
        after = max((graph.edges[o, s]["weight"] + longest[s] for s in graph.successors(o)), default=0.0)
        longest[o] = graph.nodes[o]["weight"] + after
    return sorted(graph.nodes, key=lambda o: (-longest[o], o))


def run(scheduler: ModuleType, graph: Any, method: str, devices: int) -> tuple[float, float, Stages]:
    """Return what the authors' code prints without and with stages, and its stages; the graph's nodes get their ``gpu``."""
    for o in graph.nodes:
        graph.nodes[o]["gpu"] = -1
    getattr(scheduler, f"hios_{'lp' if method == 'lp' else 'pdp'}")(graph, 0, OPERATORS - 1, devices)
    successors: dict[int, list[int]] = {}
    scheduler.set_successors(graph, successors)
    alone = scheduler.graph_latency(graph, 0, OPERATORS - 1, devices)
    full, stages = scheduler.intra_op_parallelism(graph, successors, 2, 2, devices, 0, OPERATORS - 1)
    return alone, full, stages


def feasible(scheduler: Any, graph: Any, stages: Stages) -> float | None:
    """Price stages in each device's order under the paper's constraint; None if they wait for each other in a circle."""
    device = {o: d for d, row in stages.items() for stage in row for o in stage}
    ends: dict[int, float] = {}
    free, at = dict.fromkeys(stages, 0.0), dict.fromkeys(stages, 0)
    while any(at[d] < len(stages[d]) for d in stages):
        before = dict(at)
        for d, row in stages.items():
            while at[d] < len(row):
                inputs = [(p, o) for o in row[at[d]] for p in graph.predecessors(o)]
                if any(p not in ends for p, _ in inputs):
                    break
                ready = (ends[p] + (graph.edges[p, o]["weight"] if device[p] != d else 0.0) for p, o in inputs)
                free[d] = max(free[d], *ready, 0.0) + scheduler.get_latency_of_stage(graph, row[at[d]])
                ends |= dict.fromkeys(row[at[d]], free[d])
                at[d] += 1
        if at == before:
            return None
    return max(ends.values())


def instance(modules: tuple[ModuleType, ModuleType, ModuleType], seed: int, devices: Sequence[int]) -> dict[str, Any]:
    """Return the document of a seed."""
    import networkx as nx

    generator, scheduler, ios = modules
    graph = generate(generator, seed)
    found: dict[str, Any] = {
        "nodes": [{"id": o, "t": each["weight"], "util": each["utilization"]} for o, each in graph.nodes(data=True)],
        "edges": [{"src": a, "dst": b, "t": each["weight"]} for a, b, each in graph.edges(data=True)],
        "results": {"asis": {"ios": {"reported": ios.optimize(graph.copy())}, "gpus": {}}, "renum": {"gpus": {}}},
    }
    order = nx.DiGraph(latency=0)
    number = {o: n for n, o in enumerate(priorities(graph))}
    order.add_nodes_from((number[o], graph.nodes[o]) for o in sorted(graph.nodes, key=number.__getitem__))
    order.add_edges_from((number[a], number[b], each) for a, b, each in graph.edges(data=True))
    for count in devices:
        asis, renum = {}, {}
        for method in ("lp", "mr"):
            alone, full, _ = run(scheduler, graph.copy(), method, count)
            asis[method] = {"reported_inter": alone, "reported_full": full}
            mapped = order.copy()
            alone, full, stages = run(scheduler, mapped, method, count)
            singles = {d: [{o} for o in mapped.nodes if mapped.nodes[o]["gpu"] == d] for d in range(count)}
            renum[method] = {
                "reported_inter": alone,
                "reported_full": full,
                "feasible_inter": feasible(scheduler, mapped, singles),
                "feasible_full": feasible(scheduler, mapped, stages),
            }
        found["results"]["asis"]["gpus"][str(count)] = asis
        found["results"]["renum"]["gpus"][str(count)] = renum
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("simulation", type=Path, help="the folder `simulation` of the authors' repository")
    arguments.add_argument("folder", type=Path, help="where the files are written")
    arguments.add_argument("--seeds", default="0-19", metavar="A-B")
    arguments.add_argument("--devices", default="2,4,8,12", metavar="N,N")
    options = arguments.parse_args()
    first, last = map(int, options.seeds.split("-"))
    devices = [int(each) for each in options.devices.split(",")]
    modules = load(options.simulation.resolve())
    options.folder.mkdir(parents=True, exist_ok=True)
    for seed in range(first, last + 1):
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):  # their code prints as it goes
            made = instance(modules, seed, devices)
        (options.folder / f"hios_s{seed:02}_L{LAYERS}.json").write_text(json.dumps(made) + "\n")


if __name__ == "__main__":
    main()
