"""Scheduler `exact`: a portfolio of list schedules, constraint programming on submodels, local search."""

from ..common.submodels import dominator_chain, split
from .scheduler import ExactOptions, exact

__all__ = ["ExactOptions", "dominator_chain", "exact", "split"]
