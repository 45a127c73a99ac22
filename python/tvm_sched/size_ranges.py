"""Schedule a model with open dimensions at a few sizes, and certify all sizes between them (``docs/proofs/ranges.md``)."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from graphlib import TopologicalSorter
from itertools import pairwise, product
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.errors import GraphError, InfeasibleError, InputError
from tvm_sched_runtime.files import write_document
from tvm_sched_runtime.problem import FORBIDDEN, HOST, Costs, Operator, Problem, Scenario, Tensor, Variants, Workload
from tvm_sched_runtime.problem.costs import concatenate_costs
from tvm_sched_runtime.problem.variants import all_alternatives
from tvm_sched_runtime.schedule import Schedule, ScheduleIndex
from tvm_sched_runtime.schedule.resolve import in_scenarios
from tvm_sched_runtime.schedule.verifier import violations
from tvm_sched_runtime.search_budget import ending_at

from .bounds import lower_bound
from .bounds.schedule_evidence import evidence
from .progress import Progress, report_to
from .schedulers import solve
from .schedulers.solve_latency import Options, certificate

FORMAT, VERSION = "tvm_sched.range", 1
FACTOR, MOST = 1.3, 16
"""Factor that is aimed at, and the most anchors."""
NEAR_GAP = 1.05
"""No anchor is added once the factor is within 5 % of the largest gap of a schedule at its own anchor: no anchor makes
that gap smaller."""
BOUND_SECONDS = 5.0
Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Anchor:
    """A set of sizes with a schedule."""

    sizes: Sizes
    """Of the symbols, in their order."""
    problem: Problem
    """The problem with the largest of each number over this and all smaller anchors."""
    below: Problem
    """That with the least of each number over this and all larger anchors; ``problem`` itself if no number falls."""
    schedule: Schedule
    """Of ``problem``, with a certificate."""
    bound_ns: int
    """Lower bound of ``below``."""

    @property
    def latency_ns(self) -> int:
        """Latency of the schedule."""
        assert self.schedule.certificate is not None
        return self.schedule.certificate.latency_ns


@dataclass(frozen=True)
class Cell:
    """Sizes from ``low`` to ``high``, for which one schedule is taken and one bound holds."""

    low: Sizes
    high: Sizes
    taken: Anchor
    """The fastest of the anchors that are no smaller."""
    under: Anchor
    """That with the greatest bound of the anchors that are no larger."""

    @property
    def factor(self) -> Fraction:
        """Upper bound of latency over least latency at each of the sizes (Theorem 4)."""
        return Fraction(self.taken.latency_ns, max(self.under.bound_ns, 1)) if self.taken.latency_ns else Fraction(1)

    def splits(self) -> list[Sizes]:
        """Return the sizes at which anchors would cut the cell: at the geometric mean of its widest dimension."""
        over, under = self.taken.sizes, self.under.sizes
        open_ = [k for k, (a, b) in enumerate(zip(under, over, strict=True)) if b - a > 1]
        if not open_:
            return []
        k = max(open_, key=lambda k: Fraction(over[k] + 1, under[k] + 1))
        middle = min(max(math.isqrt(over[k] * under[k]), under[k] + 1), over[k] - 1)
        return list(dict.fromkeys((*sizes[:k], middle, *sizes[k + 1 :]) for sizes in (over, under)))


@dataclass(frozen=True)
class RangeSchedules:
    """Schedules for all sizes in a range."""

    symbols: Mapping[str, tuple[int, int]]
    """The least and the largest size of each symbol."""
    anchors: tuple[Anchor, ...]
    """The fastest first; equal ones in the order of their sizes."""
    resident: frozenset[str] = frozenset()
    """Parameters on the devices when a run begins."""

    @cached_property
    def cells(self) -> list[Cell]:
        """Cells that cover the range."""

        def parts(k: int, low: int, high: int) -> list[tuple[int, int]]:
            at = sorted({anchor.sizes[k] for anchor in self.anchors} | {low, high})
            return [(a, a) for a in at] + [(a + 1, b - 1) for a, b in pairwise(at) if b - a > 1]

        cells = []
        for sides in product(*(parts(k, *limits) for k, limits in enumerate(self.symbols.values()))):
            low, high = tuple(a for a, _ in sides), tuple(b for _, b in sides)
            under = [anchor for anchor in self.anchors if _within(anchor.sizes, low)]
            cells.append(Cell(low, high, self._take(high), max(under, key=lambda anchor: anchor.bound_ns)))
        return cells

    @property
    def worst(self) -> Cell:
        """The cell with the largest factor."""
        return max(self.cells, key=lambda cell: cell.factor)

    @property
    def factor(self) -> float:
        """At each size in the range, the schedule that is taken has at most this many times the least latency."""
        return math.ceil(self.worst.factor * 10_000) / 10_000

    @property
    def adjusted(self) -> bool:
        """Whether some number falls as sizes grow, so that `Anchor.problem` and `Anchor.below` differ."""
        return any(anchor.below is not anchor.problem for anchor in self.anchors)

    def take(self, sizes: Mapping[str, int]) -> Anchor:
        """Return the anchor whose schedule runs at these sizes, all of them in the range."""
        return self._take(tuple(sizes[name] for name in self.symbols))

    def _take(self, sizes: Sizes) -> Anchor:
        return next(anchor for anchor in self.anchors if _within(sizes, anchor.sizes))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the schedules with the evidence of their bounds, which ``tvm-sched check`` verifies."""
        entries, bounds = [], {}
        for anchor in self.anchors:
            proof = evidence(Scenario(anchor.below, self.resident))
            bounds[anchor.sizes] = proof.proved_ns
            entry = {"sizes": anchor.sizes, "problem": _plain(anchor.problem), "schedule": _plain(anchor.schedule)}
            below = {} if anchor.below is anchor.problem else {"below": _plain(anchor.below)}
            entries.append(entry | below | {"evidence": msgspec.json.decode(proof.to_json())})
        proved = RangeSchedules(
            self.symbols, tuple(_with_bound(anchor, bounds[anchor.sizes]) for anchor in self.anchors), self.resident
        )
        worst = proved.worst
        body = {
            "symbols": [{"name": name, "low": low, "high": high} for name, (low, high) in self.symbols.items()],
            "factor": [worst.factor.numerator, worst.factor.denominator],
            **({"resident": sorted(self.resident)} if self.resident else {}),
            "anchors": entries,
        }
        write_document(path, body, FORMAT, VERSION)


