"""Floating-point operations of a kernel."""

from __future__ import annotations

import tvm
from tvm.s_tir.analysis import estimate_tir_flops

FLOPS = "tvm_sched.flops"
"""Attribute of a kernel: its operations, counted before its loops were rearranged."""


def count_flops(function: tvm.tirx.PrimFunc) -> int:
    """Count the arithmetic operations of a kernel by TVM's analysis.

    A matrix product has ``2 * M * N * K``. Additions, multiplications, divisions, minima and maxima count, also on
    integers; comparisons, selections and calls of intrinsics (``exp``) do not. The result is 0 if a loop's extent is not
    constant, as in searches and sorts.
    """
    if function.attrs and FLOPS in function.attrs:
        return int(function.attrs[FLOPS])
    try:
        return max(int(estimate_tir_flops(tvm.IRModule({"main": function}))), 0)
    except (RuntimeError, ValueError):
        return 0
