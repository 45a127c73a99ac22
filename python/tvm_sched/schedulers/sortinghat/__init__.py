"""SortingHat (ICS 2025), as the paper describes it: a mixed-integer program for each submodel."""

from .scheduler import SortingHatOptions, sortinghat

__all__ = ["SortingHatOptions", "sortinghat"]
