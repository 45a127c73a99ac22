"""The order of a stage's operators with the least peak of activations, and a lower bound on that peak."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal, NamedTuple

import numpy as np

from tvm_sched_runtime.pipeline.stage_pricing import Activation
from tvm_sched_runtime.problem.partition_problem import PartitionProblem

from ..certify import Proof, final_status
from .partitioner_registry import PROVED, Partition

IDEALS = 20_000
"""Default number of ideals that the exact search visits in a stage."""
_WIDEST, _BEAM_WORK = 32, 400_000
"""Largest number of states that the beam search keeps, and of nodes squared times states."""
_MANY = 1000
"""Nodes of a stage above which the working sets count no tensors that a node neither reads nor makes."""

OrderSearch = Literal["given", "beam", "ideals"]


@dataclass(frozen=True)
class PeakOrder:
    """An order of a stage's operators.

    Examples
    --------
    >>> from tvm_sched.pipeline.least_peak import least_peak
    >>> from tvm_sched_runtime.pipeline.stage_pricing import Activation
    >>> large, small = Activation(9, -1, (1,), False), Activation(5, 0, (2,), False)
    >>> best = least_peak([large, small, Activation(1, 1, (2,), False)], 3)
    >>> best.order, best.peak, best.given_peak, best.bound, best.search
    ((1, 0, 2), 10.0, 15.0, 10.0, 'beam')
    """

    order: tuple[int, ...]
    """Positions of the operators in the given order."""
    peak: float
    """Most bytes of activations that the stage holds at once."""
    given_peak: float
    """The same in the given order."""
    bound: float
    """No order has a smaller peak."""
    search: OrderSearch
    """What found the order: "given" if no search found one with a smaller peak."""


class _State(NamedTuple):
    """Operators that have run (an ideal, as a set of bits), and what the stage then holds."""

    done: int
    held: int
    peak: int
    path: tuple[Any, int] | None
    """The last operator, after the path before it."""


def least_peak(activations: Sequence[Activation], nodes: int, *, ideals: int = IDEALS) -> PeakOrder:
    """Return an order with the least peak that the searches find, and a lower bound on all peaks.

    What a stage holds depends only on which operators have run: an ideal of its graph. List scheduling with several states
    (a beam search) gives an order. A best-first search, which visits ideals by the peak on the way to them, then proves
    that this order is the best or finds a better one. After ``ideals`` ideals it ends, and the smallest peak of an open
    ideal is a bound, as is what the stage holds while its first, its last or any one operator runs. An operator that
    lifts neither the peak nor what is held runs at once. ``docs/proofs/least_peak.md`` has the proofs.

    Sizes are added exactly.

    Parameters
    ----------
    activations : sequence of Activation
        Producers and readers are positions in the given order, from 0 to ``nodes`` - 1; each reader is behind its producer.
    nodes : int
        Number of operators.
    ideals : int
        Most ideals that the best-first search visits; below 1, the bound is the largest working set.
    """
    stage = _Stage(activations, nodes)
    given = stage.start()
    for v in range(nodes):
        given = stage.run(given, v)
    floor = stage.floor()
    best, bound = given, floor
    search: OrderSearch = "given"
    if best.peak > floor and (found := _beam(stage, floor)).peak < best.peak:
        best, search = found, "beam"
    if best.peak > floor:
        found, bound = _best_first(stage, floor, best, ideals)
        if found.peak < best.peak:
            best, search = found, "ideals"
    unit = stage.unit
    return PeakOrder(tuple(_order(best)), best.peak / unit, given.peak / unit, bound / unit, search)


class _Stage:
    """A stage with sizes as whole multiples of a fraction of a byte."""

    def __init__(self, activations: Sequence[Activation], nodes: int) -> None:
        ratios = [float(each.size).as_integer_ratio() for each in activations]
        self.unit = math.lcm(*(below for _, below in ratios))
        self.nodes, self.all = nodes, (1 << nodes) - 1
        self.before, self.after = [0] * nodes, [0] * nodes
        self.made, self.dead, self.inputs = [0] * nodes, [0] * nodes, 0
        self.read: list[list[tuple[int, int]]] = [[] for _ in range(nodes)]
        self.tensors: list[tuple[int, int, int, bool]] = []
        for each, (above, below) in zip(activations, ratios, strict=True):
            size, readers = above * (self.unit // below), sum(1 << v for v in set(each.readers))
            self.tensors.append((size, each.producer, readers, each.kept))
            if each.producer < 0:
                self.inputs += size
            else:
                self.made[each.producer] += size
                self.dead[each.producer] += size if not readers and not each.kept else 0
                self.after[each.producer] |= readers
            for v in set(each.readers):
                if each.producer >= 0:
                    self.before[v] |= 1 << each.producer
                if not each.kept:
                    self.read[v].append((size, readers))

    def start(self) -> _State:
        return _State(0, self.inputs, self.inputs, None)

    def run(self, state: _State, v: int) -> _State:
        """Run an operator whose predecessors have run."""
        done, top = state.done | 1 << v, state.held + self.made[v]
        held = top - self.dead[v] - sum(size for size, readers in self.read[v] if not readers & ~done)
        return _State(done, held, max(state.peak, top), (state.path, v))

    def free(self, state: _State) -> Iterator[int]:
        """Yield the operators that can run next."""
        left = self.all & ~state.done
        while left:
            v = (left & -left).bit_length() - 1
            left &= left - 1
            left &= ~self.after[v]  # they cannot run before it
            if not self.before[v] & ~state.done:
                yield v

    def harmless(self, state: _State, floor: int) -> _State:
        """Run operators that lift neither the peak nor what is held, while there are any.

        No order is worse for it: later, such an operator frees at least as much, so that all operators before which it
        moves find at most as much memory in use.
        """
        moved = True
        while moved:
            moved = False
            for v in list(self.free(state)):
                then = self.run(state, v)
                if then.held <= state.held and then.peak <= max(state.peak, floor):
                    state, moved = then, True
        return state

    def floor(self) -> int:
        """Return a bound on the peaks of all orders: what is held while the first, the last or any one operator runs."""
        sources = [v for v in range(self.nodes) if not self.before[v]]
        sinks = [v for v in range(self.nodes) if not self.after[v]]
        first = self.inputs + min((self.made[v] for v in sources), default=0)
        kept = sum(size for size, _, _, kept in self.tensors if kept)
        last = kept + min((self.dead[v] + sum(size for size, _ in self.read[v]) for v in sinks), default=0)
        return max([first, last, *self._working_sets()])

    def _working_sets(self) -> list[int]:
        """Return for each operator what is held while it runs, in any order."""
        if self.nodes > _MANY:
            held = self.made.copy()
            for size, _, readers, _ in self.tensors:
                for v in _bits(readers):
                    held[v] += size
            return held
        earlier, later = [0] * self.nodes, [0] * self.nodes
        for v in range(self.nodes):
            for u in _bits(self.before[v]):
                earlier[v] |= earlier[u] | 1 << u
        for v in reversed(range(self.nodes)):
            for u in _bits(self.after[v]):
                later[v] |= later[u] | 1 << u
        return [self._certain(v, earlier[v], later[v] | 1 << v) for v in range(self.nodes)]

    def _certain(self, v: int, earlier: int, wanted: int) -> int:
        """Return what is held while ``v`` runs: what it makes, and what is there and kept or ``wanted`` by it or later."""
        return sum(
            size
            for size, producer, readers, kept in self.tensors
            if producer == v or ((producer < 0 or earlier >> producer & 1) and (kept or readers & wanted))
        )


def _beam(stage: _Stage, floor: int) -> _State:
    """Run the operators by list scheduling with several states: those with the smallest peak, then the least held."""
    width = max(1, min(_WIDEST, _BEAM_WORK // max(stage.nodes, 1) ** 2))
    states, ended = [stage.harmless(stage.start(), floor)], list[_State]()
    while states:
        ended += [state for state in states if state.done == stage.all]
        then = [stage.run(state, v) for state in states for v in stage.free(state)]
        then.sort(key=lambda state: (max(state.peak, floor), state.held))
        distinct: dict[int, _State] = {}
        for state in then:
            distinct.setdefault(state.done, state)
            if len(distinct) == width:
                break
        states = [stage.harmless(state, floor) for state in distinct.values()]
    return min(ended, key=lambda state: state.peak)


def _best_first(stage: _Stage, floor: int, best: _State, ideals: int) -> tuple[_State, int]:
    """Visit ideals by the peak on the way to them, larger ones first; return the best end, and a bound on all peaks."""
    ties = count()
    open_ = [(floor, 0, next(ties), stage.start())]
    visited: set[int] = set()
    while open_:
        bound, _, _, state = heapq.heappop(open_)
        if bound >= best.peak:
            break
        state = stage.harmless(state, floor)
        if state.done == stage.all:
            return state, bound
        if state.done in visited:
            continue
        if len(visited) >= ideals:
            return best, bound
        visited.add(state.done)
        for v in stage.free(state):
            then = stage.run(state, v)
            if then.peak < best.peak and then.done not in visited:
                heapq.heappush(open_, (max(then.peak, floor), -then.done.bit_count(), next(ties), then))
    return best, best.peak


def _order(state: _State) -> list[int]:
    order, path = list[int](), state.path
    while path is not None:
        path, v = path
        order.append(v)
    return order[::-1]


def _bits(mask: int) -> Iterator[int]:
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1


def order_of_stage(problem: PartitionProblem, nodes: Sequence[int], *, ideals: int = IDEALS) -> PeakOrder:
    """Return the order of a stage's nodes with the least peak that `least_peak` finds; ``nodes`` are in the given order."""
    position = {v: i for i, v in enumerate(nodes)}
    held = []
    for tensor in problem.tensors:
        here = tuple(position[v] for v in tensor.readers if v in position)
        inside = tensor.producer in position
        if inside or here:
            kept = inside and (tensor.leaves or len(here) < len(tensor.readers))
            held.append(Activation(tensor.size, position.get(tensor.producer, -1), here, kept))
    return least_peak(held, len(nodes), ideals=ideals)


