"""Represent a graph to be cut into stages, with work of nodes and transfers of tensors in integers.

Overflow of parameters is left out; it only adds to the cost of a stage.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

from .cost import number


class Tensor(NamedTuple):
    """A tensor: its producer (-1: it comes from outside), its readers, its transfer time, whether it leaves the model."""

    producer: int
    readers: frozenset[int]
    transfer: int
    leaves: bool

    @property
    def members(self) -> list[int]:
        """The nodes whose stages may pay for the tensor: its producer, if it has one, and its readers."""
        return sorted(self.readers | {self.producer} - {-1})

    @property
    def always(self) -> bool:
        """Whether every stage with a member pays. Otherwise none pays if one stage has all members."""
        return self.leaves or self.producer < 0


class Graph:
    """A graph whose times are integers, in multiples of ``unit``; ``before[v]`` are the nodes from which ``v`` reads."""

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
    """Return the graph of an instance file (``docs/formats/benchmark.md``)."""
    work = [number(node["work"]) for node in document["nodes"]]
    rows = [
        (producer, readers, number(transfer), leaves) for producer, readers, transfer, _, leaves in document["tensors"]
    ]
    return Graph(work, rows)
