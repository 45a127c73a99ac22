"""EstimateLatencies: the scheduling problem of a module."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import msgspec
import numpy as np
import tvm

from tvm_sched_runtime.problem import FORBIDDEN, Costs, OpGraph, Problem, Topology, load_topology, problem_of

from ...cost_model import default_cost_model, get_cost_model
from ...cost_model.calibrated_model import NAME as CALIBRATED
from ...cost_model.calibrated_model import is_of_this_machine
from ...cost_model.occupancy_model import BY_LAUNCHES
from ..ir.attributes import DEVICE_KIND, PROBLEM, get_compile_target, leave
from ..ir.virtual_devices import device_of
from ..lower.half_precision import HALF
from ..toolchain.compile_target import TF32
from .demands import ImageCompiler, with_demands
from .operator_graph import Extraction, extract_variants

CostModel = Callable[[OpGraph, Topology], Costs]
MeasureKernels = Callable[[tvm.IRModule, Extraction, Topology], Costs]
"""Measures the kernels of a lowered module on the cores of a topology."""
_PRODUCTS = ("nvidia.matmul", "nvidia.conv2d")
BY_RATE = ("roofline", *BY_LAUNCHES, "learned")
"""Cost models that use a device's rate for the dtype of an operator's result."""


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
        cost_model: str | CostModel | None = None,
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
            costs = _by_kernel_types(costs, get_compile_target(mod).precision)
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


def _by_kernel_types(cost_model: CostModel, precision: str) -> CostModel:
    """Wrap a cost model, so that it sees the dtype in which each kernel multiplies instead of the result's dtype."""
    return lambda graph, topology: cost_model(_computing_types(graph, precision), topology)


def _computing_types(graph: OpGraph, precision: str) -> OpGraph:
    """Give each result in a graph the dtype in which its kernel multiplies; sizes in bytes stay.

    TVM's kernels for half precision multiply in float32. Libraries multiply in the dtype that they read; NVIDIA's round
    float32 to TF32 if that is the ``precision``.
    """
    kinds = {tensor.name: tensor.dtype for tensor in graph.tensors}
    changed: dict[str, str] = {}
    for operator in graph.operators:
        library = "." in operator.kind
        read = kinds[operator.inputs[0]] if operator.inputs else ""
        for name in operator.outputs:
            if read == "float32" and operator.kind.startswith(_PRODUCTS) and precision == TF32:
                changed[name] = TF32
            elif library and read in HALF:
                changed[name] = read
            elif not library and kinds[name] in HALF:
                changed[name] = "float32"
    tensors = tuple(
        msgspec.structs.replace(tensor, dtype=changed[tensor.name]) if tensor.name in changed else tensor
        for tensor in graph.tensors
    )
    return msgspec.structs.replace(graph, tensors=tensors)
