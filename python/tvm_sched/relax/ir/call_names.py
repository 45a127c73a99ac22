"""Names of what calls in ``main`` call, for graphs and messages."""

from __future__ import annotations

import re
from typing import Any

import tvm
from tvm import relax


def kernel_kind(function: str) -> str:
    """Return what a kernel computes: its name without the numbers that make names unique, "fused" and "tir".

    >>> kernel_kind("fused_conv2d3_add12_tir_tanh")
    'conv2d_add_tanh'
    >>> kernel_kind("onednn.matmul_bfloat16_relu_7")
    'onednn.matmul_bfloat16_relu'
    """
    words = [word if word == "bfloat16" else re.sub(r"\d+$", "", word) for word in function.split("_")]
    if len(words) > 1 and words[0] == "fused":
        words = words[1:]
    return "_".join(word for word in words if word not in ("", "tir")) or function


def describe(call: relax.Call) -> str:
    """Return the name of what a call calls, for messages."""
    if isinstance(call.op, tvm.ir.Op):
        return str(call.op.name).replace("relax.", "R.", 1)
    if isinstance(call.op, tvm.ir.GlobalVar):
        return f"the call of function {call.op.name_hint!r}"
    return f"the call of {call.op}"


def plain(text: Any) -> str:
    """Convert to `str`: long strings of TVM are of a subclass, which file writers refuse."""
    return "".join(str(text))
