"""The bound ``simple``: some stage has the work of the largest node, and some stage at least the average work."""

from __future__ import annotations

from tvm_sched_runtime.problem.partition_problem import PartitionProblem


def simple_bound(problem: PartitionProblem, stages: int) -> float:
    """Bound the bottleneck from the work of nodes alone. O(nodes).

    Proof: Lemma 2 of ``docs/proofs/partition_simple.md`` (Archer et al., ICML 2024, Lemma 3.3).
    """
    return max(float(problem.work.max(initial=0)), float(problem.work.sum()) / stages)
