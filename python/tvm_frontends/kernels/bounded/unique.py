"""The kernel of ONNX's Unique."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from .writing import Kernel, add_one, assign, counter, long, loops, when


def unique_kernel(rows_given: Any, width_given: Any, dtype: str, ordered: bool) -> tirx.PrimFunc:
    """Build the kernel for the distinct rows of a matrix ``(items, width)``.

    It writes the distinct rows ``(items, width)``, the first position of each ``(items,)``, the row of each item
    ``(items,)``, the number of items of each row ``(items,)``, and the number of rows ``(1,)``; all but the rows are
    int64. Rows are in lexicographic order, or else in the order of their first appearance. NaN is greater than all
    numbers and equal to NaN, as in NumPy.
    """
    kernel = Kernel()
    with kernel.write("unique"):
        items, width = kernel.sizes([rows_given, width_given])
        x = kernel.argument("x", (items, width), dtype)
        rows = kernel.argument("rows", (items, width), dtype)
        first, inverse, counts = (kernel.argument(name, (items,), "int64") for name in ("first", "of", "often"))
        count = kernel.argument("count", (1,), "int64")
        writer = _Writer(x, items, width, dtype)
        order = writer.sort()
        leader = T.alloc_buffer((items,), "int64")
        with loops([items]) as (k,), T.If(k == 0):
            with T.Then():
                T.buffer_store(leader, order[k], [order[k]])
            with T.Else():
                before = T.Bind(order[tirx.max(k - 1, long(0))])
                writer.compare(before, order[k])
                T.buffer_store(leader, tirx.Select(writer.sign[0] == 0, leader[before], order[k]), [order[k]])
        distinct, item = counter(), counter()
        with loops([items]) as (k,):
            T.buffer_store(counts, long(0), [k])
        with loops([items]) as (k,):
            assign(item, order[k] if ordered else k)
            with when(leader[item[0]] == item[0]):
                T.buffer_store(first, item[0], [distinct[0]])
                T.buffer_store(inverse, distinct[0], [item[0]])
                with loops([width]) as (j,):
                    T.buffer_store(rows, x[item[0], j], [distinct[0], j])
                add_one(distinct)
        with loops([items]) as (k,):
            T.buffer_store(inverse, inverse[leader[k]], [k])
            T.buffer_store(counts, counts[inverse[k]] + long(1), [inverse[k]])
        T.buffer_store(count, distinct[0], [0])
    return kernel.function


class _Writer:
    """Writes the sorting of items as positions."""

    def __init__(self, x: Any, items: Any, width: Any, dtype: str) -> None:
        self.x, self.items, self.width = x, items, width
        self.dtype = dtype
        self.sign, self.column = counter(), counter()

    def compare(self, a: Any, b: Any) -> None:
        """Set `sign` to -1, 0 or 1: the first of two items is less, equal or greater."""
        assign(self.sign, 0)
        assign(self.column, 0)
        with T.While(tirx.all(self.sign[0] == 0, self.column[0] < long(self.width))):
            left, right = (T.Bind(self.x[item, self.column[0]]) for item in (a, b))
            less, more = self._less(left, right), self._less(right, left)
            assign(self.sign, tirx.Select(less, long(-1), tirx.Select(more, long(1), long(0))))
            add_one(self.column)

    def _less(self, a: Any, b: Any) -> Any:
        if self.dtype == "bool":
            return tirx.all(tirx.Not(a), b)
        if "float" not in self.dtype:
            return a < b
        return tirx.any(a < b, tirx.all(a == a, b != b))  # NaN differs from itself

    def sort(self) -> Any:
        """Return the positions in ascending order of their items by a stable merge sort."""
        order, other = (T.alloc_buffer((self.items,), "int64") for _ in range(2))
        with loops([self.items]) as (k,):
            T.buffer_store(order, k, [k])
        run = counter(1)
        with T.While(run[0] < long(self.items)):
            self._merge(order, other, run[0])
            with loops([self.items]) as (k,):
                T.buffer_store(order, other[k], [k])
            assign(run, run[0] * long(2))
        return order

    def _merge(self, order: Any, other: Any, run: Any) -> None:
        left, right = counter(), counter()
        with loops([tirx.floordiv(long(self.items) + long(2) * run - long(1), long(2) * run)]) as (pair,):
            start = T.Bind(pair * long(2) * run)
            middle = T.Bind(tirx.min(start + run, long(self.items)))
            end = T.Bind(tirx.min(start + long(2) * run, long(self.items)))
            assign(left, start)
            assign(right, middle)
            with loops([end - start]) as (k,):
                self._choose(order, left[0], right[0], middle, end)
                with T.If(self.sign[0] <= 0):
                    with T.Then():
                        T.buffer_store(other, order[left[0]], [start + k])
                        add_one(left)
                    with T.Else():
                        T.buffer_store(other, order[right[0]], [start + k])
                        add_one(right)

    def _choose(self, order: Any, left: Any, right: Any, middle: Any, end: Any) -> None:
        """Set `sign` to 1 if the next item comes from the right run."""
        with T.If(tirx.all(left < middle, right < end)):
            with T.Then():
                self.compare(order[left], order[right])
            with T.Else():
                assign(self.sign, tirx.Select(left < middle, long(0), long(1)))
