"""Lower bounds on the time through a group of operators, from the end of the producer of an input, for all of its ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..problem import FORBIDDEN, Costs, Group, Operator, OpGraph, Problem, Tensor
from ..problem.costs import concatenate_costs
from .variant_relaxation import Relaxed

LARGEST = 1024
"""Largest number of operators in a way; a group with a larger way gets no delay."""

SOURCE, SOURCE_NS = "source", 1
"""Name and time in nanoseconds of the operator that replaces the producer of the activation."""


class GroupDelay(NamedTuple):
    """In every schedule of every choice ``last`` ends at least ``ns`` nanoseconds after ``first`` has ended.

    Parameters
    ----------
    first, last : int
        Operators of the relaxed problem.
    ns : int
    group, tensor : str
        The group, and the activation that it reads.
    ways : dict of str to Problem
        By name of the way: its operators between ``first`` and ``last``, as a problem.
    """

    first: int
    last: int
    ns: int
    group: str
    tensor: str
    ways: Mapping[str, Problem]


def group_delays(problem: Problem, relaxed: Relaxed, least: Callable[[Problem], int]) -> list[GroupDelay]:
    """A delay for each activation that a group reads and for which the end of every way has to wait.

    Parameters
    ----------
    problem : Problem
        With variants.
    relaxed : Relaxed
        Its relaxation, the problem below every choice.
    least : callable
        Computes a lower bound in nanoseconds for a problem without variants.

    Notes
    -----
    Let ``u`` be the producer of the activation ``x``, ``last`` the operator of the relaxed problem that stands for the end
    of the group, and ``v`` the operator of a way that runs ``last``. All operators of the way on paths from ``x`` to ``v``
    run between the ends of ``u`` and ``v``. With a source of `SOURCE_NS` on the device of ``u`` in place of ``u``, they form
    a problem without variants, and every schedule that chooses this way contains a schedule of that problem. So ``v`` ends
    after ``u`` by at least any lower bound of that problem less `SOURCE_NS`. The choice is not known, so the delay is the
    minimum over all ways. ``last`` can end as late as ``v``: no other relaxed operator that ``v`` runs comes after it.
    """
    assert problem.variants is not None
    finder = _Finder(problem, relaxed, least)
    return [delay for group in problem.variants.groups for delay in finder.delays(group)]


class _Way(NamedTuple):
    """The operators of a way, their rows in the costs, the tensors that only this way has, and the operator at its end."""

    operators: Sequence[Operator]
    rows: Sequence[int]
    tensors: Sequence[Tensor]
    end: str


@dataclass
class _Finder:
    problem: Problem
    relaxed: Relaxed
    least: Callable[[Problem], int]
    known: dict[object, tuple[Problem, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.problem.variants is not None
        costs = concatenate_costs([self.problem.costs, self.problem.variants.costs])
        self.fastest: npt.NDArray[np.int64] = np.minimum(costs.operator_ns, costs.direct_ns)
        self.size = {tensor.name: tensor.size for tensor in self.problem.graph.tensors}
        self.count = len(self.problem.graph.operators)

    def delays(self, group: Group) -> Iterator[GroupDelay]:
        """The delays of one group. `_ways` counts rows, so groups have to come in the order of the problem."""
        index, graph = self.relaxed.problem.graph.index, self.problem.graph
        ways = dict(zip(group.ways, self._ways(group), strict=True))
        last = index.operator_id.get(group.operators[0])
        if last is None or max(len(way.operators) for way in ways.values()) > LARGEST:
            return
        members = [graph.index.operator_id[name] for name in group.operators]
        made = {t for o in members for t in graph.index.outputs[o]}
        read = dict.fromkeys(t for o in members for t in graph.index.inputs[o] if graph.index.producer[t] >= 0)
        for name in (graph.tensors[t].name for t in read if t not in made):
            t = index.tensor_id.get(name, -1)
            # Heads and tails are computed along edges of the relaxed problem, so these have to lead there, too.
            leads = t >= 0 and any(last in (o, *index.successors[o]) for o in index.consumers[t])
            between = {way: self._between(each, name) for way, each in ways.items()} if leads else {}
            if leads and all(between.values()):
                found = {way: self._problem(ways[way], rows, name) for way, rows in between.items()}
                least = min(ns for _, ns in found.values())
                problems = {way: each for way, (each, _) in found.items()}
                yield GroupDelay(index.producer[t], last, least, group.name, name, problems)

    def _ways(self, group: Group) -> Iterator[_Way]:
        index, runs = self.problem.graph.index, self.relaxed.runs[group.name]
        end = {way: operators.get(group.operators[0], "") for way, operators in runs.items()}
        rows = [index.operator_id[name] for name in group.operators]
        yield _Way([self.problem.graph.operators[row] for row in rows], rows, (), end[group.graph_way])
        for way in group.alternatives:
            begin, self.count = self.count, self.count + len(way.operators)
            yield _Way(way.operators, range(begin, self.count), way.tensors, end[way.name])

    def _between(self, way: _Way, name: str) -> list[int]:
        """Positions of a way's operators on paths from an activation to the one at the end, in topological order."""
        maker = {output: k for k, operator in enumerate(way.operators) for output in operator.outputs}
        end = next(k for k, operator in enumerate(way.operators) if operator.name == way.end)
        order, stack = dict[int, bool](), [(end, False)]
        while stack:
            k, done = stack.pop()
            if done:
                inputs = way.operators[k].inputs
                order[k] = name in inputs or any(order.get(maker[each], False) for each in inputs if each in maker)
            elif k not in order:
                stack.append((k, True))
                stack += [(maker[each], False) for each in way.operators[k].inputs if each in maker]
        return [k for k, waits in order.items() if waits] if order[end] else []

    def _problem(self, way: _Way, between: Sequence[int], name: str) -> tuple[Problem, int]:
        """The operators ``between`` and a source of the activation, as a problem; and its bound less the time of the source.

        Operators are named by their positions in the way, so that equal layers give equal problems, which are bounded once.
        """
        sizes = self.size | {tensor.name: tensor.size for tensor in way.tensors}
        called = {name: SOURCE}
        for k in between:
            called.update((output, f"{k}:{j}") for j, output in enumerate(way.operators[k].outputs))
        operators = [Operator(SOURCE, outputs=(SOURCE,))]
        for k in between:
            inputs = tuple(called[each] for each in dict.fromkeys(way.operators[k].inputs) if each in called)
            outputs = tuple(called[output] for output in way.operators[k].outputs)
            operators.append(Operator(str(k), inputs=inputs, outputs=outputs))
        times = np.vstack([np.full_like(self.fastest[:1], SOURCE_NS), self.fastest[[way.rows[k] for k in between]]])
        graph = OpGraph("way", tuple(operators), tuple(Tensor(new, sizes[old]) for old, new in called.items()))
        key = times.tobytes(), graph.operators, graph.tensors
        if key not in self.known:
            problem = Problem._unchecked(graph, self.problem.topology, Costs(times, np.full_like(times, FORBIDDEN)))
            self.known[key] = problem, max(self.least(problem) - SOURCE_NS, 0)
        return self.known[key]
