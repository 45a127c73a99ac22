"""The benchmark: suites of instances, runs of methods in equal time, best known solutions, and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm_sched_runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from .best_known import BestKnown, Known
    from .run_files import Result, Run
    from .runner import RunLimits, run
    from .scoring import check_kept, keep, prove_kept, raise_bounds, score
    from .standings import Standings, page, summaries
    from .suite import Case, Suite, load_suite

__all__ = [
    "BestKnown",
    "Case",
    "Known",
    "Result",
    "Run",
    "RunLimits",
    "Standings",
    "Suite",
    "check_kept",
    "keep",
    "load_suite",
    "page",
    "prove_kept",
    "raise_bounds",
    "run",
    "score",
    "summaries",
]

__getattr__ = lazy_names(
    __name__,
    {
        "BestKnown": "best_known",
        "Case": "suite",
        "Known": "best_known",
        "Result": "run_files",
        "Run": "run_files",
        "RunLimits": "runner",
        "Standings": "standings",
        "Suite": "suite",
        "check_kept": "scoring",
        "keep": "scoring",
        "load_suite": "suite",
        "page": "standings",
        "prove_kept": "scoring",
        "raise_bounds": "scoring",
        "run": "runner",
        "score": "scoring",
        "summaries": "standings",
    },
)
"""The command line imports this package for its help alone."""
