"""The rule ``semidefinite``: Theorem 6 and Lemma 9 of ``docs/proofs/partition_semidefinite.md``, in integers.

Any multipliers of the right sign give a bound. The least eigenvalue of the matrix ``Z`` of Theorem 6 is bounded exactly.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from ..document import Refused, count
from ..eigenvalue import negative_part
from .cost import number
from .graph import Graph

ONE = 1 << 20
"""Integer that represents 1 among multipliers of stages, and weights and slopes of tensors."""
GRAINS = 1100
"""Largest absolute value of ``grain``; all other multipliers are multiples of ``2**grain``."""

Matrix = list[list[int]]


def bound_of(graph: Graph, stages: int, evidence: dict[str, Any]) -> Fraction:
    """Return the bound that the multipliers prove for every partition; at most ``below``."""
    cheaper = evidence.get("below")
    proof = Proof(graph, evidence, None if cheaper is None else number(cheaper) / graph.unit)
    n, matrix = graph.size, proof.matrix
    diagonal = sum(matrix[v][v] for v in range(n))
    everything = sum(map(sum, matrix))
    least = -negative_part(matrix) * n * Fraction(stages - 1, stages)
    pairs = (Fraction(everything, stages) - diagonal + least) / 2
    costs = sum(graph.work) * proof.scale + proof.constant + pairs
    bound = costs / (stages * proof.scale + proof.slope) * graph.unit
    return bound if cheaper is None else min(bound, number(cheaper))


class Proof:
    """The constant, slope ``b`` and matrix ``Z`` of Theorem 6, times ``scale``, in the graph's unit.

    The bound is about partitions that cost less than ``below``.
    """

    def __init__(self, graph: Graph, evidence: dict[str, Any], below: Fraction | None) -> None:
        self.graph, n = graph, graph.size
        grain = evidence["grain"]
        if type(grain) is not int or abs(grain) > GRAINS:
            raise Refused(f"the grain is {grain!r}; an integer of at most {GRAINS} is allowed, up or down")
        unit = Fraction(2) ** grain / graph.unit
        self.grain, fine = unit.numerator * ONE * ONE, unit.denominator
        self.scale = ONE * ONE * fine  # times are multiplied by ONE twice, for a tensor's weight and slope
        self.one = ONE * fine
        self.constant = self.slope = 0
        self.matrix: Matrix = [[0] * n for _ in range(n)]
        self.leads = reached_nodes(graph)
        self._tensors(evidence["tensors"])
        self._stages(
            [count(r) for r in evidence["stage_costs"]], _triangle(evidence["near"], n), count(evidence["width"])
        )
        self._cuts(evidence["triangles"], evidence["convexity"])
        self._entries(_triangle(evidence["entries"], n), below)
        diagonal = evidence["diagonal"]
        if [type(y) for y in diagonal] != [int] * n:
            raise Refused("the diagonal is not one integer for each node")
        for v, y in enumerate(diagonal):
            self.matrix[v][v] = y * self.grain

    def _add(self, u: int, v: int, amount: int) -> None:
        """Add an amount to both entries of a pair of nodes."""
        self.matrix[u][v] += amount
        self.matrix[v][u] += amount

    def _tensors(self, terms: list[Any]) -> None:
        """Add the transfers of all stages: Lemma 3, a mean by weights for each tensor."""
        weights = dict[int, int]()
        for t, weight, slope, first, members in terms:
            tensor = self.graph.tensors[count(t)]
            if not 0 < count(first) <= len(set(members)) == len(members) or not set(members) <= set(tensor.members):
                raise Refused(f"a bound of tensor {t} names none, others than its members, or one twice")
            weights[t] = weights.get(t, 0) + count(weight)
            amount, sent = tensor.transfer * weight * (self.one // ONE), not tensor.always
            least = [ONE * (s - (sent and s == 1)) + count(slope) * _fewest(first, s) for s in range(1, first + 1)]
            self.constant += amount * (min(least) + ONE * (len(members) - first))
            for i, v in enumerate(members):
                for u in members[:i]:
                    self._add(u, v, -amount * (slope if i < first else ONE))
        if any(weight > ONE for weight in weights.values()):
            raise Refused("weights of some tensor's bounds are more than 1")

    def _stages(self, multipliers: list[int], near: Matrix, width: int) -> None:
        """Add the costs of stages: Lemma 2, with one convex combination for each tensor.

        The members with entries in ``near`` less than ``width`` from the largest, or least, entry share the coefficient.
        """
        if len(multipliers) != self.graph.size or not width:
            raise Refused("there is not one multiplier for each stage, or the width is 0")
        paying = [(t, t.members, t.transfer * self.one // ONE) for t in self.graph.tensors if t.transfer and t.members]
        for v, r in enumerate(multipliers):
            row = [work * self.one for work in self.graph.work] if r else []
            for tensor, members, transfer in paying if r else ():
                for u, share in _mean(v, near[v], members, width, most=True):
                    row[u] += transfer * share
                for u, share in _mean(v, near[v], members, width, most=False) if not tensor.always else ():
                    row[u] -= transfer * share
            self.slope += r * self.one
            for u, amount in enumerate(row):
                if u == v:
                    self.constant += r * amount
                else:
                    self._add(u, v, r * amount)

    def _cuts(self, triangles: list[Any], convexity: list[Any]) -> None:
        """Add triangles and convexity: Lemma 4."""
        for a, b, c, multiplier in triangles:
            amount = count(multiplier) * self.grain
            if len({count(a), count(b), count(c)}) < 3:
                raise Refused("a triangle has fewer than three nodes")
            self.constant -= amount
            for u, v, sign in ((a, b, 1), (b, c, 1), (a, c, -1)):
                self._add(u, v, sign * amount)
        for a, b, c, multiplier in convexity:
            leads, amount = self.leads, count(multiplier) * self.grain
            if not (leads[count(a)] >> count(b) & leads[b] >> count(c) & 1 or leads[c] >> b & leads[b] >> a & 1):
                raise Refused(f"no path leads over node {b} between {a} and {c}")
            self._add(a, c, amount)
            self._add(a, b, -amount)

    def _entries(self, multipliers: Matrix, below: Fraction | None) -> None:
        """Add the multipliers of entries: X is at least 0, and 0 where Lemma 4 says so."""
        for u, row in enumerate(multipliers):
            for v in range(u + 1, self.graph.size):
                if row[v] < 0 and (below is None or self._between(u, v) < below):
                    raise Refused(f"the multiplier of nodes {u} and {v}, which may share a stage, is below 0")
                self._add(u, v, -row[v] * self.grain)

    def _between(self, u: int, v: int) -> int:
        """Return the work of two nodes and of all nodes on paths between them; 0 if no path joins them."""
        leads = self.leads
        a, b = (u, v) if leads[u] >> v & 1 else (v, u)
        if not leads[a] >> b & 1:
            return 0
        return sum(work for w, work in enumerate(self.graph.work) if w in (a, b) or leads[a] >> w & leads[w] >> b & 1)


def reached_nodes(graph: Graph) -> list[int]:
    """Return, for each node, the set of the nodes to which paths lead from it, as bits."""
    leads = [0] * graph.size
    changed = True
    while changed:  # at most once for each node of a longest path, and once more
        changed = False
        for v in reversed(range(graph.size)):
            for u in graph.before[v]:
                more = leads[u] | leads[v] | 1 << v
                changed |= more != leads[u]
                leads[u] = more
    return leads


def _triangle(rows: list[Any], n: int) -> Matrix:
    """Return the symmetric integer matrix with these rows above the diagonal and a diagonal of 0."""
    if [len(row) for row in rows] != list(range(n - 1, -1, -1)) or any(type(x) is not int for row in rows for x in row):
        raise Refused("a matrix is not one row of integers for each node, of its pairs with those behind it")
    return [[rows[min(u, v)][abs(u - v) - 1] if u != v else 0 for v in range(n)] for u in range(n)]


def _fewest(members: int, stages: int) -> int:
    """Return the fewest pairs of members that share a stage: stages are as even as possible."""
    size, large = divmod(members, stages)
    return large * size * (size + 1) // 2 + (stages - large) * size * (size - 1) // 2


def _mean(v: int, near: list[int], members: list[int], width: int, most: bool) -> list[tuple[int, int]]:
    """Return coefficients, with sum `ONE`, of the members with the largest entries in row ``v``; least, unless ``most``.

    The entry of node ``v`` itself counts as the largest.
    """
    if v in members and (most or len(members) == 1):
        return [(v, ONE)]
    others = [u for u in members if u != v]
    end = max(near[u] for u in others) if most else min(near[u] for u in others)
    close = [(u, width - abs(end - near[u])) for u in others if abs(end - near[u]) < width]
    total = sum(part for _, part in close)
    shares = [(u, part * ONE // total) for u, part in close]
    return [(shares[0][0], shares[0][1] + ONE - sum(share for _, share in shares)), *shares[1:]]