def same_order(one: Schedule, other: Schedule) -> bool:
    """Whether two schedules make the same decisions, whatever their names and certificates."""
    bare = [
        schedule.replace(problem="", certificate=None, notes={}, seconds=0.0, options={}, scheduler="", workload="")
        for schedule in (one, other)
    ]
    return bool(bare[0] == bare[1])


def _with_bound(anchor: Anchor, ns: int) -> Anchor:
    return Anchor(anchor.sizes, anchor.problem, anchor.below, anchor.schedule, ns)


def _plain(document: Problem | Schedule) -> Any:
    return msgspec.json.decode(document.to_json())


def _within(low: Sizes, high: Sizes) -> bool:
    return all(a <= b for a, b in zip(low, high, strict=True))


def schedule_range(
    problem_at: Callable[[dict[str, int]], Problem],
    symbols: Mapping[str, tuple[int, int]],
    workload: Workload | None = None,
    method: str = "anytime",
    options: Options = None,
    *,
    factor: float = FACTOR,
    most: int = MOST,
    progress: Progress | None = None,
) -> RangeSchedules:
    """Schedule a model at a few sizes, so that each size in a range has a schedule within a factor of the least latency.

    The first anchors are the least and the largest sizes. While the factor is larger than ``factor``, others cut the sizes
    for which it is the largest.

    Parameters
    ----------
    problem_at : callable
        Makes the problem at given sizes. Problems differ in sizes and times only.
    symbols : mapping of str to (int, int)
        The least and the largest size of each symbol.
    workload : Workload, optional
        One kind of run; default: a cold run.
    factor : float
        Factor that is aimed at. It is not reached if a gap at an anchor is larger, or ``most`` anchors are not enough.
    most : int
        The most anchors.

    Raises
    ------
    InputError
        The graphs at two sizes differ, operators run together (``costs.concurrency``), or the workload has several requests.
    InfeasibleError
        No schedule is proved to fit into memory at all smaller sizes.
    """
    requests = workload.requests if workload else ()
    if len(requests) > 1:
        raise InputError(f"a range of sizes with {len(requests)} kinds of requests; one kind is allowed")
    if not factor >= 1 or most < 2:
        raise InputError(
            f"factor {factor} and {most} anchors; a factor of 1 or more, and at least 2 anchors are allowed"
        )
    resident = frozenset(requests[0].resident) if requests else frozenset[str]()
    search = _Search(dict(symbols), resident, workload or Workload(), method, options, progress)
    low, high = zip(*symbols.values(), strict=True)
    wanted = list(dict.fromkeys([low, high]))
    while True:
        for sizes in wanted:
            search.add(sizes, problem_at)
        found = search.result()
        worst, gap = found.worst, max(cell.factor for cell in found.cells if cell.low == cell.taken.sizes)
        wanted = [sizes for sizes in worst.splits() if sizes not in search.problems]
        if worst.factor <= max(factor, NEAR_GAP * gap) or not wanted or len(found.anchors) + len(wanted) > most:
            return found


