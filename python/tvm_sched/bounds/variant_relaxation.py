"""Bounds of problems with variants: an ordinary problem that is no harder than what any choice makes of them.

Notes
-----
Of each group the ways have one of three forms here: one operator; *heads*, which read nothing that the group makes, and
a *tail*, which reads them and makes all that others read; or *any* in which one operator, the tail, makes all that others
read. Of the last form the heads are the operators with a host tensor of their own that is not small beside the largest,
those first that read what others make, then the larger ones, and the *rest*, operators without such a tensor that take
long; the tail may be one of them, and keeps a nanosecond then. Let ``n`` be the most heads of any way. The group becomes
``n`` heads and a tail, and each way's own operators do their work: where a way has fewer heads, several that follow each
other belong to one of its heads, their number about in proportion to the bytes of its host tensor; the tail belongs to the
tail, and all of them to the operator of a way of one. Where all ways but those of one operator have a rest, there are as
many heads for it as for the longest, to which its operators belong in the same manner; they read
no host tensor, and nobody reads what they make unless there are no others. Take any schedule of any choice, and let each
operator of it do what belongs to it, one after another on its own device, the heads first. That is a schedule of the relaxed
problem, and it ends no later, because

- *time*: what belongs to an operator takes no longer in all than it, on each device and in each mode;
- *inputs*: a head or tail reads only activations that all operators read to which it belongs;
- *activations*: the copies of what heads make take no longer, over each route, than that of the one tensor in whose
  place they stand; within one operator there are none. Where that cannot be, the tail reads the first head only. Where a
  way has the third form, what it reads of it has no bytes: all that the first head makes gets to the tail, over as many
  devices as it likes, by copies that take a latency at least. Where the first head is the tail, it reads so what an
  operator of a nanosecond makes, which reads one activation that some operator other than heads and tail reads in each way;
- *host tensors*: a head reads at most one tensor of its own, in the place of a part of the largest tensor that the
  operator to which it belongs shares with operators of its way at most: all the parts that heads of these operators read
  occupy each bus no longer in all than that tensor, and no longer than a direct read of it. With one head it also reads
  host tensors that others read too, if all ways do. Where that cannot be, it reads none. An operator of no group reads
  none of a tensor of which it reads rows, a table that is also a product's weights, so that it is the product's own.

What has another form becomes an operator of one nanosecond for what others read, which reads nothing: it runs while the
operator that makes that ends. Where some way makes the tensors that others read by several operators, on as many devices
perhaps, that holds for one tensor, and nobody waits for the rest. Memory is not limited, which no bound looks at, nor at
how host tensors get from device to device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np

from ..problem import FORBIDDEN, HOST, Costs, Group, Operator, OpGraph, Problem, Route, Tensor, Topology
from ..problem.costs import concatenate_costs
from .alternative_heads import (
    SMALL,
    AlternativeOperator,
    Array,
    Head,
    ReducedAlternative,
    heads_of,
    needed_by_tail,
    read_by_others,
    reduce_any_form,
)
from .resident_relaxation import without_inputs


class Relaxed(NamedTuple):
    """The relaxed problem of the notes above.

    Parameters
    ----------
    problem : Problem
    runs : dict of str to dict of str to dict of str to str
        By group and way, for each operator that stands for the group the operator of the way to which it belongs.
    """

    problem: Problem
    runs: dict[str, dict[str, dict[str, str]]]


def without_variants(problem: Problem) -> Problem:
    """The relaxed problem of the notes above; the problem itself where it has no variants."""
    return problem if problem.variants is None else relaxed(problem).problem


def relaxed(problem: Problem) -> Relaxed:
    """The relaxed problem of one with variants, and which operators of the ways each of its operators represents."""
    assert problem.variants is not None
    maker = _RelaxationBuilder(problem)
    operators: list[Operator] = []
    normal: list[Array] = []
    direct: list[Array] = []
    tensors: dict[str, Tensor] = {tensor.name: tensor for tensor in problem.graph.tensors}
    parts = {group.operators[0]: maker.part(group) for group in problem.variants.groups}
    replaced = {name for group in problem.variants.groups for name in group.operators}
    for o, operator in enumerate(problem.graph.operators):
        if operator.name in parts:
            part = parts[operator.name]
            operators += part.operators
            normal += part.normal
            direct += part.direct
            tensors.update((tensor.name, tensor) for tensor in part.tensors)
        elif operator.name not in replaced:
            operators.append(without_inputs(maker.left_to_groups, operator))
            times = problem.costs.operator_ns[o], problem.costs.direct_ns[o]
            if not any(tensors[name].kind != "activation" for name in operators[-1].inputs):
                times = np.minimum(*times), np.full_like(times[1], FORBIDDEN)  # nothing is left to read directly
            normal.append(times[0])
            direct.append(times[1])
    gone = {name for part in parts.values() for name in part.gone}
    operators = [without_inputs(gone, operator) for operator in operators]
    outputs = tuple(name for name in problem.graph.outputs if name not in gone)
    used = {name for operator in operators for name in (*operator.inputs, *operator.outputs)} | set(outputs)
    kept = tuple(tensor for tensor in tensors.values() if tensor.name in used)
    graph = OpGraph(problem.graph.name, tuple(operators), kept, outputs)
    shape = (len(operators), len(problem.topology.devices))
    costs = Costs(np.array(normal).reshape(shape), np.array(direct).reshape(shape), problem.costs.source)
    devices = tuple(msgspec.structs.replace(device, memory=1 << 60) for device in problem.topology.devices)
    runs = {group.name: parts[group.operators[0]].runs for group in problem.variants.groups}
    return Relaxed(Problem._unchecked(graph, msgspec.structs.replace(problem.topology, devices=devices), costs), runs)


@dataclass
class _Replacement:
    """What stands for a group; ``gone`` are tensors of it that others read, and that nothing stands for.

    ``runs`` says by way to which operator each belongs.
    """

    operators: list[Operator]
    tensors: list[Tensor]
    normal: list[Array]
    direct: list[Array]
    gone: Sequence[str] = ()
    runs: dict[str, dict[str, str]] = field(default_factory=dict)


class _RelaxationBuilder:
    def __init__(self, problem: Problem) -> None:
        assert problem.variants is not None
        self.graph, self.topology = problem.graph, problem.topology
        self.costs = concatenate_costs([problem.costs, problem.variants.costs])
        self.rows: dict[tuple[str, str], range] = {}
        count = len(problem.graph.operators)
        readers: dict[str, set[str]] = {}  # groups, or operators of none, that read a tensor in some way
        group_of = {name: group.name for group in problem.variants.groups for name in group.operators}
        partly: set[str] = set()  # what operators of no group read rows of
        for operator in problem.graph.operators:
            for name in operator.inputs:
                if operator.name not in group_of and name in (operator.read_bytes or ()):
                    partly.add(name)
                else:
                    readers.setdefault(name, set()).add(group_of.get(operator.name, f"operator {operator.name}"))
        for group in problem.variants.groups:
            for alternative in group.alternatives:
                self.rows[group.name, alternative.name] = range(count, count + len(alternative.operators))
                count += len(alternative.operators)
                for operator in alternative.operators:
                    for name in operator.inputs:
                        readers.setdefault(name, set()).add(group.name)
        for name in problem.graph.outputs:
            readers.setdefault(name, set()).add("result")
        self.taken = problem.graph.index.operator_id.keys() | problem.graph.index.tensor_id.keys()
        self.alone = {name for name, who in readers.items() if len(who) == 1}
        self.left_to_groups = {name for name in partly & self.alone if readers[name] <= set(group_of.values())}

    def part(self, group: Group) -> _Replacement:
        """What stands for a group in the relaxed problem."""
        index = self.graph.index
        members = [index.operator_id[name] for name in group.operators]
        inside = set(members)
        needed = [
            self.graph.tensors[t].name
            for o in members
            for t in index.outputs[o]
            if t in index.graph_outputs or any(reader not in inside for reader in index.consumers[t])
        ]
        base = tuple(self.graph.operators[o] for o in members)
        ways = [self._way(base, members, (), needed)]
        for alternative in group.alternatives:
            rows = self.rows[group.name, alternative.name]
            ways.append(self._way(alternative.operators, rows, alternative.tensors, needed))
        known = [way for way in ways if way is not None]
        found = self._joined(group, known, needed) if len(known) == len(ways) else None
        if found:
            return found
        return self._least(group, [base, *(alternative.operators for alternative in group.alternatives)], needed)

    def _least(self, group: Group, ways: Sequence[Sequence[Operator]], needed: Sequence[str]) -> _Replacement:
        """One operator of a nanosecond that makes what is needed, of several operators' the first; none for nothing."""
        if not needed:
            return _Replacement([], [], [], [], (), {way: {} for way in group.ways})
        makers = max(sum(not set(needed).isdisjoint(o.outputs) for o in way) for way in ways)
        made = needed if makers == 1 else needed[:1]
        runs = [{group.operators[0]: next(o.name for o in way if needed[0] in o.outputs)} for way in ways]
        devices = len(self.topology.devices)
        operator = Operator(group.operators[0], outputs=tuple(made))
        gone = [name for name in needed if name not in made]
        times = [np.ones(devices, np.int64)], [np.full(devices, FORBIDDEN)]
        return _Replacement([operator], [], *times, gone, dict(zip(group.ways, runs, strict=True)))

    def _way(
        self, operators: Sequence[Operator], rows: Sequence[int], own: Iterable[Tensor], needed: Sequence[str]
    ) -> ReducedAlternative | None:
        """The heads and the tail of a way; None where several operators make what others read."""
        tails = [k for k, operator in enumerate(operators) if set(needed) & set(operator.outputs)]
        if len(operators) > 1 and len(tails) != 1:
            return None
        tail = tails[0] if tails else 0
        tensors = {tensor.name: tensor for tensor in (*self.graph.tensors, *own)}
        made = {name: k for k, operator in enumerate(operators) for name in operator.outputs}
        names = {tensor.name for tensor in own}
        described = [self._operator(operators, k, rows[k], tensors, names, tail) for k in range(len(operators))]
        for k, operator in enumerate(operators):
            inner = [name for name in operator.inputs if name in made]
            if (k != tail and inner) or (k == tail and any(made[name] == tail for name in inner)):
                return reduce_any_form([described[j] for j in needed_by_tail(operators, tail)])
        if len(operators) > 1 and described[tail].own * SMALL > max(each.own for each in described):
            return reduce_any_form([described[j] for j in needed_by_tail(operators, tail)])
        return ReducedAlternative(tuple(each for k, each in enumerate(described) if k != tail), described[tail])

    def _operator(
        self, operators: Sequence[Operator], k: int, row: int, tensors: dict[str, Tensor], own: set[str], tail: int
    ) -> AlternativeOperator:
        operator = operators[k]
        made = {name for each in operators for name in each.outputs}
        host = [name for name in dict.fromkeys(operator.inputs) if tensors[name].kind != "activation"]
        partly = set(operator.read_bytes or ())  # a direct read of it brings less than its size
        mine = [name for name in host if (name in own or name in self.alone) and name not in partly]
        largest = max(mine, key=lambda name: (tensors[name].size, name), default="")
        reads = [n for n in dict.fromkeys(operator.inputs) if tensors[n].kind == "activation" and n not in made]
        given = [tensors[name].size for name in operator.outputs if name in operators[tail].inputs]
        return AlternativeOperator(
            operator.name,
            self.costs.operator_ns[row],
            self.costs.direct_ns[row],
            tuple(reads),
            tensors[largest].size if mine else -1,
            largest,
            frozenset(host) - set(mine) - partly,
            max(given, default=-1),
        )

    def _new(self, name: str) -> str:
        """A name that the problem does not have, close to this one."""
        while name in self.taken:
            name += "'"
        self.taken.add(name)
        return name

    def _joined(self, group: Group, ways: Sequence[ReducedAlternative], needed: Sequence[str]) -> _Replacement | None:
        """Heads and a tail that are no harder than any way; None where their times would be less than a nanosecond."""
        ways, heads = heads_of(ways)
        any_form = any(way.any_form for way in ways)
        count = sum(not head.is_rest for head in heads)
        name = group.operators[0]
        part = _Replacement([], [], [], [])
        given: list[str] = []
        sizes = [self._fitting([(p.gives, s) for p, s in zip(head.places, head.shares, strict=True) if p.gives >= 0],
                               self._between) for head in heads]  # fmt: skip
        for i, head_of in enumerate(heads):
            row = head_of.places
            normal, direct = _head(row, head_of.shares)
            hosts, tensors = self._hosts(f"{name}/head{i}/host", head_of, direct, count)
            if not hosts:
                normal, direct = np.minimum(normal, direct), np.full_like(direct, FORBIDDEN)
            joined = not any_form and all(size >= 0 for size in sizes)
            head = self._new(f"{name}/head{i}")
            least = 0 if any_form else min((p.gives for p in row if p.gives >= 0), default=0)
            made = Tensor(head, sizes[i] if joined else least)
            feeds = all(place.gives >= 0 for place, way in zip(row, ways, strict=True) if not way.is_one)
            if feeds and (joined or i == 0):
                given.append(made.name)
            reads = [each for each in row[0].reads if all(each in other.reads for other in row)]
            part.operators.append(Operator(head, inputs=(*reads, *hosts), outputs=(made.name,)))
            part.tensors += [*tensors, made]
            part.normal.append(normal)
            part.direct.append(direct)
        rows = [[place.name for place in head.places] for head in heads]
        if any_form and not given and (read := read_by_others(ways)):
            given.append(self._add_first(part, name, read))
            rows.append([way.reads[read] if way.any_form else way.tail.name for way in ways])
        times = _tail(ways, part)
        if times is None or any((row < 1).any() for row in (*part.normal, *part.direct)):
            return None
        reads = [each for each in ways[0].tail.reads if all(each in way.tail.reads for way in ways)]
        part.operators.append(Operator(name, inputs=(*given, *reads), outputs=tuple(needed)))
        part.normal.append(times)
        part.direct.append(np.full_like(times, FORBIDDEN))
        rows.append([way.tail.name for way in ways])
        for way, names in zip(group.ways, zip(*rows, strict=True), strict=True):
            part.runs[way] = dict(zip((operator.name for operator in part.operators), names, strict=True))
        return part

    def _add_first(self, part: _Replacement, name: str, read: str) -> str:
        """Put an operator of a nanosecond into a part, which reads an activation; returns what it makes."""
        first = self._new(f"{name}/first")
        devices = len(self.topology.devices)
        part.operators.append(Operator(first, inputs=(read,), outputs=(first,)))
        part.tensors.append(Tensor(first, 0))
        part.normal.append(np.ones(devices, np.int64))
        part.direct.append(np.full(devices, FORBIDDEN))
        return first

    def _hosts(self, name: str, head: Head, direct: Array, count: int) -> tuple[list[str], list[Tensor]]:
        """Names of the host tensors that a head reads, and those among them that are new."""
        if head.is_rest:
            return [], []
        row = head.places
        shared = frozenset.intersection(*(each.shared for each in row)) if count == 1 else frozenset()
        bytes_shared = sum(t.size for t in self.graph.tensors if t.name in shared)
        if shared and not self._readable(bytes_shared, direct):
            shared, bytes_shared = frozenset(), 0
        hosts, tensors = sorted(shared), []
        if all(each.own >= 0 for each in row):
            size = self._fitting([(each.own, s) for each, s in zip(row, head.owners, strict=True)], self._from_host)
            if size >= 0:
                size = _largest(size, lambda s: self._readable(bytes_shared + s, direct))
            if size >= 0:
                tensors.append(Tensor(self._new(name), size, "parameter"))
                hosts.append(tensors[-1].name)
        return hosts, tensors

    def _readable(self, size: int, direct: Array) -> bool:
        """Whether ``size`` bytes can be read directly in the given times."""
        return all(
            direct[d] == FORBIDDEN
            or ((route := self.topology.route(HOST, d)) is None or route.nanoseconds(size) <= direct[d])
            for d in range(len(direct))
        )

    def _fitting(self, wholes: Sequence[tuple[int, int]], routes: Sequence[Route]) -> int:
        """The most bytes of which ``count`` transfers take no longer than a whole one, for all (bytes, count); -1: none."""
        if not wholes:
            return 0
        return _largest(
            min(size // count for size, count in wholes),
            lambda s: all(
                count * r.nanoseconds(s) <= r.nanoseconds(size) for size, count in wholes if count > 1 for r in routes
            ),
        )

    @property
    def _from_host(self) -> list[Route]:
        return _distinct(self.topology, [(HOST, d) for d in range(len(self.topology.devices))])

    @property
    def _between(self) -> list[Route]:
        devices = range(len(self.topology.devices))
        return _distinct(self.topology, [(a, b) for a in devices for b in devices if a != b])


def _distinct(topology: Topology, pairs: Iterable[tuple[int, int]]) -> list[Route]:
    """A route of each speed among those between some pairs."""
    routes = (route for a, b in pairs if (route := topology.route(a, b)) is not None)
    return list({(route.bandwidth, route.latency): route for route in routes}.values())


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest number from 0 to ``most`` that fits, where smaller ones fit if larger ones do; -1 where 0 does not."""
    if not fits(0):
        return -1
    low, high = 0, max(most, 0)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _head(row: Sequence[AlternativeOperator], share: Sequence[int]) -> tuple[Array, Array]:
    """Times of a head by device, in both modes; a way of one operator keeps a nanosecond for its tail."""
    found = []
    for mode in ("normal", "direct"):
        times = [
            np.where(t == FORBIDDEN, FORBIDDEN, (t - (each.gives < 0)) // s)
            for each, s in zip(row, share, strict=True)
            for t in (getattr(each, mode),)
        ]
        found.append(np.minimum.reduce(times))
    return found[0], found[1]


def _tail(ways: Sequence[ReducedAlternative], part: _Replacement) -> Array | None:
    """Times of the tail by device: what all heads leave of one operator; None where it is less than a nanosecond."""
    none = np.full_like(ways[0].tail.normal, FORBIDDEN)
    times = none
    for way in ways:
        for t, before in ((way.tail.normal, part.normal), (way.tail.direct, _modes(part))):
            left = t - sum(before, np.zeros_like(t)) if way.is_one else t
            left = np.ones_like(t) if way.tail_is_head else left
            times = np.minimum(times, np.where(t == FORBIDDEN, FORBIDDEN, left))
    return times if (times >= 1).all() else None


def _modes(part: _Replacement) -> list[Array]:
    """Times of the heads while an operator reads directly: those without host tensors take their normal times."""
    return [
        np.where(direct == FORBIDDEN, normal, direct) for normal, direct in zip(part.normal, part.direct, strict=True)
    ]
