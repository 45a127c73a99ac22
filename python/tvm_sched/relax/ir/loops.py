"""Split lowered loops along memory into vector iterations and remaining scalar iterations; whether loops are arranged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm_ffi
from tvm import sym, tirx

from .statements import statements_in

SCHEDULED = "tirx.is_scheduled"
"""TVM's attribute of a kernel whose loops are arranged: by dlight, or by a record of meta schedule."""


def is_scheduled(function: tirx.PrimFunc) -> bool:
    """Whether a kernel's loops are arranged already, so that no pass of ours may change them."""
    return bool(function.attrs and function.attrs.get(SCHEDULED))


def depends_on(expr: Any, variable: Any) -> bool:
    """Whether a variable occurs in an expression."""
    return any(variable.same_as(other) for other in tirx.analysis.undefined_vars(expr))


def runs_along(index: Any, variable: Any, steps: tuple[int, ...] = (0, 1)) -> bool:
    """Whether an index advances by one of ``steps`` when a loop variable advances by 1."""
    if not depends_on(index, variable):
        return 0 in steps
    linear = sym.detect_linear_equation(index, [variable])
    return len(linear) == 2 and isinstance(linear[0], tirx.IntImm) and int(linear[0]) in steps


def at_position(loop: tirx.For, expr: Any, position: Any) -> Any:
    """Return an expression with ``position`` substituted for the loop's variable."""
    return tirx.IndexMap([loop.loop_var], [expr], None).map_indices([position])[0]


def vector_loop(kind: str, lanes: int, statement: Callable[[Any], Any]) -> Any:
    """Return the loop over the lanes of a vector; ``kind`` is the integer type of positions."""
    lane = tirx.Var("lane", kind)
    extent = tirx.IntImm(kind, lanes)
    return tirx.For(lane, tirx.IntImm(kind, 0), extent, tirx.ForKind.VECTORIZED, statement(lane))


def part_of_loop(loop: tirx.For, begin: Any, count: Any) -> tirx.For:
    """Return ``count`` iterations of a loop from ``begin`` on, as a loop with a copy of the body."""
    kind = str(loop.loop_var.ty.dtype)
    step = tirx.Var(loop.loop_var.name, kind)
    # Each variable is defined once in a function, so a copy of the body has variables of its own.
    inside = [part.loop_var if isinstance(part, tirx.For) else part.var
              for part in statements_in(loop.body) if isinstance(part, (tirx.For, tirx.Bind))]  # fmt: skip
    new = {variable: tirx.Var(variable.name, str(variable.ty.dtype)) for variable in inside}
    new[loop.loop_var] = begin + step
    body = tvm_ffi.structural_map(loop.body, (tirx.Var, lambda variable: new.get(variable, variable)))
    return tirx.For(step, tirx.IntImm(kind, 0), count, tirx.ForKind.SERIAL, body)


def remaining_steps(loop: tirx.For, begin: int) -> list[Any]:
    """Return the iterations of a loop from ``begin`` on, as a list of at most one loop."""
    if begin >= int(loop.extent):
        return []
    kind = str(loop.loop_var.ty.dtype)
    step = tirx.Var("rest", kind)
    body = tirx.SeqStmt([tirx.Bind(loop.loop_var, step + tirx.IntImm(kind, begin)), loop.body])
    extent = tirx.IntImm(kind, int(loop.extent) - begin)
    return [tirx.For(step, tirx.IntImm(kind, 0), extent, tirx.ForKind.SERIAL, body)]
