"""Kernels of operators whose result size depends on the values: they fill a buffer of the largest possible size.

Each kernel also writes the number of entries; `emit_leading` copies these out of the buffer.
"""

from .selection import compress_kernel, emit_count, emit_leading, nonzero_kernel
from .suppression import Suppression, suppression_kernel
from .unique import unique_kernel
from .writing import least

__all__ = [
    "Suppression",
    "compress_kernel",
    "emit_count",
    "emit_leading",
    "least",
    "nonzero_kernel",
    "suppression_kernel",
    "unique_kernel",
]
