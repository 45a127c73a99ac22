"""A scheduler of twenty lines that knows nothing of the machine: operators in topological order, devices in turn.

Run it to see how it compares: ``python examples/round_robin_scheduler.py``. What it does is explained in
``docs/extending.md``.
"""

import msgspec

from tvm_sched.schedulers import register
from tvm_sched_runtime.errors import InfeasibleError
from tvm_sched_runtime.problem import FORBIDDEN, Problem, Workload
from tvm_sched_runtime.schedule import Placement, Schedule, Transfer


class RoundRobinOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `round_robin`.

    Parameters
    ----------
    first : int
        Position of the first operator's device.
    """

    first: int = 0


@register("round-robin", options=RoundRobinOptions)
def round_robin(problem: Problem, workload: Workload, options: RoundRobinOptions) -> Schedule:
    """One operator on each device in turn, whatever that costs; everything that it reads is loaded or copied there."""
    graph, index, devices = problem.graph, problem.graph.index, problem.topology.devices
    placements, transfers = [], []
    home: dict[int, int] = {}  # activation: the device that made it
    there: set[tuple[int, int]] = set()  # tensor, device
    for turn, o in enumerate(index.order, start=options.first):
        able = [d for d in range(len(devices)) if problem.costs.operator_ns[o, d] != FORBIDDEN]
        if not able:
            raise InfeasibleError(f"operator {graph.operators[o].name!r} runs on no device with its tensors there")
        d = able[turn % len(able)]
        for t in index.inputs[o]:
            in_place = t not in home and problem.reads_host_in_place(d)
            if (t, d) not in there and not in_place:
                source = {"source": devices[home[t]].name} if t in home else {}
                kind = "copy" if t in home else "load"
                transfers.append(Transfer(kind, devices[d].name, graph.tensors[t].name, **source))
                there.add((t, d))
        placements.append(Placement(graph.operators[o].name, devices[d].name))
        home.update(dict.fromkeys(index.outputs[o], d))
        there.update((t, d) for t in index.outputs[o])
    return Schedule(problem.digest, tuple(placements), tuple(transfers))


if __name__ == "__main__":
    from tvm_sched.schedulers import solve
    from tvm_sched_bench.testing import random_problem

    for name in ("single", "round-robin", "anytime"):
        certificate = solve(random_problem(seed=7, operators=12, devices=3), method=name).certificate
        print(f"{name:12} {certificate.latency_ns:6} ns, gap {certificate.gap:.0%}")
