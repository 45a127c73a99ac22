"""What is left open on machines of unequal GPUs: `anytime` at stated amounts of work, against the strongest bound.

The machines are two T4 and an A10, and three L4 and an RTX A4000 (`benchmarks/data/unequal`). The graphs are three networks,
cold and with resident parameters, and twelve task graphs. An instance is in the first half if the SHA-256 of its name is
even; methods are tuned on that half alone.
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
from tvm_sched.cost_model import costs
from tvm_sched.problem import Problem, Scenario, load_topology, problem_of
from tvm_sched.schedulers import solve
from tvm_sched_bench.testing.task_graphs import FAMILIES, task_graph

REASONS = """
Both sides are at fault where much is open (measured in prototypes on 2026-11-27):

- **Bounds of task graphs** are most of it. The buses decide: loads divide between two of them, and each edge between the
  sides is a copy over a bus. `bisection` ([proof](../proofs/bisection.md)) bounds these divisions by a semidefinite
  program. On task graphs it raised bounds by 0.4 to 10 %, except those of `experts`, where `assignment` is stronger, and
  of `series-parallel`, which has more operators than are tried. What is left was measured by a mixed-integer program, the
  rows of `assignment` with whole operators (12 s of HiGHS): its best divisions, which need not be schedules, take 22.03 ms
  for Cholesky on t4x2-a10, of a bound of 20.56 and a schedule of 23.46 after 20 s of search; 16.50 for Montage, of 15.12
  and 16.92. Its bounds grew too slowly to be of use (Cholesky 19.87 ms). Products of the rows with single operators
  would add up to 0.2 % to the semidefinite program.
- **Bounds of networks.** `assignment` ([proof](../proofs/assignment.md)) counts that a parameter crosses the bus of a
  device that reads it, and copies. It is a linear relaxation of everything but regions: an operator may be half on one
  device and half on another. On the public networks, whose GPUs are equal, `path and bus` by regions stays stronger.
  Of SqueezeNet, cold, on l4x3-a4000 the linear program gives 0.372 ms, with regions 0.398, with whole operators (a
  mixed-integer program, 6 s) 0.405, and 0.420 if in addition the work of each operator's predecessors on a device ends
  before the operator (18 s). No schedule below 0.475 ms was found, with 100 s of work either, so at least a quarter of
  this gap is the bound's. Branching on devices is too slow to prove it: with the predecessors' rows, without regions,
  129 leaves raised 0.372 to 0.401 ms.
- **Schedules.** Annealing moves groups of joined operators, weighs copies, and keeps the direct reads of its start. With
  another seed, ten times the work made schedules of Cholesky, Montage, the grid and U-Net shorter by at most 1.9 %.
  Moves of the kind of access gained nothing with 2 s of work
  ([figures](removed_methods.md#kinds-of-access-as-a-move-of-annealing)). Not tried: starts by rounding a linear program,
  paths between good solutions, exchanges of all operators of two devices.
"""

MACHINES = Path(__file__).parent / "data" / "unequal"
NETWORKS = ("googlenet", "resnet50", "squeezenet")


def instances() -> Iterator[tuple[str, Scenario]]:
    """Yield the instances with their names."""
    for path in sorted(MACHINES.glob("*.toml")):
        machine = load_topology(str(path))
        for network in NETWORKS:
            graph = Problem.load(SUITE / "models" / f"{network}_p4d.json.gz").graph
            problem = problem_of(graph, (), machine, costs)
            yield f"{network}, cold, {machine.name}", Scenario(problem)
            yield f"{network}, warm, {machine.name}", Scenario(problem, problem.parameters)
        for family in FAMILIES:
            yield f"{family}, {machine.name}", Scenario(problem_of(task_graph(family, 0), (), machine, costs))


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
    page.text("## What is missing", "", REASONS.strip(), "")
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
