"""Find regions of ``main`` that can be computed by rows: parts of the batch, of the tokens, or of an image.

Each part needs all weights, so a cold start loads them on each device. That pays if the parameters are on the devices
already, or if a kernel computes for longer than its weights take to load (large batches, convolutions of large images).
Nothing is copied within a region: where rows of a convolution overlap, several parts compute the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import tvm
from tvm import relax

from ..ir.flops import count_flops
from ..ir.tensor_types import dtype_of, known_shape, static_shape, tensor_bytes
from .kernel_parts import Interval
from .main_calls import Called, MainCalls
from .row_windows import Window, hull, window

FLOPS_FOR_A_BYTE_LOADED = 2048
"""Fewest operations of a region for each byte of its weights, if cold starts shall gain by rows. On GPUs of 10 to 20 Tflop/s
behind a bus of 10 to 20 GB/s, they then take longer than loading the weights."""

FLOPS_FOR_A_BYTE_COPIED = 64
"""Fewest operations of a region for each byte that is copied to and from its parts. With fewer, a GPU of 10 to 20 Tflop/s
waits for links of 50 to 300 GB/s longer than it computes."""

LEAST_FLOPS = 1 << 27
"""Fewest operations of a region: a GPU computes as many while it starts a few kernels."""

MOST_ROWS = 1.25
"""Largest ratio of computed rows to rows of a result: summed over overlapping parts, and in time for unequal parts."""

LEAST_CUT_OFF = 0.75
"""Largest share of an activation that is cut off as a part; for more, the call reads the whole tensor."""

Needed = dict[relax.Var, "Interval | None"]
"""The interval of each call's result that a part needs; None: all."""


@dataclass(frozen=True)
class PartCall:
    """A call of a region for one part."""

    variable: relax.Var  # whose rows it computes
    called: Called
    rows: Interval  # of the result
    available: tuple[Interval | None, ...]  # available interval of each argument; None: all
    window: Window

    @property
    def type(self) -> relax.TensorType:
        """Type of the call's result."""
        return part_type(self.variable.ty, self.rows)


@dataclass(frozen=True)
class RowRegion:
    """Calls that can be computed by rows."""

    variables: tuple[relax.Var, ...]
    """The calls that some alternative computes by rows, in order. Other calls read the last one's result."""
    parts: dict[str, tuple[tuple[PartCall, ...], ...]]
    """For each alternative, the calls of each part in order; the last computes rows of the result. The alternative
    ``batch/4`` is cut along the first axis of the result, ``rows/4`` along another axis."""


