"""Variants: groups of operators that can be computed in several ways, of which a schedule chooses one each.

A bound over all choices is that of one relaxed problem, which the evidence brings with it. It has operators of its own for
each group, and for each way of the group the evidence says which operator of that runs them. `Relaxed` checks that a run
of any choice is a run of the relaxed problem as well, each operator its share, in turn, on its own device: the share takes
no longer than it, what the share reads has come to it, and host tensors cross the buses in the time of its own. Lemmas limit
neither memory nor channels between devices, and let bytes cross before the direct read that needs them: so what they prove
holds for every choice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .document import HOST, Problem, Refused, count

Row = tuple[dict[str, Any], list[Any], list[Any]]
"""An operator and its times by device, normal and direct."""


class Way(NamedTuple):
    """Operators by name; the tensors that only this way has."""

    rows: dict[str, Row]
    tensors: list[dict[str, Any]]

    def tensors_of(self, field: str) -> set[str]:
        """Names of the tensors that its operators have among their ``inputs``, or ``outputs``."""
        return {t for row in self.rows.values() for t in row[0].get(field, [])}

    def named(self, field: str, names: set[str]) -> set[str]:
        """Operators that have one of these tensors there."""
        return {o for o, row in self.rows.items() if not names.isdisjoint(row[0].get(field, []))}

    def led_to(self, found: set[str], least: int, sizes: dict[str, int]) -> set[str]:
        """These operators and those to which tensors of at least ``least`` bytes lead from them, over whichever."""
        wide: set[str] | None = None
        while wide != (wide := {t for o in found for t in self.rows[o][0].get("outputs", []) if sizes[t] >= least}):
            found = found | self.named("inputs", wide)
        return found

    def leading(self, tensor: str, end: str, sizes: dict[str, int]) -> set[str]:
        """Operators that wait for a tensor, and for which ``end`` waits; itself among them."""
        waits, found = self.led_to(self.named("inputs", {tensor}), 0, sizes), set[str]()
        while more := ({end} if not found else self._makers(found)) & waits - found:
            found |= more
        return found

    def _makers(self, found: set[str]) -> set[str]:
        return self.named("outputs", {t for o in found for t in self.rows[o][0].get("inputs", [])})


def ways_of(document: dict[str, Any]) -> dict[str, dict[str, Way]]:
    """The ways of each group, the graph's first; ``operator NAME`` has one, where an operator is in no group."""
    graph, variants = document["graph"], document.get("variants") or {"groups": []}
    rows = {row[0]["name"]: row for row in _rows(graph["operators"], document["costs"])}
    listed = [
        operator for group in variants["groups"] for way in group["alternatives"] for operator in way["operators"]
    ]
    others, found = iter(_rows(listed, variants["costs"]) if listed else []), dict[str, dict[str, Way]]()
    for group in variants["groups"]:
        ways = {group.get("graph_way", "fused"): Way({name: rows.pop(name) for name in group["operators"]}, [])}
        for way in group["alternatives"]:
            own = [next(others) for _ in way["operators"]]
            ways[way["name"]] = Way({row[0]["name"]: row for row in own}, way.get("tensors", []))
        found[group["name"]] = ways
    return found | {f"operator {name}": {"": Way({name: row}, [])} for name, row in rows.items()}


def _rows(operators: list[Any], costs: dict[str, Any]) -> list[Any]:
    return list(zip(operators, costs["operator_ns"], costs["direct_ns"], strict=True))


def resolved(document: dict[str, Any], choice: dict[str, str]) -> Problem:
    """The problem in which each group is computed in the way that is chosen, or else as in the graph."""
    known = ways_of(document)
    if any(way not in known.get(group, {}) for group, way in choice.items()):
        raise Refused("the choice names a group, or a way of one, that is not there")
    chosen = [ways[choice.get(group, next(iter(ways)))] for group, ways in known.items()]
    rows = [row for way in chosen for row in way.rows.values()]
    named = {t for way in chosen for field in ("inputs", "outputs") for t in way.tensors_of(field)}
    tensors = [*document["graph"]["tensors"], *(t for way in chosen for t in way.tensors)]
    kept = [t for t in tensors if t["name"] in named or t.get("kind", "activation") != "activation"]
    graph = document["graph"] | {"operators": [row[0] for row in rows], "tensors": kept}
    costs = document["costs"] | {"operator_ns": [row[1] for row in rows], "direct_ns": [row[2] for row in rows]}
    return Problem(document | {"graph": graph, "costs": costs})