@dataclass
class _Search:
    """The problems and schedules so far."""

    symbols: dict[str, tuple[int, int]]
    resident: frozenset[str]
    workload: Workload
    method: str
    options: Options
    progress: Progress | None

    def __post_init__(self) -> None:
        self.problems: dict[Sizes, Problem] = {}
        self.schedules: list[Schedule] = []
        self.latencies: dict[tuple[Problem, int], int | None] = {}
        self.envelopes: dict[tuple[Any, ...], Problem] = {}

    def add(self, sizes: Sizes, problem_at: Callable[[dict[str, int]], Problem]) -> None:
        """Make the problem at some sizes, and schedule it."""
        problem = problem_at(dict(zip(self.symbols, sizes, strict=True)))
        if problem.costs.concurrency is not None:
            raise InputError(
                "the costs say how long operators take together, so that a run can take longer where operators take less "
                "(docs/proofs/ranges.md); schedule without streams, or give one size"
            )
        for other, first in list(self.problems.items())[:1]:
            _check_form(first, problem, self._named(other), self._named(sizes))
        self.problems[sizes] = problem
        with report_to(self.progress):
            self.schedules.append(solve(problem, self.workload, self.method, self.options, progress=self.progress))

    def _named(self, sizes: Sizes) -> str:
        return ", ".join(f"{name}={size}" for name, size in zip(self.symbols, sizes, strict=True))

    def result(self) -> RangeSchedules:
        """Return the anchors, each with the fastest of all schedules."""
        anchors, used = [], set[int]()
        for sizes in sorted(self.problems, reverse=True):
            above = self._envelope(sizes, np.maximum, [at for at in self.problems if _within(at, sizes)])
            below = self._envelope(sizes, np.minimum, [at for at in self.problems if _within(sizes, at)])
            with ending_at(time.monotonic() + BOUND_SECONDS):
                bound = lower_bound(Scenario(below, self.resident)).ns
                ranked = [
                    (ns, k not in used, k)
                    for k in range(len(self.schedules))
                    if (ns := self._price(above, k)) is not None
                ]
                if not ranked:
                    raise InfeasibleError(
                        f"no schedule for {self._named(sizes)} is known to fit into the devices' memory at all smaller "
                        "sizes; give a larger least size, or schedule sizes one by one"
                    )
                used.add(min(ranked)[2])
                best = self.schedules[min(ranked)[2]].replace(problem=above.digest)
                best = best.replace(certificate=certificate(above, best, self.workload))
            anchors.append(Anchor(sizes, above, below, best, bound))
        anchors.sort(key=lambda anchor: (anchor.latency_ns, anchor.sizes))
        return RangeSchedules(self.symbols, tuple(anchors), self.resident)

    def _envelope(self, sizes: Sizes, pick: np.ufunc, others: list[Sizes]) -> Problem:
        """Return the problem at some sizes with the largest, or least, numbers of those at ``others``."""
        key = pick, sizes, *others
        if key not in self.envelopes:
            self.envelopes[key] = _envelope(self.problems[sizes], [self.problems[at] for at in others], pick)
        return self.envelopes[key]

    def _price(self, problem: Problem, k: int) -> int | None:
        """Return the latency of a schedule if it fits into memory whatever the times are, else None."""
        if (problem, k) not in self.latencies:
            schedule = self.schedules[k].replace(problem=problem.digest, certificate=None)
            self.latencies[problem, k] = None
            if not violations(problem, schedule, limit=1, resident=tuple(self.resident)):
                runs = in_scenarios([Scenario(problem), Scenario(problem, self.resident)], schedule)
                if all(fits_at_any_times(run) for run in runs):
                    self.latencies[problem, k] = runs[1].times.latency_ns
        return self.latencies[problem, k]


