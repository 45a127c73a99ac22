"""The dynamic tail of a module: operators that `SplitTail` took out of ``main``, whose sizes are known only at run time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import tvm
from tvm import relax

from ...errors import InputError
from ..ir.attributes import TAIL
from ..ir.call_names import describe, kernel_kind

ENTRY = "tvm_sched_tail"
"""Name of the function that the tail is."""


def tail_operators(mod: tvm.IRModule) -> dict[str, int]:
    """How many operators of each kind a module's tail has; empty where there is none."""
    if not mod.attrs or TAIL not in mod.attrs:
        return {}
    function = mod.attrs[TAIL][ENTRY]
    calls = [b.value for block in function.body.blocks for b in block.bindings if isinstance(b.value, relax.Call)]
    return dict(Counter(_kind(call) for call in calls if not isinstance(call.ty, relax.ShapeType)))


def refuse_tail(mods: Sequence[tvm.IRModule], what: str) -> None:
    """Refuse modules with a tail where nothing could run it.

    Parameters
    ----------
    mods : sequence of tvm.IRModule
    what : str
        What cannot have a tail, for the message: ``"a pipeline"``.

    Raises
    ------
    InputError
    """
    for mod in mods:
        kinds = tail_operators(mod)
        if kinds:
            raise InputError(
                f"{sum(kinds.values())} operators of the model ({', '.join(kinds)}) have sizes that are known only when it "
                f"runs, which {what} cannot contain: compile it for CPUs, with one set of input shapes and for latency, or "
                "cut the model before them"
            )


def _kind(call: relax.Call) -> str:
    if isinstance(call.op, tvm.ir.Op) and call.op.name == "relax.call_tir":
        return kernel_kind(str(call.args[0].name_hint))
    return describe(call).removeprefix("R.")
