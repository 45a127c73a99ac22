"""Parameters that travel as one tensor (``docs/model.md``, "Joined parameters")."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Any

from .derivation import Derivation
from .document import AT_ONCE, HOST, Refused, count, flag, routes_of


def loading_at_once(document: dict[Any, Any]) -> dict[Any, Any]:
    """Return the document for bounds: if parameters are joinable, host tensors move without latency."""
    return document | {AT_ONCE: True} if flag(document.get("joinable", False)) else document


def join(document: dict[str, Any], joined: list[list[str]]) -> dict[str, Any]:
    """Return a problem's document in which the first parameter of each set has the bytes of all."""
    if not joined:
        return document
    graph = document["graph"]
    known = {t["name"]: t for t in graph["tensors"] if t.get("kind") == "parameter"}
    members = [name for names in joined for name in names]
    if not flag(document.get("joinable", False)) or len(set(members)) < len(members):
        raise Refused("parameters are joined that are not joinable, or one is joined twice")
    if any(name not in known or name in graph.get("outputs", []) for name in members):
        raise Refused("something is joined that is not a parameter, or that the model returns")
    loads = (route.latency for ends, route in routes_of(document["topology"]).items() if ends[0] == HOST)
    most = int(min(loads, default=0.0) * 1e9)  # a load of as many is no shorter than loads of each, rounded up
    if any(not 2 <= len(names) <= most for names in joined):
        raise Refused(f"a set of joined parameters has fewer than 2 or more than {most}")
    if any(len({_model(graph, name) for name in names}) != 1 for names in joined):
        raise Refused("parameters of several models are joined")
    size = {name: count(known[name]["size"]) for name in members}
    first = {name: names[0] for names in joined for name in names}
    total = {names[0]: sum(size[name] for name in names) for names in joined}
    tensors = [t | {"size": total.get(t["name"], t["size"])} for t in graph["tensors"]]
    operators = []
    for operator in graph["operators"]:
        known_parts, inputs = operator.get("read_bytes") or {}, list(dict.fromkeys(operator.get("inputs", [])))
        parts = {name: size_ for name, size_ in known_parts.items() if name not in first}
        for name in inputs:
            if name in first:
                parts[first[name]] = parts.get(first[name], 0) + count(known_parts.get(name, size[name]))
        operators.append(operator | {"inputs": [first.get(name, name) for name in inputs], "read_bytes": parts})
    return document | {"graph": graph | {"operators": operators, "tensors": tensors}}


def least(known: Derivation, first: int | None, last: int | None, lemma: dict[str, Any]) -> int:
    """Return the ``ns`` of a lemma; refuse it if sets of loads may arrive in time for less (``docs/proofs/joined.md``)."""
    p = known.problem
    if first is not None or last is not None or not p.set_latency:
        raise Refused("rule 'joined' is about the whole run of a problem with joinable parameters")
    weights, bus, follows, loads = known.crossing(None, lemma)
    counted, latest = sorted(follows, key=lambda o: (-follows[o], o)), count(lemma["ns"]) - 1
    read = {o: [bus[d] * p.bus_read(o, d) for d in known.on_bus if p.direct[o][d] is not None] for o in counted}
    carried = list(accumulate(min([loads[o], *read[o]]) for o in counted))
    further = min(bus[d] * p.set_latencies[d] for d in known.on_bus)
    done = number = 0
    while done < len(counted):
        later = max(number + 1 - len(weights), 0) * further
        arrived = sum(weights.values()) * (latest - follows[counted[done]] - p.set_latency) - later
        if (reached := bisect_right(carried, arrived)) <= done:
            return int(lemma["ns"])
        done, number = reached, number + 1
    raise Refused("rule 'joined': sets of loads may arrive in time for less")


def _model(graph: dict[str, Any], name: str) -> str:
    """Return the model of a merged graph to which a tensor belongs; none: empty."""
    return max((model for model in graph.get("models", []) if name.startswith(f"{model}/")), key=len, default="")
