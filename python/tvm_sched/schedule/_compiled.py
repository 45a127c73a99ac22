"""A problem in C++ (`NativeProblem`), made once for each problem, and schedules as the tables that it takes."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..problem import Problem
from .schedule import ScheduleIndex

if TYPE_CHECKING:
    from .native import NativeProblem

Array = npt.NDArray[np.int64]

_compiled: weakref.WeakKeyDictionary[Problem, NativeProblem] = weakref.WeakKeyDictionary()


def compiled(problem: Problem) -> NativeProblem:
    """The problem in C++; the second call for the same problem costs nothing."""
    found = _compiled.get(problem)
    if found is None:
        from .native import NativeProblem  # loads the library, which reading and writing files does not need

        found = _compiled[problem] = NativeProblem.of(problem)
    return found


def operator_bytes(problem: Problem) -> list[int]:
    """Bytes that each operator reads and writes."""
    index = problem.graph.index
    return [
        sum(index.size[t] for t in (*read, *written)) for read, written in zip(index.inputs, index.outputs, strict=True)
    ]


def placements_array(index: ScheduleIndex) -> Array:
    """Rows: operator, device, with direct host access, stream, stage."""
    none = [0] * len(index.operator)
    return _stack((index.operator, index.device, index.direct, index.stream or none, index.stage or none))


def transfers_array(index: ScheduleIndex) -> Array:
    """Rows: kind, item, source, device, whether the tensor is evicted there."""
    evict = [key in index.evicted for key in zip(index.transfer_item, index.transfer_device, strict=True)]
    return _stack((index.transfer_kind, index.transfer_item, index.transfer_source, index.transfer_device, evict))


def _stack(columns: Iterable[Sequence[int]]) -> Array:
    return np.array([np.asarray(column, dtype=np.int64) for column in columns], dtype=np.int64)
