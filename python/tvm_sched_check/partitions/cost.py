"""Compute what a stage of a partition costs, in exact arithmetic (``docs/model.md``, "Pipelines")."""

from __future__ import annotations

import sys
from fractions import Fraction
from typing import Any

from ..document import Refused

Places = dict[int, tuple[int, int]]
"""The stage of each node, and its position there."""


def places_of(graph: dict[str, Any], solution: dict[str, Any]) -> Places:
    """Return stage and position of each node in a partition; raise `Refused` if the partition breaks a rule."""
    nodes, stages = graph["nodes"], solution["stages"]
    number = {node["name"]: v for v, node in enumerate(nodes)}
    place = {number[name]: (s, i) for s, stage in enumerate(stages) for i, name in enumerate(stage)}
    if len(number) < len(nodes) or len(place) < len(nodes) or sum(map(len, stages)) > len(nodes):
        raise Refused("the stages do not hold each node of the graph once, or two nodes have one name")
    if len(stages) > graph["stages"]:
        raise Refused(f"there are {len(stages)} stages; at most {graph['stages']} are allowed")
    for producer, readers, *_ in graph["tensors"]:
        if producer >= 0 and any(place[v] <= place[producer] for v in readers):
            raise Refused(f"node {nodes[producer]['name']!r} runs after one that reads from it, or in a later stage")
    return place


def cost_of(graph: dict[str, Any], s: int, place: Places) -> Fraction:
    """Return the cost of stage ``s``: its work, its transfers, and the time to stream parameters that do not fit.

    A tensor that comes in takes memory from the start to its last reader, one that is sent from its producer to the end.
    """
    own = [v for v in place if place[v][0] == s]
    change = [Fraction(0)] * (len(own) + 1)  # of the bytes held, before each node
    cost = sum((number(graph["nodes"][v]["work"]) for v in own), Fraction(0))
    for producer, readers, transfer, size, leaves in graph["tensors"]:
        reading = [place[v][1] for v in readers if place[v][0] == s]
        position = place[producer][1] if producer >= 0 and place[producer][0] == s else None
        sent = position is not None and (leaves or len(reading) < len(readers))
        if sent or (position is None and reading):
            cost += number(transfer)
        if position is not None or reading:
            change[position or 0] += number(size)
            change[len(own) if sent else max([*reading, position or 0]) + 1] -= number(size)
    peak = max(sum(change[: i + 1], Fraction(0)) for i in range(len(change)))
    if graph["memory"] is None:
        return cost
    held = sum((number(graph["nodes"][v]["parameters"]) for v in own), Fraction(0)) + peak
    return cost + max(held - number(graph["memory"]), Fraction(0)) * number(graph["overflow_time"])


def number(value: float) -> Fraction:
    """Return a number of a file exactly; refuse all but finite numbers from 0."""
    if type(value) not in (int, float) or not 0 <= value <= sys.float_info.max:
        raise Refused(f"found {value!r} where a finite number from 0 is allowed")
    return Fraction(value)
