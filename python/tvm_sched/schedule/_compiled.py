"""A problem in C++ (`NativeProblem`), made once for each problem."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from ..problem import Problem

if TYPE_CHECKING:
    from .native_problem import NativeProblem

_compiled: weakref.WeakKeyDictionary[Problem, NativeProblem] = weakref.WeakKeyDictionary()


def compiled(problem: Problem) -> NativeProblem:
    """The C++ object of a problem, made on the first call for it."""
    found = _compiled.get(problem)
    if found is None:
        from .native_problem import NativeProblem  # loads the library, which reading and writing files does not need

        found = _compiled[problem] = NativeProblem.of(problem)
    return found


def operator_bytes(problem: Problem) -> list[int]:
    """Bytes that each operator reads and writes."""
    index = problem.graph.index
    return [
        sum(index.size[t] for t in (*read, *written)) for read, written in zip(index.inputs, index.outputs, strict=True)
    ]
