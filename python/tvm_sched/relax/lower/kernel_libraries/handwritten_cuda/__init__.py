"""Our GPU kernels in CUDA C++: attention, normalisation of rows, sorts and scans. nvcc compiles them with a model."""

from .library import LIBRARY

__all__ = ["LIBRARY"]
