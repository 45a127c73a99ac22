"""The bound ``bisection``: how operators divide between two buses, by a semidefinite relaxation.

Proof: Theorem 2 of ``docs/proofs/bisection.md``. The weights are an approximate dual solution of the relaxation; any
weights that satisfy the theorem give a valid bound.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from tvm_sched_runtime.problem import HOST, Problem
from tvm_sched_runtime.search_budget import check_time

from .assignment import AssignmentProgram, BusRow
from .partitions.eigenvalue import UNIT, least_eigenvalue
from .relaxation import Relaxation

Array = npt.NDArray[np.float64]

MOST_OPERATORS = 128
"""Largest number of operators; an iteration takes O(operators³)."""

LEVELS = 24
"""Largest number of rows of a bus. A row counts the transfers that end at least some time before the end of the run."""

ROUNDS, LOOK_EVERY = (200, 600), 100
"""Iterations of the two rounds, and between two computations of the bound. The second round uses the product of the buses'
idle times at the latency that the first round found."""

GAIN = 1e-4
"""A round ends if the bound has grown by less than this fraction since it was last computed."""

SCALE = 1 << 50
"""Integer for the sum of the weights of the rows."""

SAFETY = 1e-7
"""Fraction by which the bound is lowered, so that the matrix stays positive definite when the weights are rounded."""

RAISED, LEAST = (1.1, 2.0, 4.0, 8.0, 16.0), 1e-9
"""Raises of the diagonal to try, as multiples of what makes the matrix positive definite, and the least raise per unit."""

PENALTY, STEP = 0.03, 1.6
"""Penalty parameter of the alternating directions (the best of four on the half "tuned on" of ``benchmarks/unequal.py``),
and step length relative to it."""


class Claim(NamedTuple):
    """Claim of a reader on an activation: its price for each side, paid if the reader runs there and the maker does not."""

    tensor: int
    reader: int
    prices: tuple[int, int]


class Bisection(NamedTuple):
    """A bound in nanoseconds, and the integers that prove it."""

    ns: int
    sides: list[str]
    """Names of the two buses."""
    buses: list[BusRow]
    """Rows. Their ``channel`` is the position of the bus in ``sides``."""
    copies: list[Claim]
    product: int
    follows: list[int]
    behind: list[int]
    """Least times to the end of the run, by operator: from the last byte of its host tensors, and from its start."""
    leasts: tuple[int, int]
    """For each bus, the least time from the end of a transfer that the product counts to the end of the run."""
    diagonal: list[int]
    slack: int


class DualWeights(NamedTuple):
    """Weights of the rows (their sum is 1), claims (rows by side), the product, and the diagonal."""

    rows: Array
    claims: Array
    product: float
    diagonal: Array


def bisection_bound(relaxation: Relaxation) -> Bisection | None:
    """Return the bound; None for large problems, if devices do not load over exactly two buses, or if no copy uses a bus."""
    if not relaxation.of_schedules or not 1 < len(relaxation.shortest) <= MOST_OPERATORS:
        return None
    sides = Sides(relaxation)
    if sides.channels is None or not sides.pairs:
        return None
    with threadpool_limits(1):  # matrices are small, and other searches have the other cores
        return DualSearch(sides).found()


@dataclass(frozen=True)
class Sides:
    """The two sides: the devices of each bus, and for how long operators and copies occupy it."""

    relaxation: Relaxation

    @cached_property
    def program(self) -> AssignmentProgram:
        """The program of assignments over the same relaxation."""
        return AssignmentProgram(self.relaxation)

    @property
    def problem(self) -> Problem:
        """The problem that is relaxed."""
        return self.relaxation.problem

    @cached_property
    def channels(self) -> tuple[int, int] | None:
        """The two buses downwards; None if a device shares host memory, or there are not two."""
        channels = self.program.load_channels
        if len(channels) != 2 or None in self.program.loads or self.problem.topology.maps_storage:
            return None
        return channels[0], channels[1]

    @cached_property
    def side(self) -> list[int]:
        """By device, the position of its bus."""
        assert self.channels is not None
        return [self.channels.index(route.channels[0]) for route in self.program.loads if route is not None]

    @cached_property
    def names(self) -> list[str]:
        """The names of the two buses."""
        return [self.problem.topology.devices[self.side.index(k)].bus for k in (0, 1)]

    def entry(self, t: int, side: int) -> int:
        """Return the least time for which bringing a tensor to a side occupies the side's bus."""
        assert self.channels is not None
        index, channel, topology = self.problem.graph.index, self.channels[side], self.problem.topology
        route_of = topology.route if index.producer[t] >= 0 else topology.host_route
        inside = [d for d, own in enumerate(self.side) if own == side]
        sources = [d for d, own in enumerate(self.side) if own != side] + ([HOST] if index.producer[t] < 0 else [])
        routes = [route for s in sources for d in inside if (route := route_of(s, d)) is not None]
        size = index.size[t]
        return min((r.nanoseconds(size) if channel in r.channels else 0 for r in routes), default=0)

    @cached_property
    def reader_of(self) -> dict[int, int]:
        """The reader to which each host tensor is assigned, as the checker does: `AssignmentProgram.reader_of`."""
        index, direct, best = self.problem.graph.index, self.relaxation.host.direct, dict[int, tuple[float, int, int]]()
        for o, (tensors, sizes) in enumerate(zip(index.host_inputs, index.host_bytes, strict=True)):
            for t, size in zip(tensors, sizes, strict=True):
                key = float(size) if direct[o] else math.inf, int(self.follows[0][o]), -o
                best[t] = max(best.get(t, key), key)
        return {t: -negative for t, (*_, negative) in best.items()}

    @cached_property
    def loads(self) -> npt.NDArray[np.int64]:
        """By operator and side, the least time for which its host tensors occupy the bus; 0 if it cannot run there."""
        own, most = defaultdict[int, list[int]](list), np.iinfo(np.int64).max
        for t, o in self.reader_of.items():
            own[o].append(t)
        least = np.full((len(self.relaxation.shortest), 2), most)
        for o, row in enumerate(least):
            for d, direct, _ in self.program.options(o):
                side = self.side[d]
                brought = 0 if direct else sum(self.entry(t, side) for t in own[o])
                row[side] = min(row[side], int(self.problem.host_reads_ns[o, d]) if direct else brought)
        return np.where(least == most, 0, least)

    @cached_property
    def pairs(self) -> list[tuple[int, int, int]]:
        """Activation, maker and reader of each edge whose copy occupies a bus."""
        index = self.problem.graph.index
        return [
            (t, index.producer[t], b)
            for t, readers in enumerate(index.consumers)
            if index.producer[t] >= 0 and (self.entry(t, 0) or self.entry(t, 1))
            for b in readers
        ]

    @cached_property
    def follows(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Least times to the end of the run from the last byte of host tensors, and from the arrival of activations."""
        lowered = [np.floor(np.array(times) * (1 - 1e-9)).astype(np.int64) for times in self.program.before_end]
        return lowered[0], lowered[1]

    @cached_property
    def rows(self) -> list[tuple[int, int]]:
        """Side and time of each row."""
        times = np.unique(np.concatenate(self.follows))
        levels = times[np.unique(np.linspace(0, len(times) - 1, LEVELS).astype(np.int64))]
        return [(side, int(level)) for side in (0, 1) for level in levels]


@dataclass
class DualSearch:
    """Alternating directions on the dual of the relaxation (Wen, Goldfarb and Yin 2010)."""

    sides: Sides

    def __post_init__(self) -> None:
        sides = self.sides
        self.unit = float(max(sides.loads.max(axis=1).sum() / 2, 1.0))
        self.n = len(sides.loads)
        least = int(sides.follows[0].min())
        self.leasts = least, least
        self.times = {t: (sides.entry(t, 0), sides.entry(t, 1)) for t, *_ in sides.pairs}
        self.behind: dict[int, int] = {}
        for t, _, b in sides.pairs:
            self.behind[t] = min(self.behind.get(t, int(sides.follows[1][b])), int(sides.follows[1][b]))

    def found(self) -> Bisection | None:
        """Search for weights; return what they prove after rounding."""
        best, weights, resumed = 0.0, None, None
        aim = float(self.sides.loads.min(axis=1).sum()) / 2
        for iterations in ROUNDS:
            relaxed, last = _Relaxed(self, aim, resumed), 0.0
            for _ in range(iterations // LOOK_EVERY):
                relaxed.run(LOOK_EVERY)
                found = relaxed.weights()
                value, found = self.raised(found) if found is not None else (0.0, None)
                if value > best:
                    best, weights = value, found
                if last and value <= last * (1 + GAIN):
                    break
                last = value
            resumed, aim = relaxed, float(relaxed.point[0]) * self.unit
        return None if weights is None else self.rounded(weights, best)

    def pieces(self, weights: DualWeights) -> tuple[Callable[[float], float], Callable[[float], Array], Array]:
        """Return ``y^T M y``: constant and linear part as functions of the latency, and the matrix of the quadratic part."""
        sides, n = self.sides, self.n
        per = np.zeros((n, 2))
        for (side, least), x in zip(sides.rows, weights.rows, strict=True):
            per[:, side] += x * (sides.follows[0] >= least) * sides.loads[:, side]
        ells = sum(x * least for (_, least), x in zip(sides.rows, weights.rows, strict=True))
        linear = per[:, 0] - per[:, 1] - weights.diagonal
        a, b, mu = sides.loads[:, 0].astype(float), sides.loads[:, 1].astype(float), weights.product
        form = mu * (np.outer(a, b) + np.outer(b, a)) / 2 + np.diag(weights.diagonal)
        for (_, maker, reader), (first, second) in zip(sides.pairs, weights.claims, strict=True):
            linear[reader] += first
            linear[maker] += second
            form[maker, reader] -= (first + second) / 2
            form[reader, maker] -= (first + second) / 2

        def constant(latency: float) -> float:
            room = (latency - self.leasts[0]) * (latency - self.leasts[1] - b.sum())
            return float(ells - latency * weights.rows.sum() + per[:, 1].sum() - mu * room)

        def slope(latency: float) -> Array:
            room = latency - self.leasts[0], latency - self.leasts[1] - b.sum()
            return np.asarray(linear - mu * (room[0] * b - room[1] * a))

        return constant, slope, form

    def raised(self, weights: DualWeights) -> tuple[float, DualWeights]:
        """Raise the diagonal so that the matrix is positive definite; return the best bound and its weights."""
        lowest = float(np.linalg.eigvalsh(self.pieces(weights)[2])[0])
        least = max(-lowest, LEAST * self.unit)
        tried = [weights._replace(diagonal=weights.diagonal + factor * least) for factor in RAISED]
        return max(((self.value(each), each) for each in tried), key=lambda each: each[0])

    def value(self, weights: DualWeights) -> float:
        """Return the largest latency that the weights exclude; 0 if there is none, or the form is not positive definite."""
        constant, slope, form = self.pieces(weights)
        try:
            np.linalg.cholesky(form)
        except np.linalg.LinAlgError:
            return 0.0
        excess = []
        for part in (0.0, 0.5, 1.0):
            linear = slope(part * self.unit)
            excess.append(constant(part * self.unit) - float(linear @ np.linalg.solve(form, linear)) / 4)
        # A concave polynomial of second degree: latencies up to its larger root are refuted.
        left, middle, right = excess
        square, line = 2 * (left + right - 2 * middle), 4 * middle - 3 * left - right
        inside = line * line - 4 * square * left
        return (-line - math.sqrt(inside)) / (2 * square) * self.unit if square < 0 <= inside else 0.0

    def rounded(self, weights: DualWeights, value: float) -> Bisection | None:
        """Round weights to integers, and return the bound that they prove; None if rounding breaks the proof."""
        sides = self.sides
        buses = [
            BusRow(side, least, int(SCALE * x))
            for (side, least), x in zip(sides.rows, weights.rows, strict=True)
            if int(SCALE * x)
        ]
        by_tensor: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for (t, _, b), both in zip(sides.pairs, weights.claims, strict=True):
            for side in (0, 1):
                by_tensor[t, side].append((b, int(SCALE * both[side])))
        prices: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
        for (t, side), claims in by_tensor.items():
            weight = sum(x for own, least, x in buses if own == side and least <= self.behind[t])
            most, total = self.times[t][side] * weight, sum(claim for _, claim in claims)
            for b, claim in claims:
                prices[t, b][side] = claim if total <= most else claim * most // total
        copies = [Claim(t, b, (first, second)) for (t, b), (first, second) in prices.items() if first or second]
        ns = math.floor(value * (1 - SAFETY))
        bound = Bisection(
            ns, sides.names, buses, copies, int(SCALE * weights.product),
            sides.follows[0].tolist(), sides.follows[1].tolist(), self.leasts,
            [round(SCALE * each) for each in weights.diagonal.tolist()], 0,
        )  # fmt: skip
        matrix = self._matrix(bound).astype(float)
        try:
            least = float(np.linalg.solve(matrix[1:, 1:], matrix[1:, 0]) @ matrix[1:, 0])
        except np.linalg.LinAlgError:
            return None
        slack = int((matrix[0, 0] - least) / 2)
        bound = bound._replace(slack=slack)
        matrix = self._matrix(bound).astype(float)
        rounding = 4 * UNIT * float(np.abs(matrix).sum(axis=1).max())
        missing = max(-least_eigenvalue(matrix), 0.0) + rounding
        return bound if slack > 2 * missing * (self.n + 1) else None

    def _matrix(self, bound: Bisection) -> npt.NDArray[np.object_]:
        """Return twice the matrix of Theorem 2 in integers."""
        sides, n = self.sides, self.n
        a, b = ([int(each) for each in sides.loads[:, side]] for side in (0, 1))
        per = [[0, 0] for _ in range(n)]
        constant = -2 * bound.slack // 2
        for side, least, x in bound.buses:
            constant -= 2 * x * (bound.ns - 1 - least)
            for o, behind in enumerate(sides.follows[0].tolist()):
                per[o][side] += x * int(sides.loads[o, side]) if behind >= least else 0
        room = bound.ns - 1 - bound.leasts[0], bound.ns - 1 - bound.leasts[1] - sum(b)
        constant += 2 * sum(second for _, second in per) - 2 * bound.product * room[0] * room[1]
        matrix = bound.product * (np.outer(np.array(a, object), b) + np.outer(np.array(b, object), a))
        linear = [
            first - second - y - bound.product * (room[0] * load_b - room[1] * load_a)
            for (first, second), y, load_a, load_b in zip(per, bound.diagonal, a, b, strict=True)
        ]
        for o, y in enumerate(bound.diagonal):
            matrix[o, o] += 2 * y
        maker = self.sides.problem.graph.index.producer
        for t, reader, (first, second) in bound.copies:
            linear[reader] += first
            linear[maker[t]] += second
            matrix[maker[t], reader] -= first + second
            matrix[reader, maker[t]] -= first + second
        whole = np.zeros((n + 1, n + 1), object)
        whole[0, 0], whole[0, 1:], whole[1:, 0], whole[1:, 1:] = constant, linear, linear, matrix
        return whole


class _Relaxed:
    """The relaxation with the product of the buses' idle times at one latency, and the iterations on its dual."""

    def __init__(self, search: DualSearch, latency: float, resumed: _Relaxed | None = None) -> None:
        self.search, sides, unit, n = search, search.sides, search.unit, search.n
        rows, pairs = sides.rows, sides.pairs
        entered = {key: i for i, key in enumerate((t, side) for t in search.times for side in (0, 1))}
        own = 1 + len(rows) + len(entered) + 2 * len(pairs) + 1  # latency, room, entries, room of claims and product
        self.own, size = own, n + 1
        self.size, matrix, limits = size, [], []
        at = own + np.arange(size * size).reshape(size, size)

        def add(limit: float, entries: list[tuple[int, float]]) -> None:
            matrix.append(entries)
            limits.append(limit)

        def value(o: int, factor: float) -> list[tuple[int, float]]:
            return [(int(at[0, o + 1]), factor / 2), (int(at[o + 1, 0]), factor / 2)]

        add(1.0, [(own, 1.0)])
        for o in range(n):
            add(0.0, [(int(at[o + 1, o + 1]), 1.0), *value(o, -1.0)])
        loads = sides.loads / unit
        for i, (side, least) in enumerate(rows):
            counted = np.flatnonzero(sides.follows[0] >= least)
            entries, limit = [(0, -1.0), (1 + i, 1.0)], -least / unit
            for o in counted.tolist():
                entries += value(o, float(loads[o, side]) * (1 if side == 0 else -1))
            limit -= float(loads[counted, 1].sum()) if side else 0.0
            entries += [
                (1 + len(rows) + k, search.times[t][side] / unit)
                for (t, where), k in entered.items()
                if where == side and search.behind[t] >= least
            ]
            add(limit, entries)
        first = 1 + len(rows) + len(entered)
        for i, (t, maker, reader) in enumerate(pairs):
            both = [(int(at[maker + 1, reader + 1]), -0.5), (int(at[reader + 1, maker + 1]), -0.5)]
            for side, there in ((0, reader), (1, maker)):
                entry = 1 + len(rows) + entered[t, side], -1.0
                add(0.0, [*value(there, 1.0), *both, entry, (first + 2 * i + side, 1.0)])
        a, b = loads[:, 0], loads[:, 1]
        room = (latency - search.leasts[0]) / unit, (latency - search.leasts[1]) / unit - b.sum()
        entries = [(own - 1, 1.0)]
        for o, factor in enumerate((room[1] * a - room[0] * b).tolist()):
            entries += value(o, factor)
        form = (np.outer(a, b) + np.outer(b, a)) / 2
        entries += list(zip(at[1:, 1:].ravel().tolist(), form.ravel().tolist(), strict=True))
        add(room[0] * room[1], entries)

        from scipy.sparse import coo_array

        places = [(r, c, v) for r, row in enumerate(matrix) for c, v in row]
        where_r, where_c, values = map(np.array, zip(*places, strict=True))
        operator = coo_array((values, (where_r, where_c)), shape=(len(matrix), own + size * size)).tocsr()
        self.norms = np.sqrt(np.asarray(operator.multiply(operator).sum(axis=1))).ravel()
        self.operator = coo_array((values / self.norms[where_r], (where_r, where_c)), shape=operator.shape).tocsr()
        self.limits = np.array(limits) / self.norms
        gram = (self.operator @ self.operator.T).toarray()
        self.inverse = np.linalg.inv(gram + 1e-12 * np.eye(len(gram)))
        self.cost = np.zeros(operator.shape[1])
        self.cost[0] = 1.0
        self.point, self.cone = np.zeros(operator.shape[1]), np.zeros(operator.shape[1])
        self.multipliers = np.zeros(len(matrix))
        if resumed is not None:
            self.point, self.cone = resumed.point, resumed.cone

    def run(self, iterations: int) -> None:
        """Run some iterations."""
        operator, cost = self.operator, self.cost
        for _ in range(iterations):
            check_time()
            missing = operator @ self.point - self.limits
            self.multipliers = -self.inverse @ (PENALTY * missing + operator @ (self.cone - cost))
            rest = cost - operator.T @ self.multipliers
            moved = rest - PENALTY * self.point
            self.cone = self._projected(moved)
            change = (self.cone - moved) / PENALTY - self.point
            self.point = self.point + STEP * change

    def _projected(self, point: Array) -> Array:
        """Return the nearest point of the cone: numbers from 0, and a positive semidefinite matrix."""
        found = np.maximum(point, 0.0)
        matrix = point[self.own :].reshape(self.size, self.size)
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        positive = values > 0
        if 2 * positive.sum() <= len(values):
            chosen = vectors[:, positive]
            part = (chosen * values[positive]) @ chosen.T
        else:
            chosen = vectors[:, ~positive]
            part = (matrix + matrix.T) / 2 - (chosen * values[~positive]) @ chosen.T
        found[self.own :] = part.ravel()
        return found

    def weights(self) -> DualWeights | None:
        """Return the multipliers as weights in nanoseconds, each of the sign that the theorem requires."""
        search, n = self.search, self.search.n
        duals = -self.multipliers / self.norms
        rows = np.maximum(duals[1 + n : 1 + n + len(search.sides.rows)], 0.0)
        total = float(rows.sum())
        if not total > 0 or not np.isfinite(duals).all():
            return None
        duals, rows = duals / total, rows / total
        claims = np.maximum(duals[1 + n + len(rows) : -1].reshape(-1, 2), 0.0) * search.unit
        sums: dict[tuple[int, int], float] = defaultdict(float)
        for (t, *_), both in zip(search.sides.pairs, claims, strict=True):
            for side in (0, 1):
                sums[t, side] += both[side]
        for (t, *_), both in zip(search.sides.pairs, claims, strict=True):
            for side in (0, 1):
                weight = sum(
                    x for (own, least), x in zip(search.sides.rows, rows, strict=True)
                    if own == side and least <= search.behind[t]
                )  # fmt: skip
                most = search.times[t][side] * weight
                both[side] *= min(1.0, most / sums[t, side]) if sums[t, side] > 0 else 1.0
        product, diagonal = max(float(duals[-1]), 0.0) / search.unit, duals[1 : 1 + n] * search.unit
        return DualWeights(rows, claims, product, diagonal)
