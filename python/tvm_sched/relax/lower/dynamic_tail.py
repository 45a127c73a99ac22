"""The dynamic tail of a module: the operators, with sizes known only at run time, that `SplitTail` moved out of ``main``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import tvm
from tvm import relax

from tvm_sched_runtime.errors import UnsupportedModelError

from ..ir.attributes import TAIL
from ..ir.call_names import describe, kernel_kind
from ..ir.runtime_calls import is_copy

ENTRY = "tvm_sched_tail"
"""Name of the tail's function."""


def tail_operators(mod: tvm.IRModule) -> dict[str, int]:
    """Return the number of operators of each kind in a module's tail; empty if it has no tail."""
    if not mod.attrs or TAIL not in mod.attrs:
        return {}
    function = mod.attrs[TAIL][ENTRY]
    calls = [b.value for block in function.body.blocks for b in block.bindings if isinstance(b.value, relax.Call)]
    operators = (call for call in calls if not isinstance(call.ty, relax.ShapeType) and not is_copy(call))
    return dict(Counter(map(_kind, operators)))


def refuse_tail(mods: Sequence[tvm.IRModule], what: str) -> None:
    """Raise `UnsupportedModelError` if a module has a tail; ``what`` cannot run one (``"a pipeline"``)."""
    for mod in mods:
        kinds = tail_operators(mod)
        if kinds:
            why = "depend on data" if {"If", "Loop"} & set(kinds) else "have sizes that are known only when it runs"
            raise UnsupportedModelError(
                f"{sum(kinds.values())} operators of the model ({', '.join(kinds)}) {why}, which {what} cannot contain: "
                "compile it for CPUs, with one set of input shapes and for latency, "
                "make the inputs that decide them constants (--constant, constants), or cut the model before them"
            )


def _kind(call: relax.Call) -> str:
    if isinstance(call.op, tvm.ir.Op) and call.op.name == "relax.call_tir":
        return kernel_kind(str(call.args[0].name_hint))
    return describe(call).removeprefix("R.")
