"""Elementary functions of float32 as vectorisable arithmetic, and the pass that replaces library calls by them.

TVM calls the C library for ``exp``, ``tanh``, ``erf`` and similar functions once per element, at about 10 ns. Vector code
takes less than 1 ns per element. Here each function is an expression of additions, multiplications, selections and bit
operations without branches or calls, so loops around it vectorise on any processor.
"""

from .replace import FUNCTIONS, MOST_ULP, is_replaced, replace_calls

__all__ = ["FUNCTIONS", "MOST_ULP", "is_replaced", "replace_calls"]
