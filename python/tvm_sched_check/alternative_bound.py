"""Variants: groups of operators with several alternatives; a schedule chooses one for each group.

`resolved` makes the problem of a choice. `Relaxed` reads the relaxed problem of the evidence and checks that it is no
harder than any choice: conditions B1 to B5 of ``docs/proofs/variants.md``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .document import HOST, Problem, Refused, count, times_of
from .joined import join

Row = tuple[dict[str, Any], list[Any], list[Any], list[Any]]
"""An operator and its times by device: normal, direct, of direct reads on the bus."""


class Alternative(NamedTuple):
    """Operators by name; the tensors that only this alternative has."""

    rows: dict[str, Row]
    tensors: list[dict[str, Any]]

    def tensors_of(self, field: str) -> set[str]:
        """Return the names of all ``inputs``, or ``outputs``, of its operators."""
        return {t for row in self.rows.values() for t in row[0].get(field, [])}

    def named(self, field: str, names: set[str]) -> set[str]:
        """Return the operators with one of these tensors among their ``inputs``, or ``outputs``."""
        return {o for o, row in self.rows.items() if not names.isdisjoint(row[0].get(field, []))}

    def led_to(self, reached: set[str], least: int, sizes: dict[str, int]) -> set[str]:
        """Return these operators and all that they lead to along tensors of at least ``least`` bytes."""
        wide: set[str] | None = None
        while wide != (wide := {t for o in reached for t in self.rows[o][0].get("outputs", []) if sizes[t] >= least}):
            reached = reached | self.named("inputs", wide)
        return reached

    def leading(self, tensor: str, end: str, sizes: dict[str, int]) -> set[str]:
        """Return the operators on paths from a tensor to ``end``, with ``end``; none if the tensor does not lead to it."""
        return self.led_to(self.named("inputs", {tensor}), 0, sizes) & self.leading_to(end)

    def leading_to(self, end: str) -> set[str]:
        """Return an operator and all that lead to it."""
        found = {end}
        while more := self.named("outputs", {t for o in found for t in self.rows[o][0].get("inputs", [])}) - found:
            found |= more
        return found


def alternatives_of(document: dict[str, Any]) -> dict[str, dict[str, Alternative]]:
    """Return the alternatives of each group, the graph's own first; an operator of no group is group ``operator NAME``."""
    graph, variants = document["graph"], document.get("variants") or {"groups": []}
    rows = {row[0]["name"]: row for row in _rows(graph["operators"], document["costs"])}
    listed = [
        operator
        for group in variants["groups"]
        for alternative in group["alternatives"]
        for operator in alternative["operators"]
    ]
    others, by_group = iter(_rows(listed, variants["costs"]) if listed else []), dict[str, dict[str, Alternative]]()
    for group in variants["groups"]:
        alternatives = {
            group.get("graph_alternative", "fused"): Alternative(
                {name: rows.pop(name) for name in group["operators"]}, []
            )
        }
        for alternative in group["alternatives"]:
            own = [next(others) for _ in alternative["operators"]]
            alternatives[alternative["name"]] = Alternative(
                {row[0]["name"]: row for row in own}, alternative.get("tensors", [])
            )
        by_group[group["name"]] = alternatives
    return by_group | {f"operator {name}": {"": Alternative({name: row}, [])} for name, row in rows.items()}


def _rows(operators: list[Any], costs: dict[str, Any]) -> list[Any]:
    return list(zip(operators, *times_of(costs), strict=True))


def resolved(document: dict[str, Any], choice: dict[str, str], joined: list[list[str]] | None = None) -> Problem:
    """Return the problem of a choice, with joined parameters; a group without a choice is computed as in the graph."""
    known = alternatives_of(document)
    if any(alternative not in known.get(group, {}) for group, alternative in choice.items()):
        raise Refused("the choice names an unknown group, or an unknown alternative of one")
    chosen = [alternatives[choice.get(group, next(iter(alternatives)))] for group, alternatives in known.items()]
    rows = [row for alternative in chosen for row in alternative.rows.values()]
    named = {t for alternative in chosen for field in ("inputs", "outputs") for t in alternative.tensors_of(field)}
    tensors = [*document["graph"]["tensors"], *(t for alternative in chosen for t in alternative.tensors)]
    kept = [t for t in tensors if t["name"] in named or t.get("kind", "activation") != "activation"]
    graph = document["graph"] | {"operators": [row[0] for row in rows], "tensors": kept}
    names = enumerate(("operator_ns", "direct_ns", "host_read_ns"), 1)
    costs = document["costs"] | {name: [row[k] for row in rows] for k, name in names}
    return Problem(join(document | {"graph": graph, "costs": costs}, joined or []))


