"""Problems in C++ (`NativeProblem`), created once for each run of a problem."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from ..problem import Problem, Scenario, as_scenario

if TYPE_CHECKING:
    from .native_problem import NativeProblem

MOST_KEPT = 32
"""Runs of a problem whose C++ objects are kept."""

_Run = tuple[frozenset[str], tuple[int, ...]]
_kept: weakref.WeakKeyDictionary[Problem, dict[_Run, NativeProblem]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def native_problem(problem: Problem | Scenario) -> NativeProblem:
    """Return the C++ object of a run of a problem (a cold run if it is a `Problem`); it is created on first use."""
    scenario = as_scenario(problem)
    key = scenario.resident, scenario.lags_ns
    with _lock:
        native = _kept.setdefault(scenario.problem, {}).get(key)
    if native is None:
        from .native_problem import NativeProblem  # loads the library, which reading and writing files does not need

        native = NativeProblem.of(scenario)
        with _lock:
            runs = _kept.setdefault(scenario.problem, {})
            if len(runs) >= MOST_KEPT:
                del runs[next(iter(runs))]
            runs[key] = native
    return native


def operator_bytes(problem: Problem) -> list[int]:
    """Return the bytes that each operator reads and writes."""
    index = problem.graph.index
    return [
        sum(index.size[t] for t in (*read, *written)) for read, written in zip(index.inputs, index.outputs, strict=True)
    ]
