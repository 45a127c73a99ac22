"""The bound ``critical path``: the least time before the end of some operator, and the least time after it."""

from __future__ import annotations

from .relaxation import Relaxation


def critical_path_bound(relaxation: Relaxation) -> float:
    """Bound the latency by the largest head plus tail of an operator; infinite where no schedule exists.

    O(operators), once heads and tails are known. Proof: Theorem 1 of ``docs/proofs/critical_path.md``.
    """
    return float((relaxation.end + relaxation.after).max())