class Relaxed:
    """The problem of the evidence, ``graph`` and ``costs``; it refuses one that may be harder than some choice.

    ``runs`` names by group, way and operator of the relaxed problem the operator of the way that runs it. Operators in no
    group run themselves.
    """

    def __init__(self, document: dict[str, Any], claim: dict[str, Any]) -> None:
        self.problem = p = Problem(document | {"graph": claim["graph"], "costs": claim["costs"]})
        self.document, self.known, self.ways = document, document["graph"]["tensors"], ways_of(document)
        ways = self.ways
        runs = {f"operator {name}": {"": {name: name}} for name in p.o if f"operator {name}" in ways} | claim["runs"]
        stands = [(p.o[name], group) for group, by_way in runs.items() for name in next(iter(by_way.values()))]
        self.runs, self.group_of = runs, (group_of := dict(stands))
        if sorted(o for o, _ in stands) != list(range(len(p.o))):
            raise Refused("some operator of the relaxed problem does not stand for one group")
        read = [(t, o) for o, inputs in enumerate(p.inputs) for t in inputs if t in p.maker]
        self.handed_on = {t for t, o in read if group_of[o] != group_of[p.maker[t]]}  # from group to group
        self.handed_on |= {p.t[t["name"]] for t in self.known if p.t.get(t["name"]) in p.maker}
        self.read_by: dict[
            str, set[str]
        ] = {}  # groups that read a tensor in some way, of those that stand for something
        for group in claim["runs"]:
            for t in (t for way in ways[group].values() for t in way.tensors_of("inputs")):
                self.read_by.setdefault(t, set()).add(group)
        for group, by_way in runs.items():
            for name, way in ways[group].items():
                if by_way[name].keys() != next(iter(by_way.values())).keys():
                    raise Refused(f"group {group!r}: not each way runs the operators that stand for it")
                self._check(group, way, {p.o[own]: o for own, o in by_way[name].items()})

    def _check(self, group: str, way: Way, runs: dict[int, str]) -> None:
        """That operators of a way, when they have ended, have run theirs of the relaxed problem."""
        p, tensors = self.problem, [*self.known, *way.tensors]
        sizes = {t["name"]: count(t["size"]) for t in tensors}
        if len(sizes) < len(tensors):
            raise Refused("a tensor of a way has the name of another one")
        for v, o in runs.items():
            for t in p.maker.keys() & p.inputs[v]:
                sources = {runs[p.maker[t]]} if p.maker[t] in runs else way.named("inputs", {p.tensor_names[t]})
                if o not in way.led_to(sources, p.size[t], sizes):
                    raise Refused(f"{p.tensor_names[t]!r} of the relaxed problem need not have come to {o!r} of a way")
            for t in self.handed_on.intersection(p.outputs[v]):
                name, reached = p.tensor_names[t], way.led_to({o}, p.size[t], sizes)
                if sizes[name] < p.size[t] or way.named("outputs", {name}).isdisjoint(reached):
                    raise Refused(f"{name!r} of the relaxed problem is more than {o!r} of a way hands on")
        host = {t["name"] for t in tensors if t.get("kind", "activation") != "activation"}
        parts = dict[str, set[int]]()
        for o in runs.values():
            reads = {t: sizes[t] for t in host.intersection(way.rows[o][0].get("inputs", []))}
            own = [v for v in runs if runs[v] == o]
            self._check_times(way.rows[o], own, reads)
            # What the operator does not read is parts of the largest host tensor in whose place there is nothing else.
            free = (t for t in reads if self.read_by.get(t) == {group} and t not in p.t)
            more = {t for v in own for t in p.host_inputs[v] if reads.get(p.tensor_names[t], -1) < p.size[t]}
            parts.setdefault(max(free, key=lambda t: (sizes[t], t), default=""), set()).update(more)
        for (name, some), d in (
            (each, d) for each in parts.items() for d in range(len(p.devices)) if (HOST, d) in p.routes
        ):
            if some and (
                not name or sum(p.routes[HOST, d].ns(p.size[t]) for t in some) > p.routes[HOST, d].ns(sizes[name])
            ):
                raise Refused(f"parts of {name or 'nothing'!r} in a way of {group!r} cross a bus in more time than it")

    def _check_times(self, row: Row, own: list[int], reads: dict[str, int]) -> None:
        """That an operator of a way takes no less than what it runs, and that this reads no more directly."""
        p, (operator, *modes) = self.problem, row
        reading = [v for v in own if p.host_inputs[v]]
        directly = sum(count((operator.get("read_bytes") or {}).get(t, size)) for t, size in reads.items())
        for d, direct in (
            (d, direct) for d in range(len(p.devices)) for direct in (0, 1) if modes[direct][d] is not None
        ):
            takes: list[Any] = [(p.direct if direct and v in reading else p.normal)[v][d] for v in own]
            slow, route = None in takes or sum(takes) > max(1, count(modes[direct][d])), p.routes.get((HOST, d))
            if route and direct and not slow:  # bytes of those that read later lie behind those of the ones before them
                of = [(p.host_read(v, d), p.direct[v][d] or 0) for v in reading]
                slow = sum(ns for ns, _ in of) > route.ns(directly) or any(ns > time for ns, time in of)
            if slow:
                raise Refused(f"operator {operator['name']!r} of a way takes or reads less than what it runs")
