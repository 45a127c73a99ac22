"""DescribeLaunches: describe each kernel's launches on a GPU, without nvcc."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress

import tvm

from tvm_sched_runtime.errors import InputError

from ..ir.attributes import LAUNCHES
from .cuda.compile import describe_launches
from .prepare_kernels import prepare_kernels


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.DescribeLaunches")
class DescribeLaunches:
    """Set the attribute ``tvm_sched.launches``: the GPU launches of each kernel, as JSON by kernel name.

    Kernels that would compute on the host are omitted. Run this pass before `PrepareKernels`, which may rearrange loops for
    CPUs.

    Parameters
    ----------
    archs : sequence of str
        GPU architectures, such as ``"sm_86"``; launches are described for the oldest.

    Examples
    --------
    >>> from tvm_sched.relax.passes import DescribeLaunches
    >>> DescribeLaunches(["sm_80"]).info.name
    'tvm_sched.DescribeLaunches'
    """

    def __init__(self, archs: Sequence[str]) -> None:
        self.archs = tuple(archs)

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        launches = {}
        for variable, function in prepare_kernels(mod, schedule=False).functions_items():
            if isinstance(function, tvm.tirx.PrimFunc):
                name = str(variable.name_hint)
                with suppress(InputError):
                    launches[name] = json.dumps(describe_launches({name: function}, self.archs)[name]["launches"])
        return mod.with_attr(LAUNCHES, launches) if launches else mod