class RowSearch:
    """Finds regions that can be computed by rows.

    Parameters
    ----------
    mod : tvm.IRModule
        As ``FuseOps`` leaves it.
    counts : sequence of int
        Numbers of parts.
    is_weights : callable
        Whether an operand can be cut without a kernel.
    warm : bool
        Whether parameters may be on the devices already; else regions need `FLOPS_FOR_A_BYTE_LOADED`.
    """

    def __init__(self, mod: tvm.IRModule, counts: Sequence[int], is_weights: Callable[[Any], bool], warm: bool) -> None:
        self.counts, self.is_weights, self.warm = counts, is_weights, warm
        self.calls = MainCalls(mod)
        self._windows: dict[Any, Window | None] = {}
        self._flops: dict[Any, int] = {}

    def within(self, variables: Sequence[relax.Var]) -> RowRegion | None:
        """Cut these calls by rows of the last one's result, as far as possible; return None if that does not pay."""
        return self._region(variables[-1], frozenset(variables))

    def others(self, claimed: Collection[relax.Var]) -> dict[relax.Var, RowRegion]:
        """Find regions of the other calls; return them by the variable of the last call.

        No two regions have a call in common. Each ends with a heavy call and grows backwards over calls whose results
        only the region reads.
        """
        regions: dict[relax.Var, RowRegion] = {}
        free = {variable for variable in self.calls.variables if variable not in claimed}
        for variable in reversed(self.calls.variables):
            if variable in free and self.calls.is_heavy(variable):
                region = self._region(variable, free)
                if region is not None:
                    regions[variable] = region
                    free.difference_update(region.variables)
        return regions

    def _region(self, last: relax.Var, allowed: Collection[relax.Var]) -> RowRegion | None:
        parts_of: dict[str, tuple[tuple[PartCall, ...], ...]] = {}
        for count in self.counts:
            for axis, size in enumerate((static_shape(last) or ())[:-1]):
                if -(-size // count) * count > MOST_ROWS * size:
                    continue
                parts = self._parts(last, Interval(axis, 0, size), count, allowed)
                if parts and self._is_worth_it(parts):
                    parts_of[f"{'rows' if axis else 'batch'}/{count}"] = parts
                    break
        inside = {call.variable for parts in parts_of.values() for call in parts[0]}
        return RowRegion(tuple(v for v in self.calls.variables if v in inside), parts_of) if parts_of else None

    def _parts(
        self, last: relax.Var, whole: Interval, count: int, allowed: Collection[relax.Var]
    ) -> tuple[tuple[PartCall, ...], ...]:
        """Return the calls of each part; none if the last call cannot be cut, or is cut by columns of its weights."""
        ends = [whole.end * k // count for k in range(count + 1)]
        needed: list[Needed] = [{last: Interval(whole.axis, *pair)} for pair in pairwise(ends)]
        inside: dict[relax.Var, tuple[Called, list[Window]]] = {}
        for place in reversed(range(self.calls.place[last] + 1)):
            variable = self.calls.variables[place]
            if inside and not self._may_join(variable, allowed, inside, needed):
                continue
            called = self.calls.called(self.calls.bindings[place])
            windows = self._all_windows(called, [each[variable] for each in needed])
            if called is not None and windows:
                inside[variable] = called, windows
                for each, part in zip(needed, windows, strict=True):
                    _add_needs(each, called.arguments, part.needs)
            if not inside or (variable.same_as(last) and self._cuts_weights(*inside[last])):
                return ()
        return tuple(tuple(self._calls_of_part(inside, each, k)) for k, each in enumerate(needed))

    def _may_join(
        self, variable: relax.Var, allowed: Collection[relax.Var], inside: Mapping[relax.Var, Any], needed: list[Needed]
    ) -> bool:
        """Whether a call is allowed, only calls inside read its result, and few of its rows overlap."""
        if variable not in allowed or not self.calls.users.get(variable, {None}) <= inside.keys():
            return False
        rows, shape = [each.get(variable) for each in needed], static_shape(variable) or ()
        kept = [each for each in rows if each is not None]
        if len(kept) < len(rows) or len({each.axis for each in kept}) > 1 or not shape:
            return False
        return sum(each.end - each.begin for each in kept) <= MOST_ROWS * shape[kept[0].axis]

    def _all_windows(self, called: Called | None, rows: Sequence[Interval | None]) -> list[Window]:
        """Return the windows of a call for all parts; none if it cannot be cut to one of them."""
        windows: list[Window] = []
        if called is None or not is_ordinary(called):
            return windows
        for part in rows:
            key = called.variable, part
            if key not in self._windows:
                self._windows[key] = None if part is None else window(called.kernel, part)
            if (part_window := self._windows[key]) is None:
                return []
            windows.append(part_window)
        return windows

    def _cuts_weights(self, called: Called, windows: Sequence[Window]) -> bool:
        """Whether a call needs only a part of its largest weights."""
        weights = [(tensor_bytes(a.ty), k) for k, a in enumerate(called.arguments) if self.is_weights(a)]
        return bool(weights) and windows[0].needs[max(weights)[1]] is not None

    def _calls_of_part(
        self, inside: dict[relax.Var, tuple[Called, list[Window]]], needed: Needed, part: int
    ) -> Iterator[PartCall]:
        for variable in reversed(inside):
            called, windows = inside[variable]
            rows = needed[variable]
            assert rows is not None
            available = [
                needed[argument] if argument in inside else self._cut_off(argument, interval)
                for argument, interval in zip(called.arguments, windows[part].needs, strict=True)
            ]
            yield PartCall(variable, called, rows, tuple(available), windows[part])

    def _cut_off(self, argument: Any, interval: Interval | None) -> Interval | None:
        """Return the interval of an argument to cut off for a part; None: the part gets the whole argument."""
        shape = static_shape(argument) or ()
        if interval is None or not shape or not (self.is_weights(argument) or isinstance(argument, relax.Var)):
            return None
        return interval if interval.end - interval.begin <= LEAST_CUT_OFF * shape[interval.axis] else None

    def _is_worth_it(self, parts: Sequence[Sequence[PartCall]]) -> bool:
        """Whether a region computes enough for the bytes that it copies and, on a cold start, loads."""
        copied: dict[Any, int] = {}
        weights: dict[Any, int] = {}
        flops = sum(self._flops_of(call.called) for call in parts[0])
        inside = {call.variable for call in parts[0]}
        for k, part in enumerate(parts):
            copied[k] = tensor_bytes(part[-1].type)
            for call in part:
                for argument, interval in zip(call.called.arguments, call.available, strict=True):
                    if self.is_weights(argument):
                        weights[argument] = tensor_bytes(argument.ty)
                    elif isinstance(argument, relax.Var) and argument not in inside and static_shape(argument):
                        copied[k, argument, interval] = tensor_bytes(part_type(argument.ty, interval))
        enough = flops >= LEAST_FLOPS and flops >= FLOPS_FOR_A_BYTE_COPIED * sum(copied.values())
        return enough and (self.warm or flops >= FLOPS_FOR_A_BYTE_LOADED * sum(weights.values()))

    def _flops_of(self, called: Called) -> int:
        if called.variable not in self._flops:
            self._flops[called.variable] = count_flops(called.kernel)
        return self._flops[called.variable]


def part_type(whole: relax.TensorType, part: Interval | None) -> relax.TensorType:
    """Return the type of a part of a tensor."""
    shape = list(known_shape(whole))
    if part is not None:
        shape[part.axis] = part.end - part.begin
    return relax.TensorType(shape, dtype_of(whole))


def is_ordinary(called: Called) -> bool:
    """Whether a kernel's parameters are tensors of known sizes: one for each argument, and the result."""
    params = called.kernel.params
    sizes = [n for tensor in params for n in getattr(tensor, "shape", [None])]
    return len(params) == len(called.arguments) + 1 and all(isinstance(n, tvm.tirx.IntImm) for n in sizes)


def _add_needs(needed: Needed, arguments: Sequence[Any], intervals: Sequence[Interval | None]) -> None:
    """Add the intervals of its arguments that a call needs."""
    for argument, interval in zip(arguments, intervals, strict=True):
        if isinstance(argument, relax.Var):
            needed[argument] = hull(needed[argument], interval) if argument in needed else interval
