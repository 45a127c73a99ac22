"""Kernels for GPUs: dlight schedules, TVM's CUDA code, nvcc. Needs no GPU."""

from ...toolchain.nvcc import architectures, compile_source, find_nvcc, needed_architectures
from .compile import compile_cuda_kernels, compile_image

__all__ = [
    "architectures",
    "compile_cuda_kernels",
    "compile_image",
    "compile_source",
    "find_nvcc",
    "needed_architectures",
]
