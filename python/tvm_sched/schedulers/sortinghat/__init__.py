"""SortingHat (ICS 2025) as the paper describes it: a mixed-integer program for each submodel."""

from .scheduler import SortingHatOptions, heuristic_schedule, sortinghat

__all__ = ["SortingHatOptions", "heuristic_schedule", "sortinghat"]
