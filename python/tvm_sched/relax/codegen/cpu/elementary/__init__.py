"""Elementary functions of float32 as vectorisable arithmetic, and the pass that replaces library calls by them.

TVM calls the C library for ``exp``, ``tanh``, ``erf`` and their like, number by number: some 10 ns each, where vectors of
these take less than one. Here each function is an expression of additions, multiplications, selections and operations on
bits, with no branch and no call, so that loops around it become vectors on any processor.
"""

from .function_table import FUNCTIONS, MOST_ULP
from .replace import is_replaced, replace_calls

__all__ = ["FUNCTIONS", "MOST_ULP", "is_replaced", "replace_calls"]
