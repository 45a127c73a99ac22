"""A scheduler that tries random topological orders and puts each operator where it ends first.

``python examples/extensions/random_orders.py`` compares it with built-in ones.
"""

import msgspec
import numpy as np

from tvm_sched.schedulers import PartialSchedule, register
from tvm_sched_runtime.problem import Problem, Workload
from tvm_sched_runtime.schedule import Schedule


class RandomOrdersOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `random_orders`.

    Parameters
    ----------
    tries : int
        Number of orders.
    seed : int
        Start of the random numbers.
    """

    tries: int = 20
    seed: int = 0


@register("random-orders", options=RandomOrdersOptions)
def random_orders(problem: Problem, workload: Workload, options: RandomOrdersOptions) -> Schedule:
    """Return the best of some random orders."""
    scenario, random = workload.scenario(problem), np.random.default_rng(options.seed)
    best, best_end = None, float("inf")
    for _ in range(options.tries):
        state = PartialSchedule(scenario)
        end = max((place(state, o, problem) for o in order(problem, random)), default=0)
        if end < best_end:
            best, best_end = state, end
    return best.to_index().to_schedule()


def order(problem, random):
    """Yield the operators in a random topological order."""
    index = problem.graph.index
    maker = {t: o for o in index.order for t in index.outputs[o]}
    before = {o: {maker[t] for t in index.inputs[o] if t in maker} for o in index.order}
    while before:
        ready = [o for o, others in before.items() if not others]
        chosen = ready[random.integers(len(ready))]
        del before[chosen]
        for others in before.values():
            others.discard(chosen)
        yield chosen


def place(state, operator, problem):
    """Place an operator where it ends first, and return that time in nanoseconds."""
    candidates = (state.extension(operator, device, direct=False) for device in range(len(problem.topology.devices)))
    best = min((found for found in candidates if found is not None), key=lambda found: found.end, default=None)
    if best is None:
        raise state.refuse(operator)
    state.place(best)
    return best.end


if __name__ == "__main__":
    from tvm_sched.schedulers import solve
    from tvm_sched_bench.testing import random_problem

    for name in ("single", "heft", "random-orders"):
        certificate = solve(random_problem(7, operators=12, devices=3, memory="generous"), method=name).certificate
        print(f"{name:14} {certificate.latency_ns:6} ns, gap {certificate.gap:.0%}")
