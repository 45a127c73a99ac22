"""Multipliers of a semidefinite bound in integers, for ``tvm_sched_check`` (``docs/formats/evidence.md``).

The linear bounds of the search are means of very many. For storage, a tensor's bound becomes a mean of few, and a stage's
bound one that a matrix of small integers determines. The multipliers for these bounds are rounded; the loss by rounding
lowers the bound.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from tvm_sched_runtime.problem.partition_problem import Floats, Integers, PartitionProblem

from ...progress import report_progress
from .minorants import Minorant, fewest_pairs, members, tensor_minorant
from .semidefinite import _LOOK_EVERY, _MIX, MOST_NODES, Search, Searches

ONE = 1 << 20
"""Integer that represents 1 among multipliers of stages, and weights and slopes of tensors."""
LEVELS = 31
"""Largest entry of the matrix at which stages' costs are linearised; the least is 0."""
WIDTH = 3
"""Members with entries less than this from the largest, or least, entry share a tensor's coefficient."""

_GRAIN = 2e-5
"""Largest rounding unit of multipliers, as a part of the average node's time."""
_LEAST_WEIGHT = 1 / 32
"""Least share of a bound in a tensor's mean; smaller ones are dropped."""
_PARTS = 128
"""Weights are multiples of 1 / `_PARTS`."""
_MOST = 2.0**53
"""Integers from here on are not exact in double precision; the search has diverged."""
_SAFETY = 1e-9
"""Part by which the bound in floating point is lowered, so that it is proved in integers."""

Term = tuple[int, int, int, tuple[int, ...]]
"""A lower bound of a tensor: which one, the slope times `ONE`, first members, members."""
Pairs = list[list[int]]


class Effort(NamedTuple):
    """How long to search for multipliers."""

    search: int = 2000
    """Iterations of the search for a bound; O(nodes³) for each."""
    storing: int = 1200
    """Iterations for linear bounds and for multipliers that can be stored, half of them for each."""
    seconds: float = math.inf
    """Wall-clock limit for everything; the result depends on the machine if it ends the search."""

    def at_most(self, iterations: float) -> Effort:
        """Return an effort of at most so many iterations, in the same proportion."""
        part = min(iterations / (self.search + self.storing), 1.0)
        return self._replace(search=int(part * self.search), storing=int(part * self.storing))

    def deadlines(self) -> tuple[float, float, float]:
        """Return the latest ends of search, linear bounds and multipliers, if everything begins now."""
        begin, total = time.monotonic(), self.search + self.storing
        at = (self.search, self.search + self.storing / 2, total)
        first, second, third = (begin + self.seconds * done / max(total, 1) for done in at)
        return first, second, third


DEFAULT = Effort()
"""Some 20 s for a graph of 200 nodes on one core of a server."""


class SemidefiniteEvidence(NamedTuple):
    """A bound and the fields of its evidence."""

    bound: float
    fields: dict[str, Any]


