"""EstimateLatencies: the scheduling problem of a module."""

from __future__ import annotations

import os
from collections.abc import Callable

import tvm

from ...cost_model import default_cost_model, get_cost_model
from ...cost_model.calibrated_model import NAME as CALIBRATED
from ...cost_model.calibrated_model import is_of_this_machine
from ...problem import Costs, OpGraph, Topology, load_topology, problem_of
from ...progress import Progress
from ..ir.attributes import DEVICE_KIND, PROBLEM, leave
from ..profiling.other_load import OtherLoad
from .demands import with_demands
from .kernel_rates import BY_RATE, with_kernel_types
from .operator_graph import extract_variants


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.EstimateLatencies")
class EstimateLatencies:
    """Make the scheduling problem: operator graph, topology and the latency of each operator on each device.

    Reads ``main``, lowered to kernels, with all ways in which they can be computed; leaves the problem as a JSON
    document in the attribute ``tvm_sched.problem``.

    Parameters
    ----------
    topology : Topology, str or path
        The machine: a `Topology`, the name of a preset, or a topology file.
    cost_model : str or callable
        Name of a registered cost model, or a function ``(graph, topology) -> Costs``. Default: `default_cost_model`.
        Where it is ``"calibrated"``, kernels of this machine's cores that were never measured are measured now.
    progress : callable, optional
        Called with what is being done, how many parts are done, and how many there are.
    compiled : bool
        Whether kernels are compiled by nvcc before that, for what they take of GPUs (`tvm_sched.relax.problem.demands`).
    """

    def __init__(
        self,
        topology: Topology | str | os.PathLike[str],
        cost_model: str | Callable[[OpGraph, Topology], Costs] | None = None,
        progress: Progress | None = None,
        compiled: bool = False,
    ) -> None:
        self.topology = topology if isinstance(topology, Topology) else load_topology(topology)
        chosen = default_cost_model(self.topology) if cost_model is None else cost_model
        self.measures = chosen == CALIBRATED and is_of_this_machine(self.topology)
        self.cost_model = get_cost_model(chosen) if isinstance(chosen, str) else chosen
        self.by_rate = chosen in BY_RATE
        self.progress = progress
        self.compiled = compiled
        self.load = OtherLoad()  # while the passes before this one run

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        calls = with_demands(mod, extract_variants(mod), self.topology, self.compiled)
        costs = self.cost_model
        if self.by_rate and DEVICE_KIND in mod.attrs:
            costs = with_kernel_types(costs)
        if self.measures and calls.graph.operators:
            from ..profiling.calibration import calibrated_costs

            def costs(graph: OpGraph, topology: Topology) -> Costs:
                return calibrated_costs(mod, topology, self.progress, self.load, calls.all_ways())

        return leave(mod, PROBLEM, problem_of(calls.graph, calls.groups, self.topology, costs))
