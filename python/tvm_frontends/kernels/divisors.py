"""The kernel of greatest common divisors."""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from .bounded.writing import Kernel, assign, counter, long, loops


def gcd_kernel(count: int, dtype: str) -> tirx.PrimFunc:
    """Build the kernel for the greatest common divisors of two integer tensors ``(count,)`` by Euclid's algorithm.

    They are not negative; that of 0 and a number is the magnitude of the number.
    """
    kernel = Kernel()
    with kernel.write("gcd"):
        x, y, result = (kernel.argument(name, (count,), dtype) for name in ("x", "y", "divisor"))
        larger, smaller, rest = counter(), counter(), counter()
        with loops([count]) as (k,):
            for variable, tensor in ((larger, x), (smaller, y)):
                assign(variable, long(tensor[k]))
                assign(variable, tirx.max(variable[0], long(0) - variable[0]))
            with T.While(smaller[0] != long(0)):
                assign(rest, tirx.truncmod(larger[0], smaller[0]))
                assign(larger, smaller[0])
                assign(smaller, rest[0])
            T.buffer_store(result, tirx.Cast(dtype, larger[0]), [k])
    return kernel.function
