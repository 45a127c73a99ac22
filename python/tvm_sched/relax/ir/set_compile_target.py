"""SetCompileTarget: the first pass, which says what all others compile for."""

from __future__ import annotations

import tvm

from ..toolchain.compile_target import CompileTarget
from .attributes import with_compile_target


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.SetCompileTarget")
class SetCompileTarget:
    """Leave what kernels are compiled for in the attribute ``tvm_sched.compile_target``.

    Parameters
    ----------
    target : CompileTarget, optional
        Default: this machine's processor, all cores and float32, as for modules without the attribute.
    """

    def __init__(self, target: CompileTarget | None = None) -> None:
        self.target = target or CompileTarget()

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        return with_compile_target(mod, self.target)
