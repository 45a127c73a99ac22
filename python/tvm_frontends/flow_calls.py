"""Branches and loops that data decide, as calls that name their bodies, which are modules of their own.

The function `CALL` + ``if`` has the operands *condition, then those that its branches take*; `CALL` + ``loop`` *most
iterations, whether there is a first one, the carried values, then what the body takes besides*. A branch returns the
results; the body takes *iteration, carried values, the other operands* and returns *whether there is another iteration,
carried values, parts of collected results*. Sizes of operands are symbols in the bodies.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

CALL = "tvm_frontends."
"""Begin of the functions' names; there are no such functions."""
BODIES = "tvm_frontends.bodies"
"""Module attribute: by the name that is a call's first operand, the modules of its bodies (``then`` and ``else``, or
``body``), each with a ``main``."""
CARRIED = "tvm_frontends.carried"
"""Attribute of a loop's body: for each carried value the axes whose size the iterations change."""
NO_LIMIT = int(np.iinfo(np.int64).max)
"""The trip count of a loop that has none."""


def is_flow(value: Any) -> bool:
    """Whether a value is a call of a branch or a loop."""
    is_call = isinstance(value, relax.Call) and getattr(value.op, "name", "") == "relax.call_pure_packed"
    return is_call and str(value.args[0].global_symbol).startswith(CALL)


def result_values(body: relax.SeqExpr) -> list[relax.Expr]:
    """Return the results of a body, one by one."""
    values = {binding.var: binding.value for block in body.blocks for binding in block.bindings}
    result = body.body
    while isinstance(result, relax.Var) and isinstance(values.get(result), (relax.Var, relax.Tuple)):
        result = values[result]
    return list(result.fields) if isinstance(result, relax.Tuple) else [result]
