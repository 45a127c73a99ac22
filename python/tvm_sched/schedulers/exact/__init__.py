"""Scheduler `exact`: constraint programming on submodels split at dominators."""

from .scheduler import ExactOptions, exact
from .submodels import dominator_chain, split

__all__ = ["ExactOptions", "dominator_chain", "exact", "split"]
