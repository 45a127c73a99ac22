"""Kernels of our own for GPUs, in CUDA C++: attention without the matrix of scores. nvcc compiles them with a model."""

from .library import LIBRARY

__all__ = ["LIBRARY"]
