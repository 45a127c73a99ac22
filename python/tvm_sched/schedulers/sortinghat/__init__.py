"""SortingHat (ICS 2025) as the paper describes it: a mixed-integer program for each submodel; also for CP-SAT."""

from .scheduler import SortingHatCpSatOptions, SortingHatOptions, heuristic_schedule, sortinghat, sortinghat_cpsat

__all__ = ["SortingHatCpSatOptions", "SortingHatOptions", "heuristic_schedule", "sortinghat", "sortinghat_cpsat"]
