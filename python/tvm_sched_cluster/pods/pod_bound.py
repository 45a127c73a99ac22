"""Bound the GPUs that any policy can allocate to pods (``docs/proofs/pods.md``)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from math import gcd
from typing import TYPE_CHECKING, Any

from tvm_sched_runtime.errors import SchedulerError

from .pod_trace import MILLI, Node, Pod

if TYPE_CHECKING:
    from ortools.math_opt.python import mathopt

_ACCURACY = 1e-6


def most_allocated(nodes: Sequence[Node], pods: Sequence[Pod]) -> float:
    """Return an upper bound on the thousandths of GPUs that any policy allocates to some of these pods.

    The linear program of Theorem 2 in ``docs/proofs/pods.md``: pods of each kind are spread over kinds of nodes on which one
    fits, the CPUs, memory and GPUs of all nodes of a kind are summed, and a flow packs the shares of GPUs.

    Raises
    ------
    SchedulerError
        The solver failed.
    """
    from ortools.math_opt.python import mathopt

    model = mathopt.Model()
    asked, there = Counter(pods), Counter(nodes)
    placed: dict[Node, list[tuple[Pod, Any]]] = {node: [] for node in there}
    shares: defaultdict[int, list[Any]] = defaultdict(list)
    for pod, count in asked.items():
        own = []
        for node in there:
            fits = pod.cpu <= node.cpu and pod.memory <= node.memory and pod.gpus <= node.gpus
            if pod.total and fits and (not pod.kinds or node.kind in pod.kinds):
                own.append(model.add_variable(lb=0))
                placed[node].append((pod, own[-1]))
                shares[pod.milli].append(pod.gpus * own[-1])
        if own:
            model.add_linear_constraint(sum(own) <= count)
    if not shares:
        return 0.0
    for node, held in placed.items():
        for what in ("cpu", "memory", "total") if held else ():
            room = node.gpus * MILLI if what == "total" else getattr(node, what)
            model.add_linear_constraint(sum(getattr(pod, what) * part for pod, part in held) <= room * there[node])
    packed = _pack(model, shares, sum(node.gpus for node in nodes))
    for milli, parts in shares.items():
        model.add_linear_constraint(sum(parts) <= sum(packed[milli]))
    model.maximize(sum(milli * sum(parts) for milli, parts in shares.items()))
    result = mathopt.solve(model, mathopt.SolverType.GLOP)
    if result.termination.reason is not mathopt.TerminationReason.OPTIMAL:
        raise SchedulerError(f"the linear program over pods was not solved: {result.termination}; please report this")
    everything = sum(node.gpus for node in nodes) * MILLI
    return min(float(everything), result.objective_value() * (1 + _ACCURACY) + _ACCURACY)


def _pack(model: mathopt.Model, shares: Iterable[int], gpus: int) -> dict[int, list[Any]]:
    """Add a flow of GPUs through the packing graph (Lemma 1 in ``docs/proofs/pods.md``); return the arcs of each share."""
    step = gcd(MILLI, *shares)
    sizes = {milli: milli // step for milli in sorted(shares, reverse=True)}
    top = MILLI // step
    leaving: dict[int, list[Any]] = {0: []}  # by level that a sum of shares reaches
    arriving: defaultdict[int, list[Any]] = defaultdict(list)
    arcs: dict[int, list[Any]] = {milli: [] for milli in sizes}
    for level in range(top):
        if level not in leaving:
            continue
        for milli, size in sizes.items():
            if level + size <= top:
                arcs[milli].append(model.add_variable(lb=0))
                leaving[level].append(arcs[milli][-1])
                arriving[level + size].append(arcs[milli][-1])
                leaving.setdefault(level + size, [])
    model.add_linear_constraint(sum(leaving.pop(0)) <= gpus)
    for level, own in leaving.items():
        if own:
            model.add_linear_constraint(sum(own) <= sum(arriving[level]))
    return arcs
