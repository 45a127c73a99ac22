"""Check a range file: schedules at several sizes, and how far they are from the optimum at any size between them.

``docs/proofs/ranges.md`` proves what is checked here, ``docs/formats/evidence.md`` describes the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from graphlib import TopologicalSorter
from itertools import chain, pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

from .document import MALFORMED, Refused, count, read
from .replay import IN_PLACE, Replay
from .verdict import proved, replays

MOST_BOXES = 100_000
Sizes = tuple[int, ...]


class Verdict(NamedTuple):
    """The range in words, the number of anchors, and the factors of latency to optimum that are proved and claimed."""

    where: str
    anchors: int
    factor: Fraction
    claimed: Fraction

    @property
    def all_proved(self) -> bool:
        """Whether the claimed factor is proved."""
        return self.factor <= self.claimed

    @property
    def lines(self) -> list[str]:
        """The result as lines of text."""
        proof = f"latency at most {_up(self.factor)} times the least possible"
        return [f"{self.where}: {self.anchors} anchors", f"{proof}; the file claims {_up(self.claimed)}"]


def _up(factor: Fraction) -> str:
    return f"{math.ceil(factor * 10_000) / 10_000:.4f}"


class Anchor(NamedTuple):
    """Sizes, the problems above and below all problems there, the latency of the schedule above, the bound below."""

    sizes: Sizes
    above: dict[str, Any]
    below: dict[str, Any]
    latency: int
    bound: int
    runs: list[Replay]


def check(file: str | Path) -> Verdict:
    """Replay the schedules, prove the bounds and compute the factor; raise `Refused` if the file is wrong."""
    document, _ = read(file, "tvm_sched.range")
    try:
        symbols = [(str(s["name"]), count(s["low"]), count(s["high"])) for s in document["symbols"]]
        resident = sorted(document.get("resident", []))
        anchors = [_anchor(entry, len(symbols), resident) for entry in document["anchors"]]
        factor = _factor(symbols, anchors)
        latency, bound = map(count, document["factor"])
        claimed = _ratio(latency, bound)
    except MALFORMED as error:
        raise Refused(f"a file is not as its format says: {type(error).__name__} {error}") from None
    return Verdict(", ".join(f"{n} from {a} to {b}" for n, a, b in symbols), len(anchors), factor, claimed)


def _anchor(entry: dict[str, Any], symbols: int, resident: list[str]) -> Anchor:
    sizes, above = tuple(map(count, entry["sizes"])), entry["problem"]
    below = entry.get("below", above)
    if len(sizes) != symbols:
        raise Refused(f"the anchor {list(sizes)} does not have a size for each of {symbols} symbols")
    if any(document["costs"].get("concurrency") is not None for document in (above, below)):
        raise Refused("operators run together (costs.concurrency), so that latencies may fall where times rise")
    runs = replays(above, entry["schedule"], resident)
    latency, bound = runs[-1].latency, proved(below, entry["evidence"], resident)
    return Anchor(sizes, above, below, latency, bound, runs)


def _factor(symbols: list[tuple[str, int, int]], anchors: list[Anchor]) -> Fraction:
    """Return the largest ratio of latency to bound over all sizes (Theorem 4)."""
    first = _structure(anchors[0].above)
    if any(_structure(document) != first for a in anchors for document in (a.above, a.below)):
        raise Refused("the problems of two anchors differ in more than sizes and times")
    numbers = [(list(_numbers(a.below)), list(_numbers(a.above))) for a in anchors]
    for (a, (below, _)), (b, (_, above)) in product(zip(anchors, numbers, strict=True), repeat=2):
        if _within(a.sizes, b.sizes) and any(x > y for x, y in zip(below, above, strict=True)):
            raise Refused(f"a size or time at {list(b.sizes)} is less than at {list(a.sizes)}")
    axes = [_parts(low, high, {a.sizes[k] for a in anchors}) for k, (_, low, high) in enumerate(symbols)]
    if math.prod(map(len, axes)) > MOST_BOXES:
        raise Refused(f"the anchors cut the range into more than {MOST_BOXES} boxes")
    largest, fitting = Fraction(0), set[int]()
    for sides in product(*axes):
        low, high = zip(*sides, strict=True) if sides else ((), ())
        over = [a for a in anchors if _within(high, a.sizes)]
        under = [a.bound for a in anchors if _within(a.sizes, low)]
        if not over or not under:
            raise Refused(f"no anchor is {'above' if not over else 'below'} the sizes {list(low)}")
        taken = over[0]  # of the file's order, which says what runs
        if id(taken) not in fitting:
            for run in taken.runs:
                check_memory(run, taken.sizes)
            fitting.add(id(taken))
        largest = max(largest, _ratio(taken.latency, max(under)))
    return largest


def _ratio(latency: int, bound: int) -> Fraction:
    if latency and not bound:
        raise Refused(f"a latency of {latency} ns has the bound 0, which proves nothing")
    return Fraction(latency, bound) if latency else Fraction(1)


def _within(low: Sizes, high: Sizes) -> bool:
    return all(a <= b for a, b in zip(low, high, strict=True))


def _parts(low: int, high: int, cuts: set[int]) -> list[tuple[int, int]]:
    """Cut the integers from ``low`` to ``high`` into those of ``cuts``, and what lies between them."""
    if low > high:
        raise Refused(f"a range from {low} to {high} is empty")
    at = sorted({low, high} | {c for c in cuts if low < c < high})
    return [(c, c) for c in at] + [(a + 1, b - 1) for a, b in pairwise(at) if a + 1 < b]


def _structure(document: dict[str, Any]) -> Any:
    """Return all of a problem but sizes and times."""

    def operators(listed: list[Any]) -> list[Any]:
        return [(o["name"], o.get("inputs", []), o.get("outputs", [])) for o in listed]

    def tensors(listed: list[Any]) -> list[Any]:
        return [(t["name"], t.get("kind", "activation")) for t in listed]

    graph, variants = document["graph"], document.get("variants")
    alternatives = variants and [
        [g["name"], g["operators"], g.get("graph_alternative")]
        + [(a["name"], operators(a["operators"]), tensors(a.get("tensors", []))) for a in g["alternatives"]]
        for g in variants["groups"]
    ]
    parts = operators(graph["operators"]), tensors(graph["tensors"]), graph.get("outputs", []), graph.get("models", [])
    return parts, alternatives, document["topology"], document.get("joinable", False)


def _numbers(document: dict[str, Any]) -> Iterator[float]:
    """Yield sizes, bytes read and times, in the order of the file: those of alternatives last."""
    graph, variants = document["graph"], document.get("variants") or {"groups": [], "costs": {}}
    own = [a for g in variants["groups"] for a in g["alternatives"]]
    size = {t["name"]: count(t["size"]) for t in graph["tensors"]}
    yield from size.values()
    for listed, tensors in [(graph["operators"], [])] + [(a["operators"], a.get("tensors", [])) for a in own]:
        inner = {t["name"]: count(t["size"]) for t in tensors}
        yield from inner.values()
        for o in listed:
            parts = o.get("read_bytes") or {}
            yield from (count(parts.get(name, (size | inner).get(name, 0))) for name in o.get("inputs", []))
    for costs in (document["costs"], variants["costs"]):
        empty = [[None] * len(row) for row in costs.get("operator_ns", [])]
        normal, direct, reads = (costs.get(name) or empty for name in ("operator_ns", "direct_ns", "host_read_ns"))
        yield from (math.inf if ns is None else count(ns) for row in (*normal, *direct) for ns in row)
        # Where an operator cannot read directly, the time of a read means nothing.
        pairs = zip(chain.from_iterable(reads), chain.from_iterable(direct), strict=True)
        yield from (0 if None in pair else count(pair[0]) for pair in pairs)


def check_memory(run: Replay, sizes: Sizes) -> None:
    """Check that memory suffices whatever the times are, as long as no tensor is larger (Lemma 3)."""
    problem, readers = run.problem, dict[tuple[int, int], set[int]]()
    for at, event in run.reads:
        readers.setdefault(at, set()).add(event)
    begun, ended = (
        dict[int, int](),
        dict[int, int](),
    )  # sets of the events that have begun, or ended, at the start of one
    for e in TopologicalSorter({e: [w for w, _ in before] for e, before in enumerate(run.waits)}).static_order():
        begun[e] = ended[e] = 0
        for w, bus in run.waits[e]:
            begun[e] |= begun[w] | 1 << w
            ended[e] |= ended[w] | (0 if bus else 1 << w)
    evicted = {(t, d) for _, (_, t, _, d, evict) in run.transfers if evict}
    held: list[list[tuple[int, int, int, bool]]] = [[] for _ in problem.devices]
    for (t, d), event in run.arrival.items():
        if event == IN_PLACE:
            continue
        stays = (problem.kind[t] == "parameter" or t in problem.results) and (t, d) not in evicted
        users = 0 if stays else sum(1 << e for e in {event} | readers.get((t, d), set()))
        held[d].append((event, users, problem.size[t], t in run.resident))
    for d, tensors in enumerate(held):
        if sum(size for _, _, size, _ in tensors) <= problem.memory[d]:
            continue
        for e in {event for event, _, _, _ in tensors}:
            need = sum(
                size for came, users, size, there in tensors
                if (there or not begun[came] >> e & 1) and (not users or users & ~ended[e])
            )  # fmt: skip
            if need > problem.memory[d]:
                where = f"{problem.device_names[d]!r} may hold {need} bytes at sizes below {list(sizes)}"
                raise Refused(f"{where}, more than it has, if some times shrink more than others")
