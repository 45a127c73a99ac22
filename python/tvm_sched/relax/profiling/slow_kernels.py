"""Find generated CPU kernels that are far slower than their roofline, with the reason."""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import tirx

from ...cost_model.roofline_model import SlowKernel, roofline
from ..codegen.cpu.elementary import FUNCTIONS, is_replaced
from ..ir.attributes import get_problem
from ..ir.loops import depends_on, runs_along
from ..ir.statements import any_expression, intrinsic, realizations_in_loops
from ..problem.operator_graph import extract

LEAST_NANOSECONDS = 100_000
"""Least measured or estimated time of a slow kernel."""
CALL, SCATTERED = 10.0, 2.0
"""Estimated nanoseconds of a call of the C library, and of a step whose reads are not along memory."""
TIMES_ROOFLINE = 4
"""Least ratio of a slow kernel's measured time to its roofline."""
_MEASURED = ("measured", "calibrated")
_LIBRARY = {*FUNCTIONS, "pow", "fmod", "atan2", "hypot", "ldexp", "nextafter", "copysign", "lgamma"}
_EXTERNAL = {"call_extern", "call_pure_extern"}
"""Intrinsics that call a function whose name is their first argument."""


def slow_kernels(mod: tvm.IRModule) -> list[SlowKernel]:
    """List the generated kernels of a module with a problem that are far from their roofline, the slowest first.

    With measured costs (``measured``, ``calibrated``), a slow kernel takes at least `LEAST_NANOSECONDS` and `TIMES_ROOFLINE`
    times its roofline. Without them, it has a long loop that cannot be vectorised, because the loop calls the C library or
    does not run along memory.
    """
    problem = get_problem(mod)
    generated = {v.name_hint: f for v, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)}
    calls = {call.operator: call.function for call in extract(mod).calls}
    measured = problem.costs.source in _MEASURED
    ideal = roofline(problem.graph, problem.topology).operator_ns.min(axis=1) if measured else None
    slow: dict[str, tuple[float, SlowKernel]] = {}
    for position, operator in enumerate(problem.graph.operators):
        name = calls.get(operator.name, "")
        if name not in generated or name in slow:
            continue
        if ideal is not None:
            time = float(problem.costs.operator_ns[position].min())
            if time < max(LEAST_NANOSECONDS, TIMES_ROOFLINE * ideal[position]):
                continue
            reason = why_slow(generated[name])[1] or f"{time / ideal[position]:.0f} times its roofline"
            slow[name] = time, SlowKernel(name, operator.name, time / 1e3, reason)
            continue
        estimate, reason = why_slow(generated[name])
        if estimate >= LEAST_NANOSECONDS:
            slow[name] = estimate, SlowKernel(name, operator.name, None, reason)
    return [kernel for _, kernel in sorted(slow.values(), key=lambda pair: -pair[0])]


def why_slow(function: tirx.PrimFunc) -> tuple[float, str]:
    """Estimate the nanoseconds of the slowest loop that cannot be vectorised; return them with the reason, or 0 and ""."""
    slowest = 0.0, ""
    for realize, loops in realizations_in_loops(function.body):
        body = realize.block.body
        if not isinstance(body, tirx.BufferStore) or not loops:
            continue
        if not all(isinstance(loop.extent, tirx.IntImm) for loop in loops):
            continue
        steps = math.prod(int(loop.extent) for loop in loops)
        if name := _library_call(body.value):
            slowest = max(slowest, (steps * CALL, f"calls {name} of the C library for each number"))
        elif _scattered(realize, loops[-1].loop_var):
            slowest = max(slowest, (steps * SCATTERED, "its innermost loop does not run along memory"))
    return slowest


def _library_call(value: Any) -> str:
    """Return the name of a C library function that an expression calls, or ""."""
    name = ""

    def look(part: Any) -> bool:
        nonlocal name
        if isinstance(part, tvm.ir.Call):
            called = intrinsic(part)
            if called in _EXTERNAL:
                name = str(part.args[0].value)
            elif called in _LIBRARY and not is_replaced(part):
                name = called
        return bool(name)

    any_expression(value, look)
    return name


def _scattered(realize: Any, variable: Any) -> bool:
    """Whether the innermost loop does not read or write along memory, not counting local tiles."""
    moving = [
        item.var
        for item, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)
        if depends_on(value, variable)
    ]

    def jumps(indices: Any) -> bool:
        last = indices[-1] if len(indices) else None
        if any(depends_on(index, v) for index in list(indices)[:-1] for v in moving):
            return True
        return last is not None and any(depends_on(last, v) and not runs_along(last, v, (1,)) for v in moving)

    def wrong(part: Any) -> bool:
        return isinstance(part, tvm.ir.TensorLoad) and part.source.scope() != "local" and jumps(part.indices)

    body = realize.block.body
    return (body.buffer.scope() != "local" and jumps(body.indices)) or any_expression(body.value, wrong)
