"""Delays through a group of alternatives, from the end of the producer of an input to the end of the group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.problem import FORBIDDEN, Costs, Group, Operator, OpGraph, Problem, Tensor
from tvm_sched_runtime.problem.costs import concatenate_costs

from .region_placement import Delay
from .variant_relaxation import Relaxed

LARGEST = 1024
"""Largest number of operators in an alternative; a group with a larger one gets no delay."""

SOURCE, SOURCE_NS = "source", 1
"""Name and time in nanoseconds of the operator that replaces the producer of the activation."""

START = -1
"""The start of the run, in the place of an operator."""


class GroupDelay(NamedTuple):
    """In every schedule of every choice ``last`` ends at least ``ns`` nanoseconds after ``first`` has ended."""

    first: int
    last: int
    """Operators of the relaxed problem; ``first`` is `START` for a group that reads no activation."""
    ns: int
    group: str
    tensor: str
    """The group, and the activation that it reads; "" without one."""
    alternatives: Mapping[str, Problem]
    """By name of the alternative: its operators between ``first`` and ``last``, as a problem."""


def group_delays(problem: Problem, relaxed: Relaxed, least: Callable[[Problem], int]) -> list[GroupDelay]:
    """Return a delay for each activation that a group reads and for which the end of every alternative waits.

    A group that reads none gets one from the start of the run.

    Parameters
    ----------
    problem : Problem
        With variants.
    relaxed : Relaxed
        The relaxed problem of ``problem``, which is no harder than any choice.
    least : callable
        Computes a lower bound in nanoseconds for a problem without variants.

    Notes
    -----
    Proof: Lemma 2 of ``docs/proofs/variants.md``.
    """
    assert problem.variants is not None
    finder = _Finder(problem, relaxed, least)
    return [delay for group in problem.variants.groups for delay in finder.delays(group)]


def as_delays(through: Sequence[GroupDelay]) -> tuple[tuple[Delay, ...], tuple[Delay, ...]]:
    """Return the delays between operators, and those from the start of the run."""
    delays = [Delay(each.first, each.last, float(each.ns)) for each in through]
    return tuple(d for d in delays if d.first != START), tuple(d for d in delays if d.first == START)


class _Alternative(NamedTuple):
    """The operators of an alternative, their rows in the costs, the tensors that only it has, and its last operator."""

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
        """Yield the delays of one group. `_alternatives` counts rows, so groups must come in the order of the problem."""
        index, graph = self.relaxed.problem.graph.index, self.problem.graph
        alternatives = dict(zip(group.alternative_names, self._alternatives(group), strict=True))
        last = index.operator_id.get(group.operators[0])
        if last is None or max(len(alternative.operators) for alternative in alternatives.values()) > LARGEST:
            return
        members = [graph.index.operator_id[name] for name in group.operators]
        written = {t for o in members for t in graph.index.outputs[o]}
        read = dict.fromkeys(t for o in members for t in graph.index.inputs[o] if graph.index.producer[t] >= 0)
        names = [graph.tensors[t].name for t in read if t not in written]
        for name in names or [""]:
            t = index.tensor_id.get(name, -1)
            # Heads and tails are computed along edges of the relaxed problem, so these have to lead there, too.
            leads = not name or (t >= 0 and any(last in (o, *index.successors[o]) for o in index.consumers[t]))
            between = {key: self._between(each, name) for key, each in alternatives.items()} if leads else {}
            if leads and all(between.values()):
                bounded = {each: self._problem(alternatives[each], rows, name) for each, rows in between.items()}
                least = min(ns for _, ns in bounded.values())
                problems = {each: problem for each, (problem, _) in bounded.items()}
                yield GroupDelay(index.producer[t] if name else START, last, least, group.name, name, problems)

    def _alternatives(self, group: Group) -> Iterator[_Alternative]:
        index, runs = self.problem.graph.index, self.relaxed.runs[group.name]
        end = {alternative: operators.get(group.operators[0], "") for alternative, operators in runs.items()}
        rows = [index.operator_id[name] for name in group.operators]
        yield _Alternative([self.problem.graph.operators[row] for row in rows], rows, (), end[group.graph_alternative])
        for alternative in group.alternatives:
            begin, self.count = self.count, self.count + len(alternative.operators)
            yield _Alternative(
                alternative.operators, range(begin, self.count), alternative.tensors, end[alternative.name]
            )

    def _between(self, alternative: _Alternative, name: str) -> list[int]:
        """Return the positions of operators on paths from an activation to the end, in topological order; all for ""."""
        maker = {output: k for k, operator in enumerate(alternative.operators) for output in operator.outputs}
        end = next(k for k, operator in enumerate(alternative.operators) if operator.name == alternative.end)
        order, stack = dict[int, bool](), [(end, False)]
        while stack:
            k, done = stack.pop()
            if done:
                inputs = alternative.operators[k].inputs
                order[k] = (
                    not name or name in inputs or any(order.get(maker[each], False) for each in inputs if each in maker)
                )
            elif k not in order:
                stack.append((k, True))
                stack += [(maker[each], False) for each in alternative.operators[k].inputs if each in maker]
        return [k for k, waits in order.items() if waits] if order[end] else []

    def _problem(self, alternative: _Alternative, between: Sequence[int], name: str) -> tuple[Problem, int]:
        """Return the operators ``between`` with a source of the activation as a problem, and its bound less `SOURCE_NS`.

        Operators are named by their positions in the alternative, so that equal layers give equal problems, which are
        bounded once.
        """
        sizes = self.size | {tensor.name: tensor.size for tensor in alternative.tensors}
        called = {name: SOURCE} if name else {}
        for k in between:
            called.update((output, f"{k}:{j}") for j, output in enumerate(alternative.operators[k].outputs))
        operators = [Operator(SOURCE, outputs=(SOURCE,))] if name else []
        for k in between:
            inputs = tuple(called[each] for each in dict.fromkeys(alternative.operators[k].inputs) if each in called)
            outputs = tuple(called[output] for output in alternative.operators[k].outputs)
            operators.append(Operator(str(k), inputs=inputs, outputs=outputs))
        times = self.fastest[[alternative.rows[k] for k in between]]
        if name:
            times = np.vstack([np.full_like(self.fastest[:1], SOURCE_NS), times])
        graph = OpGraph("alternative", tuple(operators), tuple(Tensor(new, sizes[old]) for old, new in called.items()))
        key = times.tobytes(), graph.operators, graph.tensors
        if key not in self.known:
            problem = Problem.derive(graph, self.problem.topology, Costs(times, np.full_like(times, FORBIDDEN)))
            self.known[key] = problem, max(self.least(problem) - (SOURCE_NS if name else 0), 0)
        return self.known[key]
