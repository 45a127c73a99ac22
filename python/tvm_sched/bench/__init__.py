"""The benchmark: suites of instances, runs of methods in equal time, best known solutions, and tables."""

from .best import BestKnown, Known
from .records import Result, Run
from .runner import Limits, run
from .scoring import check_kept, keep, prove_kept, raise_bounds, score
from .suite import Case, Suite, load_suite
from .tables import Standings, page, summaries

__all__ = [
    "BestKnown",
    "Case",
    "Known",
    "Limits",
    "Result",
    "Run",
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
