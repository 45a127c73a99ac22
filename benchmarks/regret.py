"""What wrong prices cost: schedules made with one price model, priced with another.

Each method schedules each instance twice, with latencies of the roofline and of the learned model. Each schedule is then
priced by both models and by draws of the learned one from its intervals. Its regret is what it takes longer than the best
schedule that is known for the prices that hold: of all methods with any prices, and of `anytime` with those very prices. So
a method with a small regret is a safe choice, whatever prices are right. `robust` chooses by draws of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any

from _common import parser
from _result_page import Page
from equal_work import SUITE

from tvm_sched.cost_model import costs
from tvm_sched.cost_model.uncertainty import draws
from tvm_sched.errors import TvmSchedError
from tvm_sched.problem import OpGraph, Problem, Topology, load_topology, problem_of
from tvm_sched.schedule import Schedule, evaluate
from tvm_sched.schedulers import solve

FINDINGS = """
What it says (29 November 2026; the limit of `sortinghat` is by the clock, on a machine with other work):

- Schedules made with the roofline are poor where the learned prices hold, since the roofline makes direct host access of
  products cheap. The safer choice is then `hios-lp`, which loads all parameters, or one device.
- Made with the learned prices, `anytime`, `heft` and `sortinghat` are within some per cent of the best over draws on equal
  GPUs, where errors are common to all devices. On unequal GPUs, errors of one model of GPU move the balance, and all lose
  tens of per cent.
- `robust` is as good on equal GPUs, with less than half of the largest regret. On unequal ones it has the least regret of
  all methods: a third of the median of `anytime`, and a quarter of its largest.
"""
NETWORKS = ("googlenet", "resnet50", "squeezenet")
MACHINES = {
    "equal GPUs": ("v100-server", "a6000-server", "p4d"),
    "unequal GPUs": tuple(str(path) for path in sorted((Path(__file__).parent / "data" / "unequal").glob("*.toml"))),
}
LIMITS: dict[str, dict[str, Any]] = {
    "anytime": {"work": 1.0, "time_limit": None},
    "heft": {},
    "hios-lp": {},
    "deepplan": {},
    "sortinghat": {"total_time_limit": 10.0},
    "single": {},
}
PRICES = ("roofline", "learned")


def instances(quick: bool) -> Iterator[tuple[str, str, OpGraph, Topology]]:
    """Yield name, kind of machine, graph and machine."""
    for kind, names in MACHINES.items():
        for name in names[: 1 if quick else None]:
            machine = load_topology(name)
            for network in NETWORKS[: 1 if quick else None]:
                graph = Problem.load(SUITE / "models" / f"{network}_p4d.json.gz").graph
                yield f"{network}, {machine.name}", kind, graph, machine


def run(graph: OpGraph, machine: Topology, count: int) -> list[dict[str, Any]]:
    """Return the regret of each method and price model, for each of the prices that may hold."""
    made = {price: problem_of(graph, (), machine, lambda g, t, price=price: costs(g, t, price)) for price in PRICES}
    drawn = list(draws(made["learned"], count, seed=1))
    found: dict[tuple[str, str], Schedule] = {}
    for price, problem in made.items():
        for method, options in LIMITS.items():
            try:
                found[method, price] = solve(problem, method=method, options=options)
            except TvmSchedError as error:
                print(f"{method}: {error}", file=sys.stderr)
    found["robust", "learned"] = solve(made["learned"], method="robust", options=LIMITS["anytime"])
    rows = []
    for holds, problems in {**{price: [problem] for price, problem in made.items()}, "draws": drawn}.items():
        best = [evaluate(each, solve(each, method="anytime", options=LIMITS["anytime"]))[0] for each in problems]
        latency = {key: [evaluate(each, schedule)[0] for each in problems] for key, schedule in found.items()}
        least = [min(column) for column in zip(best, *latency.values(), strict=True)]
        for (method, price), values in latency.items():
            regret = mean(value / low - 1 for value, low in zip(values, least, strict=True))
            rows.append({"method": method, "solved": price, "holds": holds, "regret": regret})
    return rows


def write(page: Page, results: list[dict[str, Any]]) -> None:
    """Write a table for each kind of machine: median and largest regret of each method."""
    page.text(*(__doc__ or "").split("\n\n", 1)[1].strip().split("\n"), "")
    pairs = [("roofline", "learned"), ("roofline", "draws"), ("learned", "roofline"), ("learned", "draws")]
    for kind in MACHINES:
        page.text(f"## {kind[0].upper()}{kind[1:]}", "")
        rows = []
        for method in [*LIMITS, "robust"]:
            cells = []
            for solved, holds in pairs:
                values = [
                    row["regret"] for each in results if each["kind"] == kind for row in each["rows"]
                    if (row["method"], row["solved"], row["holds"]) == (method, solved, holds)
                ]  # fmt: skip
                cells.append(f"{median(values):.1%}, {max(values):.1%}" if values else "–")
            rows.append((method, *cells))
        page.table(("method", *(f"solved by {solved}, {holds} hold: median, largest" for solved, holds in pairs)), rows)
    page.text(FINDINGS.strip(), "")


def main() -> None:
    """Run all instances and write the page."""
    arguments = parser(__doc__)
    arguments.add_argument("--draws", type=int, default=8, metavar="N", help="draws of the learned prices")
    options = arguments.parse_args()
    results = []
    for name, kind, graph, machine in instances(options.quick):
        results.append({"name": name, "kind": kind, "rows": run(graph, machine, 2 if options.quick else options.draws)})
        print(json.dumps(results[-1]), file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps(results))
    page = Page("Regret of wrong prices", options.markdown)
    write(page, results)
    page.write()


if __name__ == "__main__":
    main()
