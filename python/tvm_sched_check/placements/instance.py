"""Read a placement problem: operators with times and sizes as fractions, and who reads from whom."""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from graphlib import CycleError, TopologicalSorter
from math import inf
from typing import Any

from ..document import Refused, count


class Instance:
    """Operators by position; ``accelerator``, ``cpu``: times, infinite where an operator cannot run."""

    def __init__(self, text: str) -> None:
        fields = json.loads(text)
        self.cpu = [_number(ns, inf) for ns in fields["cpu"]]
        self.accelerator = [[_number(ns, inf) for ns in row] for row in fields["accelerator"]]
        self.size, self.transfer, self.capacity = (
            [_number(value) for value in fields[key]] for key in ("size", "transfer", "capacity")
        )
        self.most, self.together = count(fields["q"]), fields["together"]
        operators = range(len(self.cpu))
        self.after: list[list[int]] = [[] for _ in operators]
        self.before: list[list[int]] = [[] for _ in operators]
        for u, v in fields["edges"]:
            self.after[count(u)].append(count(v))
            self.before[v].append(u)
        rows = {len(self.accelerator), len(self.size), len(self.transfer), len(self.together) or len(operators)}
        if rows != {len(operators)} or not {*map(len, self.accelerator)} <= {len(self.capacity)} or not self.most:
            raise Refused("the lists of the instance differ in length, or no subgraphs are allowed")
        try:
            self.order = list(TopologicalSorter(dict(enumerate(self.before))).static_order())
        except CycleError:
            raise Refused("the graph has a cycle") from None


def _number(value: Any, absent: Any = None) -> Any:
    """Return a number of a file exactly, or ``absent`` where it may stand for null."""
    if value is None and absent is not None:
        return absent
    if type(value) not in (int, float) or not 0 <= value <= sys.float_info.max:
        raise Refused(f"found {value!r} where a finite number from 0 is allowed")
    return Fraction(value)