def fits_at_any_times(index: ScheduleIndex) -> bool:
    """Whether a schedule fits into memory whatever its operators and transfers take (Lemma 3); sizes are the problem's."""
    problem, graph, count = index.problem, index.problem.graph.index, index.placements.shape[1]
    names, topology = problem.graph.tensors, problem.topology
    resident = {graph.tensor_id[n] for n in index.scenario.resident if n in graph.tensor_id}
    resident -= {t for t, _ in index.evicted}
    arrival = {
        (t, d): p for p, (o, d) in enumerate(zip(index.operator, index.device, strict=True)) for t in graph.outputs[o]
    }
    moves = list(
        zip(index.transfer_kind, index.transfer_item, index.transfer_source, index.transfer_device, strict=True)
    )
    arrival |= {(t, d): x for x, (kind, t, _, d) in enumerate(moves, count) if kind != ScheduleIndex.HOST_READ}
    held: list[list[tuple[int, int]]] = [[] for _ in topology.devices]  # tensors and events
    for (t, d), event in arrival.items():
        held[d].append((t, event))
    tight = [d for d, device in enumerate(topology.devices) if sum(graph.size[t] for t, _ in held[d]) > device.memory]
    if not tight:
        return True
    waits: list[list[tuple[int, bool]]] = [[] for _ in range(count + len(moves))]  # and whether for a direct read only
    users: dict[tuple[int, int], set[int]] = {at: {event} for at, event in arrival.items()}

    def read(t: int, d: int, event: int) -> None:
        if (t, d) in arrival:
            waits[event].append((arrival[t, d], False))
            users[t, d].add(event)

    last: dict[Any, tuple[int, bool]] = {}
    placed = {o: p for p, o in enumerate(index.operator)}
    for p, (o, d, direct) in enumerate(zip(index.operator, index.device, index.direct, strict=True)):
        waits[p] += [last[d, "device"]] if (d, "device") in last else []
        last[d, "device"] = p, False
        for t in graph.inputs[o]:
            if not (direct and names[t].kind != "activation"):
                read(t, d, p)
    for x, (kind, item, source, d) in enumerate(moves, count):
        direct_read = kind == ScheduleIndex.HOST_READ
        event = placed[item] if direct_read else x
        if not direct_read and item in resident:
            continue
        if kind == ScheduleIndex.COPY:
            read(item, source, x)
        channels = problem.route(source if kind == ScheduleIndex.COPY else HOST, d).channels
        waits[event] += [last[c] for c in channels if c in last]
        last |= dict.fromkeys(channels, (event, direct_read))
    begun, ended = [0] * len(waits), [0] * len(waits)  # sets of events that have begun, or ended, when one begins
    for e in TopologicalSorter({e: [w for w, _ in before] for e, before in enumerate(waits)}).static_order():
        for w, bus in waits[e]:
            begun[e] |= begun[w] | 1 << w
            ended[e] |= ended[w] | (0 if bus else 1 << w)

    def need(d: int, e: int) -> int:
        total = 0
        for t, event in held[d]:
            stays = (names[t].kind == "parameter" or t in graph.graph_outputs) and (t, d) not in index.evicted
            later = t not in resident and begun[event] >> e & 1
            if not later and (stays or any(not ended[e] >> u & 1 for u in users[t, d])):
                total += graph.size[t]
        return total

    return all(need(d, e) <= topology.devices[d].memory for d in tight for e in {event for _, event in held[d]})


def _check_form(first: Problem, other: Problem, at_first: str, at_other: str) -> None:
    """Raise `GraphError` if two problems differ in more than sizes and times."""
    for what, one, two in zip(_PARTS, _form(first), _form(other), strict=True):
        if one != two:
            raise GraphError(
                f"the graph at {at_other} is not that at {at_first} with other sizes: {what} differ"
                f"{next((f' at {a[0]!r}' for a, b in zip(one, two, strict=False) if a != b), '')}; give a range in "
                "which the graph stays the same, or leave alternatives out (--no-rows, --no-variants)"
            )


_PARTS = "operators", "tensors", "variants", "devices or results"


def _form(problem: Problem) -> tuple[list[Any], ...]:
    """Return operators, tensors, variants and the rest of a problem, without sizes and times."""
    groups = problem.variants.groups if problem.variants else ()
    alternatives = [(group, each) for group in groups for each in group.alternatives]
    operators = [o for _, each in alternatives for o in each.operators]
    tensors = (*problem.graph.tensors, *problem.own_tensors)
    return (
        [(o.name, o.inputs, o.outputs) for o in (*problem.graph.operators, *operators)],
        [(t.name, t.kind) for t in tensors],
        [(g.name, g.operators, g.graph_alternative, a.name, len(a.operators)) for g, a in alternatives],
        [
            ("results", problem.graph.outputs, problem.graph.models),
            (problem.topology.name, problem.topology, problem.joinable),
        ],
    )


