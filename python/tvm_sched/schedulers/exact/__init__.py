"""Scheduler `exact`: a portfolio of list schedules, constraint programming on submodels, local search."""

from .scheduler import ExactOptions, exact
from .submodels import dominator_chain, split

__all__ = ["ExactOptions", "dominator_chain", "exact", "split"]
