"""What the order of the loads on a bus is worth: the schedule's own, device after device, devices in turns, and pieces.

SortingHat's executor lets the GPUs of a bus have it in turns, so that none starves until another has all its parameters.
Here the schedule says the order, so the scheduler has chosen it; the others are put in its place and priced by the
simulator. No kernel reads host memory directly, since such reads have their place among the loads. "preempted" moves
parameters in pieces of 1 MiB, of which the devices of a bus take turns.
"""

from __future__ import annotations

from itertools import chain

from _checked import checked
from _common import parser
from _result_page import Row, report
from emulation_error import problems

from tvm_sched.schedulers import solve
from tvm_sched_bench.testing import in_pieces, in_turns, reorder_loads
from tvm_sched_runtime.errors import TvmSchedError
from tvm_sched_runtime.problem import Costs, Problem
from tvm_sched_runtime.schedule import Schedule, simulate

PIECE = 1 << 20


def latencies(problem: Problem, schedule: Schedule) -> dict[str, float]:
    """Return milliseconds by order of loads; an order that deadlocks is left out."""
    orders = {
        "schedule's": (problem, schedule),
        "device after device": (problem, reorder_loads(problem, schedule, chain.from_iterable)),
        "in turns": (problem, reorder_loads(problem, schedule, in_turns)),
    }
    parts, split = in_pieces(problem, schedule, PIECE)
    orders["preempted"] = (parts, reorder_loads(parts, split, in_turns))
    found = {}
    for name, (of, changed) in orders.items():
        try:
            found[name] = simulate(of, changed, other_problem=True).latency * 1e3
        except TvmSchedError:
            continue
    return found


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--time-limit", type=float, default=5.0, help="seconds for `anytime`")
    options = arguments.parse_args()
    rows = []
    for made in problems(options.quick):
        problem = Problem(made.graph, made.topology, Costs(made.costs.operator_ns))
        if len({device.bus for device in problem.topology.devices}) == len(problem.topology.devices):
            continue  # no bus is shared
        schedule = checked(problem, solve(problem, method="anytime", options={"time_limit": options.time_limit}))
        found = latencies(problem, schedule)
        case = f"{problem.graph.name} on {problem.topology.name}"
        rows += [Row(case, name, ms, "ms", found["schedule's"], "schedule's") for name, ms in found.items()]
    report("Orders of the loads on shared buses", rows, options.json, options.markdown, predicted=True)


if __name__ == "__main__":
    main()
