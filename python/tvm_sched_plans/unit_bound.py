"""A lower bound for all placements of units, consecutive or not: a linear program in which units may be divided."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.problem import Problem

from .unit_chain import Chain

NAME = "linear program over units and places"
_ROUNDING = 1e-6
"""Part of the program's value that is given up to the solver's tolerances."""
_MOST = 8
"""Values of activations for which memory is limited."""
_INFEASIBLE = 2
"""Status of scipy's ``linprog`` for a program without solutions."""


def lower_bound(chain: Chain, micro_batches: int = 1) -> int | None:
    """Return a lower bound in nanoseconds on the time of every placement that fits.

    Let x(u, p) be the part of unit u at place p. The parts of a unit add up to 1. A place that has any of the units whose
    activations take π or more can hold no more of their weights and cache than its memory less π; this for several π. The
    operators on a path through the graph run one after another, so that the time is at least the sum of their
    t(u, p) x(u, p): on the longest path, or of all operators where the runtime runs them in order. And the time is at least
    that of all units at any place, as often as there are micro-batches. Copies count for nothing, and parameters that two
    units share for one of them, so that a placement's true values satisfy the program.

    Returns
    -------
    int or None
        None where no fractions fit either, so that nothing does; 0 where the solver gives no answer.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array, vstack

    # Units that are alike are one row with a number, so that eighty layers are as easy as one.
    places = chain.time_ns.shape[1]
    alike, number = np.unique(
        np.column_stack([chain.time_ns, _in_sequence(chain), chain.weight, chain.cache, chain.peak]),
        axis=0,
        return_counts=True,
    )
    time_ns, sequence_ns, peak = alike[:, :places], alike[:, places:-3], alike[:, -1]
    units = len(alike)
    scale, size = max(float(time_ns.max()), 1.0), max(float((alike[:, -3] + alike[:, -2]) @ number), 1.0)
    variables = units * places + 1
    variable = np.arange(units * places).reshape(units, places)
    column = np.tile(np.arange(places), units)
    whole = coo_array(
        (np.ones(units * places), (np.repeat(np.arange(units), places), variable.ravel())), (units, variables)
    )
    # Offloaded weights are brought to another place, which has the cache and the activations; its room is not charged.
    computes = np.array([place.load is None for place in chain.machine.places])
    held = alike[:, -3][:, None] + alike[:, -2][:, None] * computes
    room = np.array(chain.room, dtype=np.float64)
    rows, limits = [], []
    for least in _thresholds(peak):
        part = np.where((peak >= least)[:, None], held, 0) / size
        rows.append(coo_array((part.ravel(), (column, variable.ravel())), (places, variables)))
        limits.append(np.maximum(room - least * computes, 0) / size)
    sequence = np.append(sequence_ns.ravel() / scale, -1.0)
    rows.append(coo_array((sequence, (np.zeros(variables, dtype=int), np.arange(variables))), (1, variables)))
    limits.append(np.zeros(1))
    values = np.concatenate([micro_batches * time_ns.ravel() / scale, -np.ones(places)])
    at = np.concatenate([column, np.arange(places)]), np.append(variable.ravel(), [variables - 1] * places)
    rows.append(coo_array((values, at), (places, variables)))
    limits.append(np.zeros(places))
    goal = np.zeros(variables)
    goal[-1] = 1.0
    solved = linprog(
        goal, A_ub=vstack(rows).tocsr(), b_ub=np.concatenate(limits), A_eq=whole.tocsr(), b_eq=number, method="highs"
    )
    if solved.status == _INFEASIBLE:
        return None
    return max(int(solved.fun * scale * (1 - _ROUNDING)), 0) if solved.status == 0 else 0


def _in_sequence(chain: Chain) -> npt.NDArray[np.int64]:
    """Return, for each unit and place, the nanoseconds that cannot overlap with other units' ones."""
    if chain.machine.in_order:
        return chain.time_ns
    serial = np.zeros_like(chain.time_ns)
    for phase, problem in zip(chain.model.phases, chain.problems, strict=True):
        path = _longest_path(problem)
        for u, members in enumerate(phase.members):
            serial[u] += phase.repeats * problem.costs.operator_ns[[o for o in members if o in path]].sum(axis=0)
    return serial


def _longest_path(problem: Problem) -> set[int]:
    """Return the operators on the longest path, with each operator at its fastest place."""
    index = problem.graph.index
    least = problem.costs.operator_ns.min(axis=1).tolist()
    ends: dict[int, int] = {}
    before: dict[int, int | None] = {}
    for o in index.order:
        last = max(index.predecessors[o], key=ends.__getitem__, default=None)
        before[o], ends[o] = last, least[o] + (0 if last is None else ends[last])
    path: set[int] = set()
    at = max(ends, key=ends.__getitem__, default=None)
    while at is not None:
        path.add(at)
        at = before[at]
    return path


def _thresholds(peak: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return a few of the values, the least and the largest among them."""
    values = np.unique(peak)
    return values if len(values) <= _MOST else values[np.linspace(0, len(values) - 1, _MOST).astype(int)]
