"""Cases of `test_together.py` that other tests use, too."""

import numpy as np
from hypothesis import strategies as st

from checker.cases import fan
from strategies import SEEDS, scheduled_problems
from tvm_sched.schedulers import solve
from tvm_sched_bench.testing import random_stages
from tvm_sched_runtime.problem import Concurrency, Costs, Problem
from tvm_sched_runtime.schedule import Placement
from tvm_sched_runtime.schedule.simulator import simulate


def together(problem, used, share=0.5, **more):
    costs = problem.costs
    return Problem(
        problem.graph, problem.topology, Costs(costs.operator_ns, costs.direct_ns, "", Concurrency(used, share, **more))
    )


def staged_fan(stage_ns):
    """The branches of `fan` in one stage: each takes 100 and uses half of the device, with a serial share of a half."""
    problem = together(fan(1000), np.full((4, 2, 1), 0.5))
    stages = {"a": (1, 0), "b": (1, 1)}
    placements = tuple(
        Placement(name, "gpu0", stages.get(name, (0, 0))[1], stage=stages.get(name, (0, 0))[0])
        for name in ("source", "a", "b", "join")
    )
    schedule = solve(problem, method="single").replace(placements=placements, transfers=(), certificate=None)
    assert simulate(problem, schedule).latency_ns == 200 + stage_ns
    return problem, schedule


@st.composite
def staged_problems(draw):
    problem, schedule = draw(scheduled_problems(max_operators=14, max_devices=3, min_operators=1, memory=("generous",)))
    random = np.random.default_rng(draw(SEEDS))
    shape = (*problem.costs.operator_ns.shape, int(random.integers(1, 4)))
    problem = together(problem, random.uniform(0.05, 1, shape), float(random.choice([0, 0.3, 0.5, 1])))
    return problem, random_stages(problem, schedule.replace(problem=problem.digest), draw(SEEDS), streams=3)
