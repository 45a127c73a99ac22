"""Kernel libraries: folders of hand-written kernels that claim operators before TVM compiles the others."""

from .kernel_library import (
    KERNELS,
    KernelLibrary,
    KernelSet,
    available_libraries,
    claimed_functions,
    get_library,
    kernel_document,
    kernel_flops,
    kernel_in_place,
    make_modules,
    register,
)
from .offload import OffloadKernels
from .patterns import register_patterns

__all__ = [
    "KERNELS",
    "KernelLibrary",
    "KernelSet",
    "OffloadKernels",
    "available_libraries",
    "claimed_functions",
    "get_library",
    "kernel_document",
    "kernel_flops",
    "kernel_in_place",
    "make_modules",
    "register",
    "register_patterns",
]