def _all(problem: Problem) -> tuple[list[Operator], list[Tensor], Costs]:
    """Return operators, tensors and costs, with those of alternatives."""
    groups = problem.variants.groups if problem.variants else ()
    operators = [*problem.graph.operators, *(o for g in groups for a in g.alternatives for o in a.operators)]
    costs = concatenate_costs([problem.costs, problem.variants.costs]) if problem.variants else problem.costs
    return operators, [*problem.graph.tensors, *problem.own_tensors], costs


def _bytes_read(operators: Sequence[Operator], tensors: Sequence[Tensor]) -> Iterator[int]:
    size = {t.name: t.size for t in tensors}
    for o in operators:
        yield from ((o.read_bytes or {}).get(name, size.get(name, 0)) for name in o.inputs)


@lru_cache(64)
def _numbers(problem: Problem) -> list[npt.NDArray[np.int64]]:
    """Return sizes, bytes read, and times; `FORBIDDEN` is the largest number, and no direct reading takes 0."""
    operators, tensors, costs = _all(problem)
    reads = np.zeros_like(costs.direct_ns) if costs.host_read_ns is None else costs.host_read_ns
    rows = [np.array([t.size for t in tensors]), np.array([*_bytes_read(operators, tensors)], np.int64)]
    return [*rows, costs.operator_ns, costs.direct_ns, np.where(reads == FORBIDDEN, 0, reads)]


def _envelope(own: Problem, others: Sequence[Problem], pick: np.ufunc) -> Problem:
    """Return a problem with the largest, or least, numbers of several problems, itself among them; itself if it has them."""
    mine, rows = _numbers(own), [_numbers(problem) for problem in others]
    extreme = [pick.reduce([row[k] for row in rows]) for k in range(len(mine))]
    if all(np.array_equal(a, b) for a, b in zip(mine, extreme, strict=True)):
        return own
    size, read, operator_ns, direct_ns, host_read = extreme
    bytes_of, reads = dict(zip((t.name for t in _all(own)[1]), size.tolist(), strict=True)), iter(read.tolist())

    def resized(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(msgspec.structs.replace(t, size=bytes_of[t.name]) for t in tensors)

    def reread(operators: Sequence[Operator]) -> tuple[Operator, ...]:
        parts = [{name: next(reads) for name in o.inputs} for o in operators]
        return tuple(
            msgspec.structs.replace(
                o, read_bytes={n: b for n, b in part.items() if b != bytes_of.get(n, 0)} or msgspec.UNSET
            )
            for o, part in zip(operators, parts, strict=True)
        )

    graph = msgspec.structs.replace(
        own.graph, operators=reread(own.graph.operators), tensors=resized(own.graph.tensors)
    )
    groups = []
    for g in own.variants.groups if own.variants else ():
        ways = (
            msgspec.structs.replace(a, operators=reread(a.operators), tensors=resized(a.tensors))
            for a in g.alternatives
        )
        groups.append(msgspec.structs.replace(g, alternatives=tuple(ways)))
    if pick is np.maximum:  # the largest bytes of several sizes together may take the bus longer than those of each
        once = Problem.derive(
            all_alternatives(graph, groups), own.topology, Costs(operator_ns, direct_ns)
        ).host_reads_ns
        several = host_read > 0
        host_read = np.maximum.reduce([once, *(_host_reads(problem) for problem in others)])
        direct_ns = np.where(direct_ns == FORBIDDEN, FORBIDDEN, np.maximum(direct_ns, host_read))
        host_read = np.where(several, host_read, 0)
    reading = np.where((host_read > 0) & (direct_ns != FORBIDDEN), host_read, FORBIDDEN)
    costs = Costs(operator_ns, direct_ns, own.costs.source, None, None, reading)
    rows_of, count = range(len(operator_ns)), len(own.graph.operators)
    variants = Variants(groups, costs.rows(rows_of[count:])) if groups else None
    return Problem(graph, own.topology, costs.rows(rows_of[:count]), variants, own.joinable)


def _host_reads(problem: Problem) -> npt.NDArray[np.int64]:
    """Return the bus times of direct reads, those of alternatives last."""
    if problem.variants is None:
        return problem.host_reads_ns
    whole = all_alternatives(problem.graph, problem.variants.groups)
    return Problem.derive(whole, problem.topology, _all(problem)[2]).host_reads_ns
