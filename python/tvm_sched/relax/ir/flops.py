"""Floating-point operations of a kernel."""

from __future__ import annotations

import tvm
from tvm.s_tir.analysis import estimate_tir_flops

FLOPS = "tvm_sched.flops"
"""Attribute of a kernel: its operations, counted before its loops were rearranged."""


def count_flops(function: tvm.tirx.PrimFunc) -> int:
    """Count the arithmetic operations of a kernel.

    TVM's own analysis: loop extents times the additions, multiplications, divisions, minima and maxima of what is
    stored, so a matrix product is ``2 * M * N * K``. Operations on whole numbers count like those on floating-point
    ones; comparisons, selections and calls of intrinsics (``exp``) do not count.

    Where that analysis gives up (loops whose extent is not a constant, as in searches and sorts), there is nothing to
    count in constant time: 0, and the bytes that the kernel moves have to say how long it takes.
    """
    if function.attrs and FLOPS in function.attrs:
        return int(function.attrs[FLOPS])
    try:
        return max(int(estimate_tir_flops(tvm.IRModule({"main": function}))), 0)
    except (RuntimeError, ValueError):
        return 0
