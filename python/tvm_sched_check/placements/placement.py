"""Compute the latency of a placement, by the definitions of ``docs/proofs/placement_path.md``."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from math import inf
from typing import Any

from ..document import Refused, count
from .instance import Instance


def latency_of(instance: Instance, subgraph: list[int]) -> Fraction:
    """Return the end of the last operator; raise `Refused` if the placement breaks a rule.

    ``subgraph`` says where each operator runs: 0 is a CPU; accelerator ``i``, from 0, has the next ``most`` numbers.
    """
    p, last = instance, len(instance.capacity) * instance.most
    if len(subgraph) != len(p.cpu) or any(count(j) > last for j in subgraph):
        raise Refused(f"{len(p.cpu)} numbers from 0 to {last} are allowed, one for each operator")
    if len({*zip(p.together, subgraph, strict=False)}) > len({*p.together}):
        raise Refused("operators that belong together are placed apart")
    units = [j or -1 - v for v, j in enumerate(subgraph)]  # a subgraph, or an operator alone on a CPU
    held, busy = Counter[int](), dict[int, Any]()
    waits: dict[int, set[int]] = {unit: set() for unit in units}
    for earlier, later in pairwise(sorted({unit for unit in units if unit > 0})):
        waits[later] |= {earlier} if (earlier - 1) // p.most == (later - 1) // p.most else set()
    for v, unit in enumerate(units):
        at = (unit - 1) // p.most
        busy[unit] = busy.get(unit, 0) + (p.accelerator[v][at] if unit > 0 else p.cpu[v])
        held[at] += p.size[v] if unit > 0 else 0
    for v, unit in enumerate(units):
        elsewhere = {units[r] for r in p.after[v]} - {unit}
        for other in (*elsewhere, *([unit] if elsewhere else [])):
            busy[other] += p.transfer[v] if other > 0 else 0
        for other in elsewhere:
            waits[other].add(unit)
    if inf in busy.values():
        raise Refused("an operator is placed where it cannot run")
    if any(held[i] > room for i, room in enumerate(p.capacity)):
        raise Refused("an accelerator holds more than its memory")
    end = dict[int, Any]()
    try:
        for unit in TopologicalSorter(waits).static_order():
            end[unit] = max((end[before] for before in waits[unit]), default=Fraction(0)) + busy.get(unit, 0)
    except CycleError:
        raise Refused("a subgraph is not contiguous: it waits for an operator that waits for it") from None
    return Fraction(max((end[unit] for unit in units), default=0))
