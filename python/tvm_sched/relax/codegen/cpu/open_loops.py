"""Prepare kernels with open sizes, and cut their loops into parts that the passes for constant loops vectorise."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.sym import Analyzer

from ...ir.loops import depends_on, part_of_loop
from ...ir.statements import any_expression, contains, intrinsic, map_loops, realizations_in_loops, with_body
from .cpu_loop_schedule import schedule_for_cpu
from .index_bounds import bound_indices

PARTS = (256, 32)
"""Extents of the parts, the largest first; fewer iterations remain a loop of open extent. A sum is added part by part."""
_DIVISIONS = (tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod)
_NAMED = (*_DIVISIONS, tirx.Min, tirx.Max, tirx.Select, tvm.ir.Call)
_REDUCTION = 2


def prepare_open_kernel(function: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[Any]]:
    """Bound a kernel's indices, schedule its loops and initialise its reductions before their loops.

    Returns
    -------
    The kernel with more parameters at its end, and the expressions of its other sizes that these stand for.
    """
    function, named = _name_sizes(bound_indices(function))
    if not isinstance(function.body, s_tir.SBlockRealize):  # written without blocks
        return function, named
    return _initialise_first(schedule_for_cpu(function)), named


def is_evaluable(size: Any) -> bool:
    """Whether an expression has a value without tensors, and without a condition that guards a division by 0."""
    divides = contains(size, _DIVISIONS, lambda quotient: not isinstance(quotient.b, tirx.IntImm))
    return not divides and not contains(size, (tvm.ir.TensorLoad,))


def substituted(expr: Any, values: dict[Any, Any]) -> Any:
    """Return an expression with values in place of variables."""
    return tvm_ffi.structural_map(expr, (tirx.Var, lambda variable: values.get(variable, variable)))


def _name_sizes(function: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[Any]]:
    """Make quotients, minima and choices of sizes parameters.

    The indices of a fused loop divide by extents and by their products. Expressions in place of the extents would nest there
    several times, for which LLVM takes minutes.
    """
    buffers = [param for param in function.params if isinstance(param.ty, tirx.buffer.BufferType)]
    sizes = {param for param in function.params if not isinstance(param.ty, tirx.buffer.BufferType)}
    sizes |= {v for buffer in buffers for size in buffer.shape for v in tirx.analysis.undefined_vars(size)}
    named: dict[Any, Any] = {}

    def name(part: Any) -> Any:
        choice = not isinstance(part, tvm.ir.Call) or intrinsic(part) == "if_then_else"
        variables = set(tirx.analysis.undefined_vars(part))
        if not choice or not variables or not variables <= sizes | named.keys() or str(part.ty.dtype) != "int64":
            return part
        if not is_evaluable(part):
            return part
        size = Analyzer().simplify(substituted(part, named))
        if not contains(size, _NAMED):
            return size
        known = (variable for variable, other in named.items() if tvm_ffi.structural_equal(size, other))
        variable = next(known, tirx.Var(f"size_{len(named)}", "int64"))
        named[variable] = size
        return variable

    function = tvm_ffi.structural_map(function, (_NAMED, name))
    used = [variable for variable in named if contains(function, (tirx.Var,), variable.same_as)]
    params = [*function.params, *used]
    function = tirx.PrimFunc(params, function.body, function.ret_type, function.attrs, function.span)
    return function, [named[variable] for variable in used]


def _initialise_first(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Initialise each reduction before its loops: in its first iteration, it would not be if it has none."""
    schedule = s_tir.Schedule(tvm.IRModule({"main": function}))
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        step = schedule.get(block)
        if step.init is None:
            continue
        realize = next(r for r, _ in realizations_in_loops(schedule.mod["main"].body) if r.block.same_as(step))
        pairs = zip(step.iter_vars, realize.iter_values, strict=True)
        sums = [value for item, value in pairs if int(item.iter_type) == _REDUCTION]
        for loop in schedule.get_loops(block):
            if any(depends_on(value, schedule.get(loop).loop_var) for value in sums):
                schedule.decompose_reduction(block, loop)
                break
    return schedule.mod["main"]


def cut_open_loops(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Cut the innermost serial loops whose extent is an expression.

    Parameters
    ----------
    function : tvm.tirx.PrimFunc
        Without blocks and with flat buffers, before `block_sums`.
    """
    return with_body(function, map_loops(function.body, _cut))


def _cut(loop: tirx.For) -> Any:
    innermost = not contains(loop.body, (tirx.For,)) and loop.kind == tirx.ForKind.SERIAL
    if isinstance(loop.extent, tirx.IntImm) or not innermost or not _begins_at_0(loop):
        return loop
    if any_expression(loop.extent, lambda each: isinstance(each, tvm.ir.TensorLoad)):
        return loop  # the body may change it
    kind = str(loop.loop_var.ty.dtype)
    extent = tirx.max(loop.extent, tirx.IntImm(kind, 0))  # a loop of negative extent runs not at all
    begin: Any = tirx.IntImm(kind, 0)
    statements = []
    for size in (tirx.IntImm(kind, part) for part in PARTS):
        count = (extent - begin) // size
        part = tirx.Var("part", kind)
        inner = part_of_loop(loop, begin + part * size, size)
        statements.append(tirx.For(part, tirx.IntImm(kind, 0), count, tirx.ForKind.SERIAL, inner))
        begin = extent // size * size
    return tirx.SeqStmt([*statements, part_of_loop(loop, begin, extent - begin)])


def _begins_at_0(loop: tirx.For) -> bool:
    return isinstance(loop.min, tirx.IntImm) and int(loop.min) == 0
