"""PrepareKernels: prepare the kernels of a module to run in parallel with others."""

from __future__ import annotations

import tvm
from tvm import relax

from ...progress import report_progress
from ..ir.attributes import DEVICE_KIND
from ..lower.dynamic_tail import ENTRY
from .cpu.index_bounds import bound_indices
from .cpu.kernels import prepare_kernel


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.PrepareKernels")
class PrepareKernels:
    """Bound the indices of all kernels, count their operations, and rearrange the loops of CPU kernels.

    Loops for GPUs are scheduled when the kernels are compiled. Operators of the dynamic tail are lowered to
    kernels, whose indices are bounded, too.

    Parameters
    ----------
    schedule : bool
        Whether to rearrange the loops of CPU kernels (`tvm_sched.relax.codegen.cpu.cpu_loop_schedule`). If not, they are
        TVM's default loops without parallel ones.

    Examples
    --------
    >>> from tvm_sched.relax.passes import PrepareKernels
    >>> PrepareKernels()(lowered).attrs["tvm_sched.name"]
    'model'
    """

    def __init__(self, schedule: bool = True) -> None:
        self.schedule = schedule

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        for_cpu = not mod.attrs or DEVICE_KIND not in mod.attrs
        return prepare_kernels(mod, self.schedule and for_cpu)


def prepare_kernels(mod: tvm.IRModule, schedule: bool) -> tvm.IRModule:
    """Return the module with prepared kernels; ``schedule``: whether to rearrange their loops for a CPU."""
    result = mod.clone()
    kernels = [(v, function) for v, function in mod.functions_items() if isinstance(function, tvm.tirx.PrimFunc)]
    for position, (variable, function) in enumerate(kernels):
        report_progress("arranging loops of kernels", position, len(kernels))
        result.update_func(variable, prepare_kernel(function, schedule))
    return result


def bounded_tail(tail: tvm.IRModule, mod: tvm.IRModule) -> tvm.IRModule:
    """Return a dynamic tail with its operators lowered as TVM lowers them, and with bounded indices.

    ``mod`` has the kernels that the tail's kernels will stand beside, under names of their own.
    """
    kernels = {v: f for v, f in mod.functions_items() if isinstance(f, tvm.tirx.PrimFunc)}
    names = {variable.name_hint for variable in tail.get_global_vars()}
    joint = tail.clone()
    joint.update(tvm.IRModule({v: f for v, f in kernels.items() if v.name_hint not in names}))
    with tvm.target.Target("llvm"):
        dispatch = [relax.backend.DispatchSampling(), relax.backend.DispatchSortScan()]
        lowered = tvm.transform.Sequential([*dispatch, relax.transform.LegalizeOps()])(joint)
    result = relax.transform.DeadCodeElimination([ENTRY])(lowered)
    for variable, function in list(result.functions_items()):
        if isinstance(function, tvm.tirx.PrimFunc):
            result.update_func(variable, bound_indices(function))
    return result
