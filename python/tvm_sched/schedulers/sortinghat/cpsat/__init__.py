"""SortingHat's program for CP-SAT: equal assignments, times in whole nanoseconds, and orders in addition to inequalities."""

from .model import solve

__all__ = ["solve"]
