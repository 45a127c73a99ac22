"""A cost model: the roofline, and a launch of 5 microseconds in front of each operator.

``python examples/extensions/launch_costs.py`` prints what that adds to a schedule.
"""

import numpy as np

from tvm_sched.cost_model import register_cost_model, roofline
from tvm_sched_runtime.problem import FORBIDDEN, Costs, OpGraph, Topology

LAUNCH_NS = 5_000


@register_cost_model("roofline-and-launches")
def launch_costs(graph: OpGraph, topology: Topology) -> Costs:
    """Add a launch to each latency that is allowed."""
    base = roofline(graph, topology)
    operator_ns, direct_ns = (
        np.where(ns == FORBIDDEN, ns, ns + LAUNCH_NS) for ns in (base.operator_ns, base.direct_ns)
    )
    return base.replace(operator_ns=operator_ns, direct_ns=direct_ns, source="roofline-and-launches")


if __name__ == "__main__":
    from tvm_sched.cost_model import costs
    from tvm_sched.schedulers import solve
    from tvm_sched_bench.testing import random_graph, random_topology
    from tvm_sched_runtime.problem import Problem

    graph, topology = random_graph(3, 10), random_topology(3, 2, style="bus")
    for model in ("roofline", "roofline-and-launches"):
        problem = Problem(graph, topology, costs(graph, topology, model=model))
        print(model, solve(problem, method="heft").certificate.latency_ns, "ns")
