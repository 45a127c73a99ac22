"""How long it takes to price a schedule and to verify one; the peer is the plain simulator of the tests."""

from __future__ import annotations

import sys
from copy import copy
from pathlib import Path

from _common import Row, best_ms, instances, parser, report

from tvm_sched.problem import Problem
from tvm_sched.schedule import ScheduleIndex, Times, simulate, violations
from tvm_sched.testing import random_problem, random_schedule

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from schedule.reference import reference_run


def rows_of(name: str, problem: Problem, repeats: int) -> list[Row]:
    schedule = random_schedule(problem, 0)
    index = ScheduleIndex.of(problem, schedule)

    def price() -> Times:
        return ScheduleIndex(problem, index.placements, index.transfers).times

    first, _ = best_ms(price, 1)  # makes the problem's arrays; loads the library if it is first
    priced, times = best_ms(price, repeats)
    simulated, _ = best_ms(lambda: simulate(problem, copy(schedule)), repeats)  # a copy is indexed and priced anew
    verified, _ = best_ms(lambda: violations(problem, copy(schedule)), repeats)
    peer, peer_name = None, ""
    if len(problem.graph.operators) <= 2000:  # the plain one takes minutes on more
        peer, expected = best_ms(lambda: reference_run(problem, schedule), 1)
        peer_name = "plain Python"
        assert expected.latency_ns == times.latency_ns
    case = f"{name}, {len(problem.topology.devices)} devices"
    return [
        Row(case, "simulate(problem, schedule)", simulated, "ms", peer, peer_name),
        Row(case, "ScheduleIndex.times", priced, "ms", peer, peer_name),
        Row(case, "violations(problem, schedule)", verified, "ms"),
        Row(case, "first price of a problem", first, "ms"),
    ]


def main() -> None:
    arguments = parser(__doc__ or "", models=False)
    arguments.add_argument("--instances", type=Path, metavar="DIR", help="a folder of problem files instead")
    options = arguments.parse_args()
    repeats = 3 if options.quick else 20
    simulate(tiny := random_problem(0, 2, 2), random_schedule(tiny, 0))  # loads the library
    if options.instances:
        cases = list(instances(options.instances))
    else:
        sizes = (100, 1000, 10_000) if options.quick else (100, 1000, 10_000, 100_000)
        cases = [(f"{n} operators", random_problem(1, n, 8, "generous", "bus")) for n in sizes]
    rows = [row for name, problem in cases for row in rows_of(name, problem, repeats)]
    report("Pricing a schedule", rows, options.json, options.markdown, predicted=True)


if __name__ == "__main__":
    main()
