"""`KernelRewriter`: the base class of passes that add kernels to a module while they rewrite ``main``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from ..lower.kernel_libraries.rewrite import Rewriter


class KernelRewriter(Rewriter):
    """Rewrites ``main``, and adds functions to the module; pass a clone of a module that others still use."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.functions: dict[Any, Any] = {}

    def add_kernel(self, name: str, make: Callable[[], tvm.tirx.PrimFunc], key: Any) -> tvm.ir.GlobalVar:
        """Return the kernel of a key; equal kernels are one function of the module."""
        if key not in self.functions:
            function = make()
            same = str(name), tvm_ffi.structural_hash(function, map_free_vars=True)
            if same not in self.functions:
                self.functions[same] = self.add_function(name, function)
            self.functions[key] = self.functions[same]
        return self.functions[key]

    def add_function(self, name: str, function: Any) -> tvm.ir.GlobalVar:
        """Add a function under a free name close to this one."""
        used_names, unique, count = {v.name_hint for v in self.mod.get_global_vars()}, name, 0
        while unique in used_names:
            count += 1
            unique = f"{name}{count}"
        variable = tvm.ir.GlobalVar(unique)
        relax.expr._update_type(variable, function.ty)
        self.mod.update_func(variable, function)
        return variable
