"""Replay pods on nodes until they ask for more GPUs than there are, and bound what any policy can allocate."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from tvm_sched.errors import SchedulerError
from tvm_sched.progress import Progress

from ..replay.replay_results import PodRun
from .pod_policies import PodScheduler
from .pod_trace import MILLI, Node, Pod

_POINTS = 100
_ACCURACY = 1e-6


def replay_pods(
    nodes: Sequence[Node],
    pods: Sequence[Pod],
    policy: str,
    typical: Sequence[Pod],
    seed: int = 0,
    bounds: bool = True,
    progress: Progress | None = None,
) -> PodRun:
    """Place pods in their order; no pod leaves. An interrupt ends the run and keeps the results so far.

    Parameters
    ----------
    typical : sequence of Pod
        As for `PodScheduler`.
    seed : int
        Of the policy.
    bounds : bool
        Whether to compute `most_allocated`.
    """
    scheduler = PodScheduler(nodes, policy, typical, seed)
    gpus = sum(node.gpus for node in nodes) * MILLI
    came = allocated = placed = 0
    at_full, at_full_pods, interrupted, curve = 0.0, len(pods), False, [(0.0, 0.0)]
    begin, handled = time.process_time(), 0
    try:
        for pod in pods:
            came += pod.total
            if scheduler.place(pod) is not None:
                allocated += pod.total
                placed += 1
            handled += 1
            if came >= gpus > came - pod.total:
                at_full, at_full_pods = allocated / gpus, handled
            if came / gpus >= curve[-1][0] + 1 / _POINTS:
                curve.append((came / gpus, allocated / gpus))
            if progress and handled % 100 == 0:
                progress(f"{policy}: {allocated / gpus:.1%} allocated", handled, len(pods))
    except KeyboardInterrupt:
        interrupted = True
    seconds = time.process_time() - begin
    full, whole = (
        (most_allocated(nodes, pods[:count]) / gpus if bounds and not interrupted else None)
        for count in (at_full_pods, len(pods))
    )
    return PodRun(
        seed=seed,
        interrupted=interrupted,
        pods=handled,
        placed=placed,
        allocated_at_100=at_full if came >= gpus else allocated / gpus,
        allocated=allocated / gpus,
        bound_at_100=full,
        bound=whole,
        decision_ms=1e3 * seconds / max(handled, 1),
        curve=curve,
    )


def most_allocated(nodes: Sequence[Node], pods: Sequence[Pod]) -> float:
    """Return an upper bound on the thousandths of GPUs that any policy allocates to some of these pods.

    A linear program over kinds of pods and kinds of nodes: pods of each kind are spread over kinds of nodes on which one
    fits, and the CPUs, memory and GPUs of all nodes of a kind are summed. Pods may be left out and divided, so every
    allocation is a solution.
    """
    from ortools.math_opt.python import mathopt

    model = mathopt.Model()
    asked, there = Counter(pods), Counter(nodes)
    used: dict[Node, list[tuple[Pod, object]]] = {node: [] for node in there}
    parts = []
    for pod, count in asked.items():
        own = []
        for node in there:
            fits = pod.cpu <= node.cpu and pod.memory <= node.memory and pod.gpus <= node.gpus
            if pod.total and fits and (not pod.kinds or node.kind in pod.kinds):
                part = model.add_variable(lb=0)
                used[node].append((pod, part))
                own.append(part)
                parts.append(pod.total * part)
        if own:
            model.add_linear_constraint(sum(own) <= count)
    for node, held in used.items():
        for what in ("cpu", "memory", "total") if held else ():
            room = node.gpus * MILLI if what == "total" else getattr(node, what)
            model.add_linear_constraint(sum(getattr(pod, what) * part for pod, part in held) <= room * there[node])
    if not parts:
        return 0.0
    model.maximize(sum(parts))
    result = mathopt.solve(model, mathopt.SolverType.GLOP)
    if result.termination.reason is not mathopt.TerminationReason.OPTIMAL:
        raise SchedulerError(f"the linear program over pods was not solved: {result.termination}; please report this")
    everything = sum(node.gpus for node in nodes) * MILLI
    return min(float(everything), result.objective_value() * (1 + _ACCURACY) + _ACCURACY)