def order_partition(
    problem: PartitionProblem, found: Partition, *, ideals: int = IDEALS
) -> tuple[Partition, list[PeakOrder]]:
    """Put the nodes of each stage into an order with the least peak, and price the partition again.

    Only overflow depends on the order, so that the cost falls only if a stage's parameters do not fit beside its
    activations.

    Parameters
    ----------
    found : Partition
        An answer of `tvm_sched.pipeline.partition`.
    ideals : int
        Most ideals that the exact search of each stage visits.

    Returns
    -------
    (Partition, list of PeakOrder)
        The partition with its order, cost and status; and the order of each stage that is not empty, in the order of stages.

    Examples
    --------
    >>> import numpy
    >>> from tvm_sched.pipeline import PartitionProblem, StageTensor, order_partition, partition
    >>> tensors = [StageTensor(-1, (1,), 0, 9), StageTensor(0, (2,), 0, 5), StageTensor(1, (2,), 0, 1)]
    >>> graph = PartitionProblem(list("abc"), numpy.ones(3), numpy.full(3, 2.0), tensors, memory=16, overflow_time=1)
    >>> found = partition(graph, 1, "equal-split")
    >>> ordered, (stage,) = order_partition(graph, found)
    >>> found.cost, ordered.cost, stage.given_peak, stage.peak
    (8.0, 3.0, 15.0, 10.0)
    """
    lists = problem.stage_lists(found.stage_of, found.order)
    orders = [order_of_stage(problem, nodes, ideals=ideals) for nodes in lists]
    run = [nodes[i] for nodes, best in zip(lists, orders, strict=True) for i in best.order]
    order = np.array(run, dtype=np.int64)
    cost = problem.bottleneck(found.stage_of, order)
    proof = Proof(found.bound, found.bound_name, found.bound / (1 - PROVED), 1e-9)
    status = final_status(found.status, cost, proof)
    return replace(found, order=order, cost=cost, bound=min(found.bound, cost), status=status), orders
