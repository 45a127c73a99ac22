"""EfficientMIP: placement by Tarnawski et al. (NeurIPS 2020), as published and as SortingHat compares with it."""

from .instance import Instance
from .program import SolvedPlacement, place
from .scheduler import EfficientMipOptions, efficient_mip
from .workload_files import read_workload

__all__ = ["EfficientMipOptions", "Instance", "SolvedPlacement", "efficient_mip", "place", "read_workload"]
