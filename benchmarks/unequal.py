"""Gaps between `anytime` at stated amounts of work and the strongest bound, on machines of unequal GPUs.

One machine has two T4 and an A10, the other three L4 and an RTX A4000 (`benchmarks/data/unequal`). The graphs are three
networks, each cold and warm (with resident parameters), and twelve task graphs. The gap is 1 - bound / latency. An instance
is "tuned on" if the SHA-256 of its name is even, else "held out"; methods are tuned on the first half alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

from _common import HALVES, half, parser
from _result_page import Page
from equal_work import SUITE

from tvm_sched.bounds import lower_bound
from tvm_sched.cost_model import roofline
from tvm_sched.schedulers import solve
from tvm_sched_bench.testing.task_graphs import FAMILIES, task_graph
from tvm_sched_runtime.problem import Problem, Scenario, load_topology, problem_of

REASONS = """
Large gaps come from weak bounds and from long schedules (measured in prototypes on 2026-11-27):

- **Bounds of task graphs** cause most of the gap. The buses decide: the loads divide between two buses, and each edge
  between the two sides is a copy over a bus. `bisection` ([proof](../proofs/bisection.md)) bounds these divisions by a
  semidefinite program. It raised the bounds of task graphs by 0.4 to 10 %. Exceptions are `experts`, where `assignment` is
  stronger, and `series-parallel`, which has too many operators for it. A mixed-integer program shows what a better
  relaxation could prove at most: the rows of `assignment` without fractions of operators (12 s of HiGHS). Its best
  divisions need not be schedules.
  They take 22.03 ms for Cholesky on t4x2-a10, between a bound of 20.56 ms and a schedule of 23.46 ms (after 20 s of search).
  For Montage they take 16.50 ms, between 15.12 and 16.92 ms. The program's own lower bounds grew too slowly to be of use
  (Cholesky 19.87 ms). Products of the rows with single operators would add up to 0.2 % to the semidefinite bound.
- **Bounds of networks.** `assignment` ([proof](../proofs/assignment.md)) counts copies, and that a parameter crosses the bus
  of a device that reads it. It is a linear relaxation except within regions, so an operator may run half on one device and
  half on another. On the public networks, whose GPUs are equal, `path and bus` with regions stays stronger. For SqueezeNet,
  cold, on l4x3-a4000 the linear program proves 0.372 ms, and 0.398 ms with regions. A mixed-integer program without
  fractions of operators (6 s) proves 0.405 ms, and 0.420 ms if it also counts that an operator starts after the work of its
  predecessors on a device (18 s). No schedule below 0.475 ms was found, even with 100 s of work, so the bound causes at
  least a quarter of this gap. Branching on devices is too slow to close it: with the rows of predecessors and without
  regions, 129 leaves raised 0.372 to 0.401 ms.
- **Schedules.** Annealing moves groups of joined operators, weighs copies, and keeps the direct reads of its start. Ten
  times the work with another seed shortened the schedules of Cholesky, Montage, the grid and U-Net by at most 1.9 %. Moves
  that change the kind of access gained nothing with 2 s of work
  ([figures](removed_methods.md#kinds-of-access-as-a-move-of-annealing)). Not tried: starts by rounding a linear program,
  path relinking, swaps of all operators of two devices.
"""

MACHINES = Path(__file__).parent / "data" / "unequal"
NETWORKS = ("googlenet", "resnet50", "squeezenet")


def instances() -> Iterator[tuple[str, Scenario]]:
    """Yield the instances with their names."""
    for path in sorted(MACHINES.glob("*.toml")):
        machine = load_topology(str(path))
        for network in NETWORKS:
            graph = Problem.load(SUITE / "models" / f"{network}_p4d.json.gz").graph
            problem = problem_of(graph, (), machine, roofline)
            yield f"{network}, cold, {machine.name}", Scenario(problem)
            yield f"{network}, warm, {machine.name}", Scenario(problem, problem.parameters)
        for family in FAMILIES:
            yield f"{family}, {machine.name}", Scenario(problem_of(task_graph(family, 0), (), machine, roofline))


def run(name: str, scenario: Scenario, work: float) -> dict[str, Any]:
    """Return the latency of one run, the bound, and the processor time in seconds."""
    before, options = process_time(), {"work": work, "time_limit": None, "seed": 0}
    certificate = solve(scenario.problem, scenario.workload, "anytime", options).certificate
    assert certificate is not None
    bound = lower_bound(scenario)
    seconds = process_time() - before
    return {"name": name, "work": work, "value": certificate.latency_ns, "bound": bound.ns, "seconds": seconds}


def write(page: Page, results: list[dict[str, Any]]) -> None:
    """Write the page: medians of both halves, then each instance."""
    gaps = {(each["name"], each["work"]): 1 - each["bound"] / each["value"] for each in results}
    works = sorted({work for _, work in gaps})
    page.text(*(__doc__ or "").split("\n\n", 1)[1].strip().split("\n"), "")
    head = ("half", "kind", "instances", *(f"{work:g} s: median gap, largest" for work in works))
    rows = []
    for part in HALVES:
        for kind in ("cold", "warm", "tasks"):
            names = {n for n, _ in gaps if half(n) == part and (kind in n or (kind == "tasks" and n.count(",") == 1))}
            found = [[gap for (n, w), gap in gaps.items() if n in names and w == work] for work in works]
            cells = [f"{median(each):.2%}, {max(each):.1%}" if each else "–" for each in found]
            rows.append((part, kind, len(names), *cells))
    page.table(head, rows)
    bounds = {each["name"]: each["bound"] for each in results}
    rows = []
    for name in bounds:
        cells = [f"{gaps[name, work]:.2%}" if (name, work) in gaps else "–" for work in works]
        rows.append((name, half(name), f"{bounds[name] / 1e6:.3f}", *cells))
    page.text("## Sources of the gap", "", REASONS.strip(), "")
    page.text("## Each instance", "")
    page.table(("instance", "half", "bound, ms", *(f"gap, {work:g} s" for work in works)), rows)


def main() -> None:
    """Run what is missing in the file of results, and write the page."""
    arguments = parser(__doc__)
    arguments.add_argument("--work", default="0.5,2", metavar="S,S,...", help="seconds of work on an idle core")
    arguments.add_argument("--results", type=Path, required=True, metavar="FILE.jsonl", help="a run goes on there")
    options = arguments.parse_args()
    done = [json.loads(line) for line in options.results.read_text().splitlines()] if options.results.exists() else []
    known = {(each["name"], each["work"]) for each in done}
    for work in map(float, options.work.split(",")):
        for name, scenario in instances():
            if (name, work) not in known:
                done.append(run(name, scenario, work))
                print(*done[-1].values(), file=sys.stderr)
                with options.results.open("a") as file:
                    file.write(json.dumps(done[-1]) + "\n")
    page = Page("Unequal GPUs", options.markdown)
    write(page, done)
    page.write()


if __name__ == "__main__":
    main()