def relaxed_of(document: dict[str, Any], evidence: dict[str, Any]) -> Relaxed | None:
    """Return the relaxed problem of the evidence of a problem with variants, and None of another one."""
    variants = "variants" in document
    if variants != ("relaxed" in evidence):
        has = ("variants", "no") if variants else ("no variants", "a")
        raise Refused(f"the problem has {has[0]}, but the evidence has {has[1]} relaxed problem")
    return Relaxed(document, evidence["relaxed"]) if variants else None


class Relaxed:
    """The relaxed problem of the evidence; raises `Refused` if it may be harder than some choice.

    ``runs`` names, by group, alternative and relaxed operator, the operator to which it belongs. An operator of no group
    belongs to itself.
    """

    def __init__(self, document: dict[str, Any], claim: dict[str, Any]) -> None:
        self.problem = p = Problem(document | {"graph": claim["graph"], "costs": claim["costs"]})
        if p.mapped:
            raise Refused("a problem has variants, and storage of which devices without buses are mapped")
        self.document, self.known, self.alternatives = document, document["graph"]["tensors"], alternatives_of(document)
        alternatives = self.alternatives
        runs = {f"operator {name}": {"": {name: name}} for name in p.o if f"operator {name}" in alternatives} | claim[
            "runs"
        ]
        stands = [
            (p.o[name], group) for group, by_alternative in runs.items() for name in next(iter(by_alternative.values()))
        ]
        self.runs, self.group_of = runs, (group_of := dict(stands))
        if sorted(o for o, _ in stands) != list(range(len(p.o))):
            raise Refused("some operator of the relaxed problem does not stand for one group")
        read = [(t, o) for o, inputs in enumerate(p.inputs) for t in inputs if t in p.maker]
        self.handed_on = {t for t, o in read if group_of[o] != group_of[p.maker[t]]}  # from group to group
        self.handed_on |= {p.t[t["name"]] for t in self.known if p.t.get(t["name"]) in p.maker}
        # Groups that read a tensor in some alternative, of those that stand for something.
        self.read_by: dict[str, set[str]] = {}
        for group in claim["runs"]:
            for t in (t for alternative in alternatives[group].values() for t in alternative.tensors_of("inputs")):
                self.read_by.setdefault(t, set()).add(group)
        # By group, a tensor that stands for several host tensors, which cross one after another only over one bus.
        self.combined: dict[str, int] = {group: p.t[name] for group, name in claim.get("combined", {}).items()}
        if self.combined and (any(p.shares) or len(set(p.bus)) > 1):
            raise Refused("the relaxed problem has a combined tensor, but not all devices are on one bus")
        for v, hosts in enumerate(p.host_inputs):
            if {*hosts} & {*self.combined.values()} and hosts != [self.combined.get(group_of[v])]:
                raise Refused("a combined tensor is read by another group, or beside other host tensors")
        for group, by_alternative in runs.items():
            for name, alternative in alternatives[group].items():
                if by_alternative[name].keys() != next(iter(by_alternative.values())).keys():
                    raise Refused(f"group {group!r}: not each alternative runs the operators that stand for it")
                self._check(group, alternative, {p.o[own]: o for own, o in by_alternative[name].items()})

    def _check(self, group: str, alternative: Alternative, runs: dict[int, str]) -> None:
        """Check B2, B3 and B4 for an alternative."""
        p, tensors = self.problem, [*self.known, *alternative.tensors]
        sizes = {t["name"]: count(t["size"]) for t in tensors}
        if len(sizes) < len(tensors):
            raise Refused("a tensor of an alternative has the name of another one")
        for v, o in runs.items():
            for t in p.maker.keys() & p.inputs[v]:
                sources = {runs[p.maker[t]]} if p.maker[t] in runs else alternative.named("inputs", {p.tensor_names[t]})
                if o not in alternative.led_to(sources, p.size[t], sizes):
                    raise Refused(
                        f"{p.tensor_names[t]!r} of the relaxed problem need not have come to {o!r} of an alternative"
                    )
            for t in self.handed_on.intersection(p.outputs[v]):
                name, reached = p.tensor_names[t], alternative.led_to({o}, p.size[t], sizes)
                if sizes[name] < p.size[t] or alternative.named("outputs", {name}).isdisjoint(reached):
                    raise Refused(f"{name!r} of the relaxed problem is more than {o!r} of an alternative hands on")
        host = {t["name"] for t in tensors if t.get("kind", "activation") != "activation"}
        parts = dict[str, set[int]]()
        for o in runs.values():
            reads = {t: sizes[t] for t in host.intersection(alternative.rows[o][0].get("inputs", []))}
            own = [v for v in runs if runs[v] == o]
            self._check_times(alternative.rows[o], own, reads)
            # B4: host tensors that the operator does not read are parts of its largest own one.
            free = (t for t in reads if self.read_by.get(t) == {group} and t not in p.t)
            read = {t for v in own for t in p.host_inputs[v]} - {self.combined.get(group)}
            more = {t for t in read if reads.get(p.tensor_names[t], -1) < p.size[t]}
            parts.setdefault(max(free, key=lambda t: (sizes[t], t), default=""), set()).update(more)
        for (name, some), d in (
            (each, d) for each in parts.items() for d in range(len(p.devices)) if (HOST, d) in p.routes
        ):
            if some and (
                not name or sum(p.routes[HOST, d].ns(p.size[t]) for t in some) > p.routes[HOST, d].ns(sizes[name])
            ):
                raise Refused(
                    f"parts of {name or 'nothing'!r} in an alternative of {group!r} cross a bus in more time than it"
                )
        if group in self.combined:
            whole = self._loaded_before(group, alternative, runs) & host - {t for t, some in parts.items() if some}
            routes = [route for (source, _), route in p.routes.items() if source == HOST]
            least = {size: min(route.ns(size) for route in routes) for size in {*p.size, *sizes.values()}}
            if not whole:  # a load without bytes takes no time here, but may be a set, which has a latency
                raise Refused(f"the combined tensor of {group!r} stands for loads, and an alternative has none")
            if least[p.size[self.combined[group]]] > sum(least[sizes[t]] for t in whole):
                raise Refused(
                    f"the combined tensor of {group!r} takes longer on the bus than what an alternative loads"
                )

    def _loaded_before(self, group: str, alternative: Alternative, runs: dict[int, str]) -> set[str]:
        """Return inputs of this group alone which are loaded before the operators to which readers of its tensor belong."""
        p, names = self.problem, set(alternative.rows)
        for v in (v for v in runs if self.combined[group] in p.host_inputs[v]):
            names &= alternative.leading_to(runs[v])
        rows = [alternative.rows[o] for o in names]
        read = {t for row in rows if not any(ns is not None for ns in row[2]) for t in row[0].get("inputs", [])}
        return {t for t in read if self.read_by.get(t) == {group} and t not in p.t}

    def _check_times(self, row: Row, own: list[int], reads: dict[str, int]) -> None:
        """Check B1, and B4 for direct reads, for an operator of an alternative."""
        p, (operator, *modes) = self.problem, row
        reading = [v for v in own if {*p.host_inputs[v]} - {*self.combined.values()}]
        directly = sum(count((operator.get("read_bytes") or {}).get(t, size)) for t, size in reads.items())
        for d, direct in (
            (d, direct) for d in range(len(p.devices)) for direct in (0, 1) if modes[direct][d] is not None
        ):
            takes: list[Any] = [(p.direct if direct and v in reading else p.normal)[v][d] for v in own]
            slow, route = None in takes or sum(takes) > max(1, count(modes[direct][d])), p.routes.get((HOST, d))
            if route and direct and not slow:
                of = [(p.host_read(v, d), p.direct[v][d] or 0) for v in reading]
                slow = sum(ns for ns, _ in of) > route.ns(directly) or any(ns > time for ns, time in of)
            if slow:
                raise Refused(f"operator {operator['name']!r} of an alternative takes or reads less than what it runs")
