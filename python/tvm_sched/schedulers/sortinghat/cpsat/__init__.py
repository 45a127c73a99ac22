"""SortingHat's program for CP-SAT: the same assignments and times in whole nanoseconds, with orders beside inequalities."""

from .model import solve

__all__ = ["solve"]
