"""The benchmark: suites of instances, runs of methods in equal time, best known solutions, and tables."""

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
