"""EstimateLatencies: the scheduling problem of a module."""

from __future__ import annotations

import os
from collections.abc import Callable

import tvm

from ...cost_model import get_cost_model
from ...problem import Costs, OpGraph, Problem, Topology, load_topology
from ..attributes import PROBLEM, get_graph, leave


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.EstimateLatencies")
class EstimateLatencies:
    """Make the scheduling problem: operator graph, topology and the latency of each operator on each device.

    Reads ``main``, lowered to kernels; leaves the problem as a JSON document in the attribute ``tvm_sched.problem``.

    Parameters
    ----------
    topology : Topology, str or path
        The machine: a `Topology`, the name of a preset, or a topology file.
    cost_model : str or callable
        Name of a registered cost model, or a function ``(graph, topology) -> Costs``.
    """

    def __init__(
        self,
        topology: Topology | str | os.PathLike[str],
        cost_model: str | Callable[[OpGraph, Topology], Costs] = "roofline",
    ) -> None:
        self.topology = topology if isinstance(topology, Topology) else load_topology(topology)
        self.cost_model = get_cost_model(cost_model) if isinstance(cost_model, str) else cost_model

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        graph = get_graph(mod)
        problem = Problem(graph, self.topology, self.cost_model(graph, self.topology))
        return leave(mod, PROBLEM, problem)
