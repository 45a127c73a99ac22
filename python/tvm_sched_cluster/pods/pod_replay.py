"""Replay pods on nodes until they ask for more GPUs than there are, beside a bound on what any policy can allocate."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tvm_sched.progress import Progress

from ..replay.replay_results import PodRun
from .pod_bound import most_allocated
from .pod_policies import PodScheduler
from .pod_trace import MILLI, Node, Pod

_POINTS = 100


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
