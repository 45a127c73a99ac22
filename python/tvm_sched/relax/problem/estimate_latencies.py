"""EstimateLatencies: the scheduling problem of a module."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import numpy as np
import tvm

from tvm_sched_runtime.problem import FORBIDDEN, Costs, OpGraph, Problem, Topology, load_topology, problem_of

from ...cost_model import default_cost_model, get_cost_model
from ...cost_model.calibrated_model import NAME as CALIBRATED
from ...cost_model.calibrated_model import is_of_this_machine
from ..ir.attributes import DEVICE_KIND, PROBLEM, get_compile_target, leave
from ..ir.virtual_devices import device_of
from .demands import ImageCompiler, with_demands
from .kernel_rates import BY_RATE, with_kernel_types
from .operator_graph import Extraction, extract_variants

MeasureKernels = Callable[[tvm.IRModule, Extraction, Topology], Costs]
"""Measures the kernels of a lowered module on the cores of a topology."""


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.EstimateLatencies")
class EstimateLatencies:
    """Make the scheduling problem: operator graph, topology and the latency of each operator on each device.

    An operator that TVM's annotations place (`tvm_sched.relax.ir.virtual_devices`) can run on its device only.

    Reads ``main``, lowered to kernels, with the alternatives of all groups; leaves the problem as a JSON
    document in the attribute ``tvm_sched.problem``.

    Parameters
    ----------
    topology : Topology, str or path
        The machine: a `Topology`, the name of a preset, or a topology file.
    cost_model : str or callable
        Name of a registered cost model, or a function ``(graph, topology) -> Costs``. Default: `default_cost_model`.
    measure : callable, optional
        Measures the module's kernels on this machine (`tvm_sched.relax.profiling.calibration.KernelTimer`). It replaces
        the cost model ``"calibrated"`` if the topology is of this machine's cores. Without it, that cost model predicts the
        kernels that were never measured.
    compile_image : callable, optional
        As for `tvm_sched.relax.problem.demands.with_demands`.
    joinable : bool
        Whether schedules may join parameters, where loads have a latency.

    Examples
    --------
    >>> from tvm_sched.relax import get_problem
    >>> from tvm_sched.relax.passes import EstimateLatencies
    >>> get_problem(EstimateLatencies("cpu2", "roofline")(lowered)).costs.operator_ns.shape
    (1, 2)
    """

    def __init__(
        self,
        topology: Topology | str | os.PathLike[str],
        cost_model: str | Callable[[OpGraph, Topology], Costs] | None = None,
        measure: MeasureKernels | None = None,
        compile_image: ImageCompiler | None = None,
        joinable: bool = True,
    ) -> None:
        self.topology = topology if isinstance(topology, Topology) else load_topology(topology)
        chosen = default_cost_model(self.topology) if cost_model is None else cost_model
        self.measure = measure if chosen == CALIBRATED and is_of_this_machine(self.topology) else None
        self.cost_model = get_cost_model(chosen) if isinstance(chosen, str) else chosen
        self.by_rate = chosen in BY_RATE
        self.compile_image, self.joinable = compile_image, joinable

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        calls = with_demands(mod, extract_variants(mod), self.topology, self.compile_image)
        costs = self.cost_model
        if self.by_rate and DEVICE_KIND in mod.attrs:
            costs = with_kernel_types(costs, get_compile_target(mod).precision)
        if (measure := self.measure) is not None and calls.graph.operators:

            def costs(graph: OpGraph, topology: Topology) -> Costs:
                return measure(mod, calls.with_all_alternatives(), topology)

        problem = problem_of(calls.graph, calls.groups, self.topology, costs, joinable=self.joinable)
        return leave(mod, PROBLEM, _with_given(problem, calls.given) if calls.given else problem)


def _with_given(problem: Problem, given: Mapping[str, str]) -> Problem:
    """Forbid all other devices to the operators that have a given device."""
    devices = {name: device_of(vdevice, problem.topology, name) for name, vdevice in given.items()}
    numbers = [devices.get(operator.name, -1) for operator in problem.graph.operators]
    here = np.array([[own in (-1, device) for device in range(len(problem.topology.devices))] for own in numbers])
    costs = problem.costs
    costs = costs.replace(
        operator_ns=np.where(here, costs.operator_ns, FORBIDDEN), direct_ns=np.where(here, costs.direct_ns, FORBIDDEN)
    )
    return Problem(problem.graph, problem.topology, costs, joinable=problem.joinable)
