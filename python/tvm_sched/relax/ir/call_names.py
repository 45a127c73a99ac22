"""Names of the operators and kernels that ``main`` calls, for graphs and messages."""

from __future__ import annotations

import re
from typing import Any

import tvm
from tvm import relax

from tvm_frontends.flow_calls import CALL, is_flow


def kernel_kind(function: str) -> str:
    """Return a kernel's name without "fused", "tir" and the numbers that make names unique.

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
    """Return the name of the operator or function that a call refers to, for messages."""
    if is_flow(call):
        return str(call.args[0].global_symbol).removeprefix(CALL).capitalize()
    if isinstance(call.op, tvm.ir.Op):
        return str(call.op.name).replace("relax.", "R.", 1)
    if isinstance(call.op, tvm.ir.GlobalVar):
        return f"the call of function {call.op.name_hint!r}"
    return f"the call of {call.op}"


def plain(text: Any) -> str:
    """Convert to `str`: TVM represents long strings by a subclass, which file writers refuse."""
    return "".join(str(text))
