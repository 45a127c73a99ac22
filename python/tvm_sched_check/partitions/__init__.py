"""An independent check of what the dearest stage of a partition costs, in exact arithmetic (``docs/formats/benchmark.md``).

Read `cost_of`, the cost of a stage; `check` reads the two files. Beside it stands the simple bound: some stage has the work
of the largest node, and some stage the average work.
"""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from ..document import Refused, read


class Verdict(NamedTuple):
    """Cost of the dearest stage, and what the simple bound proves."""

    cost: Fraction
    proved: Fraction

    @property
    def all_proved(self) -> bool:
        """Whether no partition is cheaper."""
        return self.cost <= self.proved

    @property
    def lines(self) -> list[str]:
        """What is found, in words."""
        gap = 1 - self.proved / self.cost if self.cost else 0
        return [
            f"the dearest stage costs {float(self.cost):.12g}",
            f"the simple bound proves {float(self.proved):.12g}; gap proved: {float(gap):.2%}",
        ]


def check(instance_file: str | Path, solution_file: str | Path) -> Verdict:
    """Price the partition; raises `Refused` where it breaks a rule, or one of the files is wrong."""
    graph, digest = read(instance_file, "tvm_sched.partition_problem", (1,))
    solution, _ = read(solution_file, "tvm_sched.partition", (1,))
    try:
        if solution["instance"] != digest:
            raise Refused(f"the partition is of instance {solution['instance']}; the digest of this one is {digest}")
        nodes, stages = graph["nodes"], solution["stages"]
        number = {node["name"]: v for v, node in enumerate(nodes)}
        place = {number[name]: (s, i) for s, stage in enumerate(stages) for i, name in enumerate(stage)}
        if len(number) < len(nodes) or len(place) < len(nodes) or sum(map(len, stages)) > len(nodes):
            raise Refused("the stages do not hold each node of the graph once, or two nodes have one name")
        if len(stages) > graph["stages"]:
            raise Refused(f"there are {len(stages)} stages; at most {graph['stages']} are allowed")
        for producer, readers, *_ in graph["tensors"]:
            if producer >= 0 and any(place[v] <= place[producer] for v in readers):
                raise Refused(
                    f"node {nodes[producer]['name']!r} runs after one that reads from it, or in a later stage"
                )
        work = [_number(node["work"]) for node in nodes]
        cost = max((cost_of(graph, s, place) for s in range(len(stages))), default=Fraction(0))
        return Verdict(cost, max([*work, sum(work, Fraction(0)) / graph["stages"]], default=Fraction(0)))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise Refused(f"a file is not as its format says: {type(error).__name__} {error}") from None


def cost_of(graph: dict[str, Any], s: int, place: dict[int, tuple[int, int]]) -> Fraction:
    """Work of a stage, transfers of what comes in and goes out, and the time to stream parameters that do not fit.

    What comes in is held from the start to its last reader, what is sent from its producer to the end.
    """
    own = [v for v in place if place[v][0] == s]
    change = [Fraction(0)] * (len(own) + 1)  # of the bytes held, before each node
    cost = sum((_number(graph["nodes"][v]["work"]) for v in own), Fraction(0))
    for producer, readers, transfer, size, leaves in graph["tensors"]:
        reading = [place[v][1] for v in readers if place[v][0] == s]
        made = place[producer][1] if producer >= 0 and place[producer][0] == s else None
        sent = made is not None and (leaves or len(reading) < len(readers))
        if sent or (made is None and reading):
            cost += _number(transfer)
        if made is not None or reading:
            change[made or 0] += _number(size)
            change[len(own) if sent else max([*reading, made or 0]) + 1] -= _number(size)
    peak = max(sum(change[: i + 1], Fraction(0)) for i in range(len(change)))
    if graph["memory"] is None:
        return cost
    held = sum((_number(graph["nodes"][v]["parameters"]) for v in own), Fraction(0)) + peak
    return cost + max(held - _number(graph["memory"]), Fraction(0)) * _number(graph["overflow_time"])


def _number(value: float) -> Fraction:
    """A number of a file, exactly."""
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise Refused(f"found {value!r} where a finite number from 0 is allowed")
    return Fraction(value)
