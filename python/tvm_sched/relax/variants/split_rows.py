"""Split a model by rows: each part computes its share of the batch or of the tokens through all kernels, if they allow it.

A part needs all the weights, but no part waits for another. Devices that each compute some parts exchange no
activations (data parallelism), and devices that each have some layers work on different parts at once (a pipeline).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import tvm
from tvm import relax

from tvm_frontends.imported_model import number_of_inputs
from tvm_sched_runtime.errors import InputError, UnsplittableError

from ..ir.tensor_types import static_shape
from ..ir.virtual_devices import has_vdevices
from ..lower.kernel_libraries.kernel_library import VARIABLE
from ..lower.kernel_libraries.rewrite import operation
from .cut_products import concatenation, shares_of
from .kernel_parts import Interval
from .main_calls import Called, Division, MainCalls
from .new_kernels import KernelRewriter
from .read_fused_functions import is_kernel_call, kernel_calls
from .row_regions import MOST_ROWS, is_ordinary, part_type
from .row_windows import Window, window

PART = "tvm_sched.row_part"
"""Attribute of the kernels that compute a part of the rows."""

MOST_AXES = 2
"""Rows of an input are counted along its first axes: the batch, or the tokens of a single sequence."""


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.SplitRows")
class SplitRows:
    """Compute the kernels of ``main`` in parts of the rows of its inputs.

    Rows are entries of the batch, or tokens if the batch has too few entries. Each kernel whose part needs only the same
    part of an earlier result is computed once for each part. Where a kernel needs all rows (the keys and values of
    attention, if tokens are split), the parts are concatenated. Calls that make the model's results stay whole: their parts
    would have to be concatenated anyway, and their weights are often the largest, as those of a language model's head.

    The pass takes a module whose ``main`` calls PrimFuncs, before operators are fused.

    Parameters
    ----------
    parts : int
        Number of parts; 1 leaves the module as it is.

    Raises
    ------
    InputError
        The number is below 1.
    UnsplittableError
        A kernel library computes operators of the model, or no kernel can be computed in as many parts.

    Examples
    --------
    >>> from tvm_sched.relax.passes import SplitRows
    >>> SplitRows(2).info.name
    'tvm_sched.SplitRows'
    """

    def __init__(self, parts: int) -> None:
        self.parts = parts
        if parts < 1:
            raise InputError(f"row_parts is {parts}; 1 or more is allowed")

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        if self.parts == 1:
            return mod
        if has_vdevices(mod):
            raise UnsplittableError(
                f"row_parts is {self.parts}, but the module places its operators itself (VDevice); 1 is allowed"
            )
        _refuse_claimed(mod, self.parts)
        split = _RowSplit(mod, self.parts)
        changed = split.run()
        if not any(rows.parts for rows in split.rows.values()):
            inputs = mod["main"].params[: number_of_inputs(mod["main"])]
            shapes = ", ".join(f"{each.name}: {'x'.join(map(str, static_shape(each) or ('?',)))}" for each in inputs)
            raise UnsplittableError(
                f"the model cannot be computed in {self.parts} parts by rows: no kernel computes that many entries of the "
                f"batch, or tokens, on their own (inputs are {shapes}); give a smaller number of row_parts, or 1"
            )
        return changed


def _refuse_claimed(mod: tvm.IRModule, parts: int) -> None:
    """Raise `InputError` if libraries compute kernels: these stay whole, and each would join the parts."""
    calls = [binding.value for binding in MainCalls(mod).bindings if operation(binding.value) == "call_dps_packed"]
    libraries = sorted({str(call.args[0].global_symbol).partition(".")[0] for call in calls})
    if libraries:
        raise UnsplittableError(
            f"row_parts is {parts}, but {' and '.join(libraries)} computes {len(calls)} kernels of the model, and "
            f"kernels of libraries cannot be split by rows. Allowed is 1, or set {VARIABLE}= (empty), so that TVM "
            "compiles all kernels, as it does for emulated GPUs"
        )


@dataclass(frozen=True)
class _Rows:
    """The intervals of a tensor's parts, and the parts; an input of the model has no parts, for it is read whole."""

    intervals: tuple[Interval, ...]
    parts: tuple[Any, ...] = ()

    @property
    def axis(self) -> int:
        """Axis along which the parts lie."""
        return self.intervals[0].axis

    def contain(self, needed: Sequence[Interval | None]) -> bool:
        """Whether each part of a kernel needs only the part of this tensor with the same number."""
        return all(
            need is not None and need.axis == own.axis and own.begin <= need.begin and need.end <= own.end
            for need, own in zip(needed, self.intervals, strict=True)
        )


