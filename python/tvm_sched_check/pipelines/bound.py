"""Prove the bound of a pipeline: it is a bound of the partitions of the graph that `relaxed` makes.

Proof: Lemma 1 of ``docs/proofs/partition_simple.md``. The rules are in `tvm_sched_check.partitions.bound`.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Any

from ..document import HOST, Problem, Refused, count
from ..partitions.bound import bound_of as partition_bound
from ..partitions.graph import Graph


def bound_of(problem: Problem, evidence: dict[str, Any]) -> int:
    """Return the bound in nanoseconds that the evidence claims; raise `Refused` if it does not follow."""
    graph, ns = relaxed(problem, [problem.d[name] for name in evidence["devices"]]), count(evidence["ns"])
    if evidence["rule"] == "operator":
        evidence = {**evidence, "operator": problem.o[evidence["operator"]]}
    proved = ceil(partition_bound(graph, count(evidence["stages"]), evidence, Fraction(ns)))  # costs are whole numbers
    if ns > proved:
        raise Refused(f"the evidence claims {ns} ns; by rule {evidence['rule']!r} there are {proved}")
    return ns


def relaxed(problem: Problem, devices: list[int]) -> Graph:
    """Return the graph with the least time of each operator and each transfer on some devices.

    Operators and tensors are in the order of the problem. Parameters, which lie on the devices, are left out.
    """
    p = problem
    times = [[ns for d in devices if (ns := p.normal[o][d]) is not None] for o in range(len(p.o))]
    if not devices or not all(times):
        raise Refused("some operator can run on none of the devices")
    pairs = [(a, b) for a in devices for b in devices if a != b and (a, b) in p.routes]
    producer = {t: o for o, outputs in enumerate(p.outputs) for t in outputs}
    tensors: list[Any] = []
    for t, size in enumerate(p.size):
        readers = [o for o, inputs in enumerate(p.inputs) if t in inputs]
        leaves = t in p.results and t in producer
        if p.kind[t] != "parameter" and (readers or leaves):
            host = [p.routes[HOST, d].ns(size) if (HOST, d) in p.routes else 0 for d in devices]
            copies = [p.routes[pair].ns(size) for pair in pairs if readers and not p.is_host(t)]
            transfer = min(copies + (host if p.is_host(t) or leaves else []), default=0)
            tensors.append((producer.get(t, -1), readers, Fraction(transfer), leaves))
    return Graph([Fraction(min(each)) for each in times], tensors)
