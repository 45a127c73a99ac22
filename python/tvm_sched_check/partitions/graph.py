"""A graph to cut into stages: work of nodes, transfers of tensors, in integers; overflow, which only adds, is left out."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

from .cost import number


class Tensor(NamedTuple):
    """Who makes it (-1: it comes from outside) and who reads it; its transfer; whether it leaves the model."""

    producer: int
    readers: frozenset[int]
    transfer: int
    leaves: bool

    @property
    def members(self) -> list[int]:
        """Nodes whose stages may pay for it: the producer's, where it is sent, and those of readers, where it comes in."""
        return sorted(self.readers | {self.producer} - {-1})

    @property
    def always(self) -> bool:
        """Whether each stage with a member pays: else none does where all of them are in one."""
        return self.leaves or self.producer < 0


class Graph:
    """Times are integers, of which each stands for ``unit``; ``before`` has the nodes from which each one reads."""

    def __init__(self, work: list[Fraction], tensors: list[tuple[int, Any, Fraction, bool]]) -> None:
        self.size = len(work)
        self.unit = Fraction(1, math.lcm(*(value.denominator for value in (*work, *(t[2] for t in tensors)))))
        self.work = [int(value / self.unit) for value in work]
        self.tensors = [
            Tensor(producer, frozenset(readers), int(transfer / self.unit), bool(leaves))
            for producer, readers, transfer, leaves in tensors
        ]
        nodes = {*range(self.size)}
        if not all(t.producer in nodes | {-1} and t.readers <= nodes for t in self.tensors):
            raise LookupError("a tensor names a node that is not there")
        self.before: list[set[int]] = [set() for _ in work]
        for tensor in self.tensors:
            for v in tensor.readers if tensor.producer >= 0 else ():
                self.before[v].add(tensor.producer)


def graph_of(document: dict[str, Any]) -> Graph:
    """The graph of an instance's file (``docs/formats/benchmark.md``)."""
    work = [number(node["work"]) for node in document["nodes"]]
    rows = [(made, readers, number(transfer), leaves) for made, readers, transfer, _, leaves in document["tensors"]]
    return Graph(work, rows)
