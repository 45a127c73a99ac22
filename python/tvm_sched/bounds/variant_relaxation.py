"""The relaxation for problems with variants: one problem that is no harder than any choice of alternatives.

Proof that its bounds hold: Theorem 1 of ``docs/proofs/variants.md``; the construction is described there, too.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import permutations
from typing import NamedTuple

import msgspec
import numpy as np

from tvm_sched_runtime.problem import FORBIDDEN, HOST, Costs, Group, Operator, OpGraph, Problem, Route, Tensor
from tvm_sched_runtime.problem.costs import concatenate_costs
from tvm_sched_runtime.search_budget import check_time

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
from .one_bus import OneBus, largest_fitting
from .resident_relaxation import without_inputs

GAIN = 0.01
"""By how much a combined tensor must exceed the bus time of parts, as a part of it, to replace them."""


class Relaxed(NamedTuple):
    """A relaxed problem, and the operators to which its operators belong."""

    problem: Problem
    runs: dict[str, dict[str, dict[str, str]]]
    """By group and alternative: for each relaxed operator that stands for the group, the operator to which it belongs.
    """
    combined: dict[str, str]
    """By group: the combined tensor, which stands for several host tensors of each alternative; not for all groups."""


def relaxed(problem: Problem) -> Relaxed:
    """Return the relaxed problem of a problem with variants, and the map from its operators to those of each alternative."""
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
    for name, width in (each for part in parts.values() for each in part.widths.items()):
        tensors[name] = msgspec.structs.replace(tensors[name], size=min(tensors[name].size, width), shape=())
    operators = [_within(tensors, operator) for operator in operators]
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
    combined = {group.name: name for group in problem.variants.groups if (name := parts[group.operators[0]].combined)}
    return Relaxed(Problem.derive(graph, problem.topology.with_devices(devices), costs), runs, combined)


def _within(tensors: Mapping[str, Tensor], operator: Operator) -> Operator:
    """Return the operator, which reads of each tensor no more bytes than it has."""
    if not operator.read_bytes:
        return operator
    read = {name: min(size, tensors[name].size) for name, size in operator.read_bytes.items()}
    return msgspec.structs.replace(operator, read_bytes=read)


@dataclass
class _Replacement:
    """The relaxed operators that stand for a group.

    ``gone`` are tensors that other groups read and that no relaxed operator makes; ``runs`` is as in `Relaxed`, for one
    group.
    """

    operators: list[Operator]
    tensors: list[Tensor]
    normal: list[Array]
    direct: list[Array]
    gone: Sequence[str] = ()
    runs: dict[str, dict[str, str]] = field(default_factory=dict)
    divided: list[set[str]] = field(default_factory=list)
    """By alternative, its host tensors of which heads read parts; empty if none do."""
    combined: str = ""
    """The name of the combined tensor, which the last operator reads."""
    widths: dict[str, int] = field(default_factory=dict)
    """Activations that the last operator reads because they lead to it in each alternative, along tensors that are at
    least as large."""


class _RelaxationBuilder:
    def __init__(self, problem: Problem) -> None:
        assert problem.variants is not None
        self.graph, self.topology = problem.graph, problem.topology
        self.costs = concatenate_costs([problem.costs, problem.variants.costs])
        self.rows: dict[tuple[str, str], range] = {}
        count = len(problem.graph.operators)
        readers: dict[str, set[str]] = {}  # groups, and operators of no group, that read a tensor in some alternative
        group_of = {name: group.name for group in problem.variants.groups for name in group.operators}
        partly: set[str] = set()  # tensors of which operators of no group read rows
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
        self.sizes = {tensor.name: tensor.size for tensor in problem.graph.tensors}
        self.hosts = {tensor.name for tensor in problem.graph.tensors if tensor.kind != "activation"}
        self.taken = problem.graph.index.operator_id.keys() | problem.graph.index.tensor_id.keys()
        self.alone = {name for name, who in readers.items() if len(who) == 1}
        self.left_to_groups = {name for name in partly & self.alone if readers[name] <= set(group_of.values())}

    def part(self, group: Group) -> _Replacement:
        """Return the relaxed operators of a group."""
        check_time()
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
        alternatives = [self._reduced(base, members, (), needed)]
        for alternative in group.alternatives:
            rows = self.rows[group.name, alternative.name]
            alternatives.append(self._reduced(alternative.operators, rows, alternative.tensors, needed))
        known = [alternative for alternative in alternatives if alternative is not None]
        joined = self._joined(group, known, needed) if len(known) == len(alternatives) else None
        part = joined or self._least(group, [base, *(each.operators for each in group.alternatives)], needed)
        if part.operators:
            self._lead(group, part)
        if part.operators and self._one_bus is not None:
            loads = [self._loaded_before(part.runs[group.graph_alternative], base, members, ())]
            for alternative in group.alternatives:
                rows, runs = self.rows[group.name, alternative.name], part.runs[alternative.name]
                loads.append(self._loaded_before(runs, alternative.operators, rows, alternative.tensors))
            self._combine(part, loads, self._one_bus)
        return part

    def _loaded_before(
        self, runs: Mapping[str, str], operators: Sequence[Operator], rows: Sequence[int], own: Iterable[Tensor]
    ) -> dict[str, int]:
        """Return host tensors that are loaded for this group alone before the tail of an alternative starts; with sizes.

        They are inputs of the tail, or of operators that lead to it, which cannot read them directly.
        """
        tail = next(k for k, operator in enumerate(operators) if operator.name == list(runs.values())[-1])
        loading = [k for k in needed_by_tail(operators, tail) if (self.costs.direct_ns[rows[k]] == FORBIDDEN).all()]
        names = {tensor.name for tensor in own}
        sizes = {t.name: t.size for t in (*self.graph.tensors, *own) if t.kind != "activation"}
        read = {name for k in loading for name in operators[k].inputs}
        return {name: size for name, size in sizes.items() if name in read and (name in names or name in self.alone)}

    def _lead(self, group: Group, part: _Replacement) -> None:
        """Let the last operator read each activation that leads to it in all alternatives, if no other one reads it."""
        index, tail = self.graph.index, part.operators[-1]
        members = [index.operator_id[name] for name in group.operators]
        written = {t for o in members for t in index.outputs[o]}
        read = {t: None for o in members for t in index.inputs[o] if index.producer[t] >= 0 and t not in written}
        known = {name for operator in part.operators for name in operator.inputs}
        alternatives: dict[str, tuple[Sequence[Operator], Sequence[Tensor]]] = {
            group.graph_alternative: ([self.graph.operators[o] for o in members], ())
        }
        alternatives.update((each.name, (each.operators, each.tensors)) for each in group.alternatives)
        for name in (self.graph.tensors[t].name for t in read):
            if name in known:
                continue
            width = min(
                self._width(operators, own, name, part.runs[alternative][tail.name])
                for alternative, (operators, own) in alternatives.items()
            )
            if width >= 0:
                part.widths[name] = width
        part.operators[-1] = msgspec.structs.replace(tail, inputs=(*tail.inputs, *part.widths))

    def _width(self, operators: Sequence[Operator], own: Iterable[Tensor], name: str, end: str) -> int:
        """Return the least size on the widest path of tensors from an activation to an operator; -1 if there is none."""
        sizes = {tensor.name: tensor.size for tensor in own}
        wide, before, last = {name: self.sizes[name]}, dict[str, int](), -1
        while wide != before:  # operators may be listed in any order
            before = dict(wide)
            for operator in operators:
                reached = max((wide[each] for each in operator.inputs if each in wide), default=-1)
                if operator.name == end:
                    last = reached
                elif reached >= 0:
                    for each in operator.outputs:
                        size = sizes[each] if each in sizes else self.sizes[each]
                        wide[each] = max(wide.get(each, -1), min(reached, size))
        return last

    def _combine(self, part: _Replacement, loads: Sequence[Mapping[str, int]], bus: OneBus) -> None:
        """Let the tail read a tensor whose load takes no longer than the ``loads`` of any alternative together.

        It stands for the tensors that heads do not divide, or for all, and then heads read no parts: whatever needs more
        bus time.
        """
        undivided = [
            [size for name, size in sizes.items() if name not in divided]
            for sizes, divided in zip(loads, part.divided or [set()] * len(loads), strict=True)
        ]
        beside, alone = (
            bus.loaded_in(min(sum(map(bus.load_ns, sizes)) for sizes in each)) if all(each) else -1
            for each in (undivided, [list(sizes.values()) for sizes in loads])
        )
        parts = {tensor.name: bus.load_ns(tensor.size) for tensor in part.tensors if tensor.kind != "activation"}
        with_parts = sum(parts.values()) + (bus.load_ns(beside) if beside >= 0 else 0)
        size = beside
        if alone >= 0 and bus.load_ns(alone) > (1 + GAIN) * with_parts:
            size = alone
            self._take_away(part, parts)
        if size >= 0:
            part.combined = self._new(f"{part.operators[-1].name}/loads")
            part.tensors.append(Tensor(part.combined, size, "parameter"))
            tail = part.operators[-1]
            part.operators[-1] = msgspec.structs.replace(tail, inputs=(*tail.inputs, part.combined))

    def _take_away(self, part: _Replacement, parts: Container[str]) -> None:
        """Let no head read these tensors; a head that is left without host tensors runs in its faster mode."""
        part.tensors = [tensor for tensor in part.tensors if tensor.name not in parts]
        for k, operator in enumerate(part.operators):
            kept = tuple(name for name in operator.inputs if name not in parts)
            if kept != operator.inputs and self.hosts.isdisjoint(kept):
                part.normal[k] = np.minimum(part.normal[k], part.direct[k])
                part.direct[k] = np.full_like(part.direct[k], FORBIDDEN)
            part.operators[k] = msgspec.structs.replace(operator, inputs=kept)

    def _least(self, group: Group, alternatives: Sequence[Sequence[Operator]], needed: Sequence[str]) -> _Replacement:
        """Return one operator of a nanosecond, if heads and tail are not possible.

        It makes what others read, or only the first tensor if several operators of an alternative make them. A group that
        nobody reads from becomes nothing.
        """
        if not needed:
            return _Replacement([], [], [], [], (), {alternative: {} for alternative in group.alternative_names})
        makers = max(sum(not set(needed).isdisjoint(o.outputs) for o in alternative) for alternative in alternatives)
        written = needed if makers == 1 else needed[:1]
        runs = [
            {group.operators[0]: next(o.name for o in alternative if needed[0] in o.outputs)}
            for alternative in alternatives
        ]
        devices = len(self.topology.devices)
        operator = Operator(group.operators[0], outputs=tuple(written))
        gone = [name for name in needed if name not in written]
        times = [np.ones(devices, np.int64)], [np.full(devices, FORBIDDEN)]
        return _Replacement([operator], [], *times, gone, dict(zip(group.alternative_names, runs, strict=True)))

    def _reduced(
        self, operators: Sequence[Operator], rows: Sequence[int], own: Iterable[Tensor], needed: Sequence[str]
    ) -> ReducedAlternative | None:
        """Return the heads and the tail of an alternative; None if several operators make what others read."""
        tails = [k for k, operator in enumerate(operators) if set(needed) & set(operator.outputs)]
        if len(operators) > 1 and len(tails) != 1:
            return None
        tail = tails[0] if tails else 0
        tensors = {tensor.name: tensor for tensor in (*self.graph.tensors, *own)}
        producer = {name: k for k, operator in enumerate(operators) for name in operator.outputs}
        names = {tensor.name for tensor in own}
        described = [self._operator(operators, k, rows[k], tensors, names, tail) for k in range(len(operators))]
        for k, operator in enumerate(operators):
            inner = [name for name in operator.inputs if name in producer]
            if (k != tail and inner) or (k == tail and any(producer[name] == tail for name in inner)):
                return reduce_any_form([described[j] for j in needed_by_tail(operators, tail)])
        if len(operators) > 1 and described[tail].own * SMALL > max(each.own for each in described):
            return reduce_any_form([described[j] for j in needed_by_tail(operators, tail)])
        return ReducedAlternative(tuple(each for k, each in enumerate(described) if k != tail), described[tail])

    def _operator(
        self, operators: Sequence[Operator], k: int, row: int, tensors: dict[str, Tensor], own: set[str], tail: int
    ) -> AlternativeOperator:
        operator = operators[k]
        written = {name for each in operators for name in each.outputs}
        host = [name for name in dict.fromkeys(operator.inputs) if tensors[name].kind != "activation"]
        partly = set(operator.read_bytes or ())  # a direct read of it brings less than its size
        free = [name for name in host if name in own or name in self.alone]
        mine = [name for name in free if name not in partly]
        largest = max(mine, key=lambda name: (tensors[name].size, name), default="")
        reads = [n for n in dict.fromkeys(operator.inputs) if tensors[n].kind == "activation" and n not in written]
        sizes = [tensors[name].size for name in operator.outputs if name in operators[tail].inputs]
        return AlternativeOperator(
            operator.name,
            self.costs.operator_ns[row],
            self.costs.direct_ns[row],
            tuple(reads),
            tensors[largest].size if mine else -1,
            max(free, key=lambda name: (tensors[name].size, name)) if mine else "",
            frozenset(host) - set(mine) - partly,
            max(sizes, default=-1),
        )

    def _new(self, name: str) -> str:
        """Return a name close to this one that the problem does not use."""
        while name in self.taken:
            name += "'"
        self.taken.add(name)
        return name

    def _joined(
        self, group: Group, alternatives: Sequence[ReducedAlternative], needed: Sequence[str]
    ) -> _Replacement | None:
        """Return heads and a tail that are no harder than any alternative; None if one would take less than a nanosecond."""
        alternatives, heads = heads_of(alternatives)
        any_form = any(alternative.any_form for alternative in alternatives)
        count = sum(not head.is_further for head in heads)
        name = group.operators[0]
        part = _Replacement([], [], [], [], divided=[set() for _ in alternatives])
        fed: list[str] = []
        sizes = [self._fitting([(p.gives, s) for p, s in zip(head.places, head.shares, strict=True) if p.gives >= 0],
                               self._between) for head in heads]  # fmt: skip
        for i, head_of in enumerate(heads):
            row = head_of.places
            normal, direct = _head(row, head_of.shares)
            hosts, tensors = self._hosts(f"{name}/head{i}/host", head_of, direct, count)
            for divided, place in zip(part.divided, row, strict=True):
                divided.update([place.own_name] if tensors else [])
            if not hosts:
                normal, direct = np.minimum(normal, direct), np.full_like(direct, FORBIDDEN)
            joined = not any_form and all(size >= 0 for size in sizes)
            head = self._new(f"{name}/head{i}")
            least = 0 if any_form else min((p.gives for p in row if p.gives >= 0), default=0)
            output = Tensor(head, sizes[i] if joined else least)
            feeds = all(
                place.gives >= 0 for place, alternative in zip(row, alternatives, strict=True) if not alternative.is_one
            )
            if feeds and (joined or i == 0):
                fed.append(output.name)
            reads = [each for each in row[0].reads if all(each in other.reads for other in row)]
            part.operators.append(Operator(head, inputs=(*reads, *hosts), outputs=(output.name,)))
            part.tensors += [*tensors, output]
            part.normal.append(normal)
            part.direct.append(direct)
        rows = [[place.name for place in head.places] for head in heads]
        if any_form and not fed and (read := read_by_others(alternatives)):
            fed.append(self._add_first(part, name, read))
            rows.append(
                [
                    alternative.reads[read] if alternative.any_form else alternative.tail.name
                    for alternative in alternatives
                ]
            )
        times = _tail(alternatives, part)
        if times is None or any((row < 1).any() for row in (*part.normal, *part.direct)):
            return None
        reads = [
            each
            for each in alternatives[0].tail.reads
            if all(each in alternative.tail.reads for alternative in alternatives)
        ]
        part.operators.append(Operator(name, inputs=(*fed, *reads), outputs=tuple(needed)))
        part.normal.append(times)
        part.direct.append(np.full_like(times, FORBIDDEN))
        rows.append([alternative.tail.name for alternative in alternatives])
        for alternative, names in zip(group.alternative_names, zip(*rows, strict=True), strict=True):
            part.runs[alternative] = dict(zip((operator.name for operator in part.operators), names, strict=True))
        return part

    def _add_first(self, part: _Replacement, name: str, read: str) -> str:
        """Add an operator of a nanosecond that reads an activation; return the name of its output."""
        first = self._new(f"{name}/first")
        devices = len(self.topology.devices)
        part.operators.append(Operator(first, inputs=(read,), outputs=(first,)))
        part.tensors.append(Tensor(first, 0))
        part.normal.append(np.ones(devices, np.int64))
        part.direct.append(np.full(devices, FORBIDDEN))
        return first

    def _hosts(self, name: str, head: Head, direct: Array, count: int) -> tuple[list[str], list[Tensor]]:
        """Return the names of the host tensors that a head reads, and the new ones among them."""
        if head.is_further:
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
                size = largest_fitting(size, lambda s: self._readable(bytes_shared + s, direct))
            if size >= 0:
                tensors.append(Tensor(self._new(name), size, "parameter"))
                hosts.append(tensors[-1].name)
        return hosts, tensors

    def _readable(self, size: int, direct: Array) -> bool:
        """Return whether ``size`` bytes can be read directly within these times."""
        return all(route.nanoseconds(size) <= direct[devices].min() for route, devices in self._loads)

    def _fitting(self, wholes: Sequence[tuple[int, int]], routes: Sequence[Route]) -> int:
        """Return the largest size of which ``count`` transfers take no longer than one of ``bytes``, for all (bytes, count).

        -1 if there is none.
        """
        if not wholes:
            return 0
        return largest_fitting(
            min(size // count for size, count in wholes),
            lambda s: all(
                count * r.nanoseconds(s) <= r.nanoseconds(size) for size, count in wholes if count > 1 for r in routes
            ),
        )

    @cached_property
    def _loads(self) -> list[tuple[Route, list[int]]]:
        """Routes from host memory, one of each speed, with the devices that have one of that speed."""
        devices: dict[tuple[float, float], list[int]] = {}
        routes: dict[tuple[float, float], Route] = {}
        for d in range(len(self.topology.devices)):
            if (route := self.topology.route(HOST, d)) is not None:
                speed = route.bandwidth, route.latency
                routes[speed] = route
                devices.setdefault(speed, []).append(d)
        return [(routes[speed], devices[speed]) for speed in routes]

    @cached_property
    def _one_bus(self) -> OneBus | None:
        return OneBus.of(self.topology)

    @property
    def _from_host(self) -> list[Route]:
        return [route for route, _ in self._loads]

    @cached_property
    def _between(self) -> list[Route]:
        """Routes between devices, one of each speed."""
        devices = range(len(self.topology.devices))
        routes = (route for a, b in permutations(devices, 2) if (route := self.topology.route(a, b)) is not None)
        return list({(route.bandwidth, route.latency): route for route in routes}.values())


def _head(row: Sequence[AlternativeOperator], share: Sequence[int]) -> tuple[Array, Array]:
    """Return the times of a head by device, in both modes; an operator without a separate tail keeps a nanosecond for it."""
    fastest = []
    for mode in ("normal", "direct"):
        times = [
            np.where(t == FORBIDDEN, FORBIDDEN, (t - (each.gives < 0)) // s)
            for each, s in zip(row, share, strict=True)
            for t in (getattr(each, mode),)
        ]
        fastest.append(np.minimum.reduce(times))
    return fastest[0], fastest[1]


def _tail(alternatives: Sequence[ReducedAlternative], part: _Replacement) -> Array | None:
    """Return the times of the tail by device; None if one would be less than a nanosecond."""
    none = np.full_like(alternatives[0].tail.normal, FORBIDDEN)
    times = none
    for alternative in alternatives:
        for t, before in ((alternative.tail.normal, part.normal), (alternative.tail.direct, _modes(part))):
            left = t - sum(before, np.zeros_like(t)) if alternative.is_one else t
            left = np.ones_like(t) if alternative.tail_is_head else left
            times = np.minimum(times, np.where(t == FORBIDDEN, FORBIDDEN, left))
    return times if (times >= 1).all() else None


def _modes(part: _Replacement) -> list[Array]:
    """Return the times of the heads while an operator reads directly: heads without host tensors take their normal times."""
    return [
        np.where(direct == FORBIDDEN, normal, direct) for normal, direct in zip(part.normal, part.direct, strict=True)
    ]