def semidefinite_evidence(
    problem: PartitionProblem, stages: int, cutoff: float, effort: Effort = DEFAULT
) -> SemidefiniteEvidence | None:
    """Return a semidefinite bound with its multipliers; None without one, or if there are more than `MOST_NODES` nodes.

    Overflow of parameters is not counted, since the checker does not count it.

    Parameters
    ----------
    cutoff : float
        Cost of a known partition; the bound is about cheaper partitions and at most this cost.
    effort : Effort
        Any effort gives a bound: each part of the search runs at least once.
    """
    if stages < 2 or problem.size > MOST_NODES or not problem.work.any():
        return None
    ends = effort.deadlines()
    search = Searches(replace(problem, memory=math.inf), stages, cutoff, None)
    with threadpool_limits(1), np.errstate(over="ignore", invalid="ignore"):
        looks = max(effort.search // _LOOK_EVERY, 1)
        for look in range(looks):
            report_progress("semidefinite bound", look, looks)
            search.work_on(0, look, _over(ends[0]))
            if _over(ends[0])():
                break
        if search.ended:
            return None
        counted = [t for t, tensor in enumerate(problem.tensors) if len(members(tensor))]
        storing = _Storing(search.searches[0], search.fixed, cutoff, search.bound, counted)
        return storing.evidence(max(effort.storing // (2 * _LOOK_EVERY), 1), ends[1], ends[2])


def _over(end: float) -> Callable[[], bool]:
    """Return whether the time limit or the work is used up."""
    return lambda: time.monotonic() >= end


class _Storing:
    """Continue a search until its linear bounds can be stored; times are in the relaxation's unit.

    ``counted`` has the numbers of the graph's tensors that the search has kept, in its order.
    """

    def __init__(self, search: Search, fixed: float, cutoff: float, aim: float, counted: list[int]) -> None:
        self.search, self.relaxation, self.fixed, self.cutoff = search, search.relaxation, fixed, cutoff
        self.aim, self.counted = aim, counted
        self.problem, self.stages = search.relaxation.problem, search.relaxation.stages
        self.terms: dict[Term, float] = {}

    def evidence(self, looks: int, settled: float, end: float) -> SemidefiniteEvidence | None:
        """Settle the linear bounds, search multipliers for them and round these; return the best result.

        ``looks`` rounds for each of the two, at most until ``settled`` and ``end`` (`time.monotonic`).
        """
        candidates: list[SemidefiniteEvidence] = []
        with suppress(np.linalg.LinAlgError):
            for look in range(looks):
                report_progress("linear bounds", look, looks)
                self._settle(max(_MIX, 1 / (look + 1)), _over(settled))
                if _over(settled)():
                    break
            self.terms, near = _fewer(self.terms), self._levels()
            self.relaxation.transfers, self.relaxation.costs = self._transfers(), stage_means(self.problem, near)
            self.relaxation.prepare()
            self.search.prepare(self.aim, anew=True)
            for look in range(looks):
                report_progress("multipliers", look, looks)
                self.search.run(_LOOK_EVERY, _over(end))
                candidates.append(self._rounded(near))
                if _over(end)():
                    break
        return max(candidates, key=lambda each: each.bound, default=None)

    def _settle(self, share: float, over: Callable[[], bool]) -> None:
        """Mix in the linear bounds that are tight at the present matrix, with this share, and run some iterations."""
        near = self._levels()
        self.terms = {key: (1 - share) * weight for key, weight in self.terms.items()}
        for key in _terms(self.problem, near / LEVELS):
            self.terms[key] = self.terms.get(key, 0.0) + share
        self.relaxation.transfers = self._transfers()
        self.relaxation.costs = self.relaxation.costs.mix(stage_means(self.problem, near), share)
        self.relaxation.prepare()
        self.search.prepare(self.aim, anew=False)
        self.search.run(_LOOK_EVERY, over)

    def _levels(self) -> Integers:
        """Return the present matrix in integer levels, symmetric."""
        matrix = np.clip(self.search.matrix + self.relaxation.even, 0, 1)
        levels = np.rint((matrix + matrix.T) / 2 * LEVELS).astype(np.int64)
        np.fill_diagonal(levels, LEVELS)
        return levels

    def _transfers(self) -> Minorant:
        """Return the mean of the tensors' bounds."""
        constant, matrix = 0.0, np.zeros((self.problem.size, self.problem.size))
        for (t, slope, first, nodes), weight in self.terms.items():
            tensor = self.problem.tensors[t]
            always = tensor.producer < 0 or tensor.leaves
            amount = weight * tensor.transfer
            constant += amount * (least_stages(first, slope / ONE, always) + len(nodes) - first)
            later, earlier = np.tril_indices(len(nodes), -1)
            members = np.array(nodes)
            np.add.at(
                matrix, (members[earlier], members[later]), -0.5 * amount * np.where(later < first, slope / ONE, 1.0)
            )
        return Minorant(constant, matrix + matrix.T)

    def _rounded(self, near: Integers) -> SemidefiniteEvidence:
        """Return the bound of the present multipliers, rounded as they are stored."""
        relaxation, n, k = self.relaxation, self.problem.size, self.stages
        dual, unit = self.search.dual(), relaxation.unit
        exponent = math.floor(math.log2(_GRAIN * unit))
        grain = 2.0**exponent / unit
        stages = np.rint(np.maximum(dual.stages, 0) * ONE)
        cuts = np.rint(np.maximum(dual.cuts, 0) / grain)
        combined = relaxation.cost + relaxation.combine(np.concatenate([stages / ONE, cuts * grain]))
        combined = combined + combined.T  # of pairs, so twice an entry
        entries = np.where(relaxation.apart, dual.entries, np.maximum(dual.entries, 0))
        entries = np.rint((entries + entries.T) / grain)
        np.fill_diagonal(entries, 0)
        slack = combined - entries * grain
        np.fill_diagonal(slack, -2 * dual.diagonal)
        if not all((np.abs(each) < _MOST).all() for each in (stages, cuts, entries, slack / grain)):
            raise np.linalg.LinAlgError("the multipliers are no numbers to store")
        least = float(np.linalg.eigvalsh(slack)[0]) - 1e-12 * float(np.abs(slack).sum())
        diagonal = np.ceil((np.diag(slack) - least) / grain)
        np.fill_diagonal(slack, diagonal * grain)
        constant = relaxation.transfers.constant / unit + stages / ONE @ relaxation.costs.constant / unit
        constant -= cuts * grain @ relaxation.cuts.limits
        proved = constant + (slack.sum() / k - np.trace(slack)) / 2
        bound = (self.fixed + float(proved) * unit) / (k + float(stages.sum()) / ONE)
        fields = {
            "below": float(self.cutoff),
            "grain": exponent,
            "width": WIDTH,
            "near": _triangle(near),
            "tensors": [[self.counted[t], round(weight * ONE), slope, first, list(nodes)]
                        for (t, slope, first, nodes), weight in self.terms.items()],
            "stage_costs": stages.astype(int).tolist(),
            **_named(relaxation.cuts.places, relaxation.cuts.limits, cuts.astype(int), n),
            "entries": _triangle(entries),
            "diagonal": [int(x) for x in diagonal],
        }  # fmt: skip
        most = min(bound, self.cutoff)
        return SemidefiniteEvidence(most - abs(most) * _SAFETY, fields)


def stage_means(problem: PartitionProblem, near: Integers) -> Minorant:
    """Bound the cost of the stage of each node, tightly near a matrix of levels: `minorants.stage_costs` without kinks.

    A tensor's members within `WIDTH` of the largest, or least, entry share its coefficient. Overflow is not counted. O(nodes
    edges).
    """
    n = problem.size
    every = np.arange(n)
    matrix = np.tile(problem.work, (n, 1))
    for tensor in problem.tensors:
        nodes = np.sort(members(tensor))
        if tensor.transfer == 0 or len(nodes) == 0:
            continue
        levels, own = near[:, nodes], every[:, None] == nodes
        matrix[:, nodes] += tensor.transfer * _shares(np.where(own, 2 * LEVELS, levels))
        if tensor.producer >= 0 and not tensor.leaves:
            matrix[:, nodes] -= tensor.transfer * _shares(np.where(own, -2 * LEVELS, -levels))
    constant = matrix[every, every].copy()
    matrix[every, every] = 0
    return Minorant(constant, matrix)


def _shares(levels: Integers) -> Floats:
    """Return shares by row of the entries near the largest, multiples of 1 / `ONE`; the first gets the remainder."""
    parts = np.maximum(WIDTH - (levels.max(axis=1, keepdims=True) - levels), 0)
    shares = parts * ONE // parts.sum(axis=1, keepdims=True)
    shares[np.arange(len(shares)), (parts > 0).argmax(axis=1)] += ONE - shares.sum(axis=1)
    return np.asarray(shares / ONE)


def least_stages(first: int, slope: float, always: bool) -> float:
    """Return `x₀` of Lemma 3 of ``docs/proofs/partition_semidefinite.md``."""
    return min(s - (s == 1 and not always) + slope * fewest_pairs(first, s) for s in range(1, first + 1))


def _terms(problem: PartitionProblem, near: Floats) -> list[Term]:
    """Return a lower bound of each tensor that is tight near a matrix."""
    terms: list[Term] = []
    for t, tensor in enumerate(problem.tensors):
        nodes = members(tensor)
        always = tensor.producer < 0 or tensor.leaves
        if tensor.transfer == 0 or len(nodes) < 2 - always:
            continue
        if len(nodes) == 1:
            terms.append((t, 0, 1, (int(nodes[0]),)))
            continue
        minorant = tensor_minorant(near[np.ix_(nodes, nodes)], not always)
        chosen = tuple(int(v) for v in nodes[minorant.order])
        terms.append((t, round(minorant.slope * ONE), minorant.base, chosen))
    return terms


def _fewer(terms: dict[Term, float]) -> dict[Term, float]:
    """Drop small weights; the weights of a tensor become multiples of 1 / `_PARTS` with sum 1."""
    kept = {key: weight for key, weight in terms.items() if weight >= _LEAST_WEIGHT}
    of: dict[int, list[Term]] = {}
    for key in kept:
        of.setdefault(key[0], []).append(key)
    fewer: dict[Term, float] = {}
    for keys in of.values():
        total = sum(kept[key] for key in keys)
        parts = {key: math.floor(kept[key] / total * _PARTS) for key in keys}
        parts[max(keys, key=kept.__getitem__)] += _PARTS - sum(parts.values())
        fewer |= {key: part / _PARTS for key, part in parts.items()}
    return fewer


def _triangle(matrix: npt.NDArray[Any]) -> Pairs:
    """Return the rows above the diagonal."""
    return [[int(x) for x in row[v + 1 :]] for v, row in enumerate(matrix)]


def _named(places: Integers, limits: Floats, multipliers: Integers, n: int) -> dict[str, Pairs]:
    """Return triangles and convexity cuts by their nodes, with their multipliers; those of 0 are left out."""
    triangles, convexity = [], []
    for row, limit, multiplier in zip(places.tolist(), limits.tolist(), multipliers.tolist(), strict=True):
        first, second = (set(divmod(place, n)) for place in row[:2])
        if multiplier <= 0:
            continue
        if limit > 0:
            (b,) = first & second
            triangles.append([*(first - {b}), b, *(second - {b}), multiplier])
        else:
            (b,) = second - first  # X of the first pair is at most that of the second, which shares a node with it
            (a,) = second - {b}
            convexity.append([a, b, *(first - {a}), multiplier])
    return {"triangles": triangles, "convexity": convexity}