class _RowSplit(KernelRewriter):
    """Emits the calls of ``main`` in parts."""

    def __init__(self, mod: tvm.IRModule, count: int) -> None:
        super().__init__(mod.clone())  # functions are added to the clone
        self.count = count
        self.calls = MainCalls(self.mod)
        self.rows: dict[Any, _Rows] = {}
        self._windows: dict[Any, Window | None] = {}
        self._last = set(relax.analysis.free_vars(self.function.body.body))
        for variable in self.function.params[: number_of_inputs(self.function)]:
            found = next((each for each in self._equal_parts(variable) if each[0].axis < MOST_AXES), None)
            if found is not None:
                self.rows[variable] = _Rows(found)

    def visit(self, variable: Any, value: Any) -> Any:
        """Emit a call in parts if its rows follow from those of an argument; else as it is, on whole arguments."""
        if variable in self.calls.place:
            if isinstance(value, relax.TupleGetItem) and value.tuple_value in self.rows:
                shares = self.rows[value.tuple_value]
                parts = tuple(self.emit(relax.TupleGetItem(each, value.index)) for each in shares.parts)
                self.rows[variable] = _Rows(shares.intervals, parts)
                return None
            division = self.calls.division(variable)
            if division is not None and self._split_division(variable, division):
                return None
            called = self.calls.called(self.calls.bindings[self.calls.place[variable]])
            if called is not None and variable not in self._last and self._split_call(variable, called):
                return None
        return super().visit(variable, value)

    def value(self, expr: Any) -> Any:
        """Return the new value of an old expression; a tensor in parts is concatenated once."""
        if isinstance(expr, relax.Var) and self.values.get(expr, expr) is None:
            rows = self.rows[expr]
            types = [part_type(expr.ty, interval) for interval in rows.intervals]
            key = "concatenate", str(types), rows.axis
            join = self.add_kernel("concatenate", lambda: concatenation(types, rows.axis), key)
            self.values[expr] = self.emit(relax.call_tir(join, list(rows.parts), expr.ty))
        return super().value(expr)

    def _equal_parts(self, expr: Any) -> Iterator[tuple[Interval, ...]]:
        """Yield the intervals of about equal parts along each axis that allows it."""
        for axis, size in enumerate(static_shape(expr) or ()):
            if size >= self.count and -(-size // self.count) * self.count <= MOST_ROWS * size:
                ends = [size * k // self.count for k in range(self.count + 1)]
                yield tuple(Interval(axis, *pair) for pair in pairwise(ends))

    def _split_division(self, variable: Any, division: Division) -> bool:
        """Emit the split of each part of a tensor in equal shares, if the tensor is in parts along another axis."""
        rows = self.rows.get(division.operand)
        if rows is None or not rows.parts or rows.axis == division.axis:
            return False
        parts = []
        for interval, part in zip(rows.intervals, rows.parts, strict=True):
            whole = part_type(division.operand.ty, interval)
            make = partial(shares_of, whole, division.axis, division.parts)
            kernel = self.add_kernel("split", make, ("split", str(whole), division.axis, division.parts))
            types = [part_type(share, interval) for share in variable.ty.fields]
            parts.append(self.emit(relax.call_tir(kernel, [part], types)))
        self.rows[variable] = _Rows(rows.intervals, tuple(parts))
        return True

    def _split_call(self, variable: Any, called: Called) -> bool:
        """Emit a call for each part along the axis that follows the rows of the most arguments; False if there is none."""
        best = self._best_parts(variable, called)
        if best is None:
            return False
        intervals, windows = best
        parts = []
        for k, (interval, part_window) in enumerate(zip(intervals, windows, strict=True)):
            operands, available = [], []
            for argument, needed in zip(called.arguments, zip(*(w.needs for w in windows), strict=True), strict=True):
                rows = self._rows_of(argument)
                in_parts = rows is not None and bool(rows.parts) and rows.contain(needed)
                operands.append(rows.parts[k] if rows is not None and in_parts else self.value(argument))
                available.append(rows.intervals[k] if rows is not None and in_parts else None)
            make = partial(_part_kernel, part_window, tuple(available))
            kernel = self.add_kernel(str(called.variable.name_hint), make, (called.variable, interval, *available))
            parts.append(self.emit(relax.call_tir(kernel, operands, part_type(variable.ty, interval))))
        self.rows[variable] = _Rows(intervals, tuple(parts))
        return True

    def _best_parts(self, variable: Any, called: Called) -> tuple[tuple[Interval, ...], list[Window]] | None:
        """Return the intervals and windows of the parts of a result; None if no axis follows the rows of an argument."""
        rows = [self._rows_of(argument) for argument in called.arguments]
        if not any(rows) or not is_ordinary(called):
            return None
        most, best = 0, None
        for intervals in self._equal_parts(variable):
            windows = self._all_windows(called, intervals)
            needed = zip(*(each.needs for each in windows), strict=True)
            follow = sum(r is not None and r.contain(n) for r, n in zip(rows, needed, strict=True)) if windows else 0
            if follow > most:
                most, best = follow, (intervals, windows)
        return best

    def _all_windows(self, called: Called, intervals: Sequence[Interval]) -> list[Window]:
        """Return the windows of a kernel's parts; none if it cannot be cut."""
        windows = []
        for interval in intervals:
            key = called.variable, interval
            if key not in self._windows:
                self._windows[key] = window(called.kernel, interval)
            if (found := self._windows[key]) is None:
                return []
            windows.append(found)
        return windows

    def _rows_of(self, argument: Any) -> _Rows | None:
        return self.rows.get(argument) if isinstance(argument, relax.Var) else None


def is_part(mod: tvm.IRModule, value: Any) -> bool:
    """Whether a value calls a kernel that `SplitRows` cut, alone or fused with others."""
    if not isinstance(value, relax.Call):
        return False
    if isinstance(value.op, tvm.ir.GlobalVar):
        function = mod[value.op]
        calls = kernel_calls(function) if isinstance(function, relax.Function) else None
        return any(is_part(mod, binding.value) for binding in calls or ())
    return is_kernel_call(value) and PART in (mod[value.args[0]].attrs or ())


def _part_kernel(part: Window, available: tuple[Interval | None, ...]) -> tvm.tirx.PrimFunc:
    return part.kernel(available).with_attr(PART, 1)
