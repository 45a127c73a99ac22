"""The kernel of decision tree ensembles, which walks all trees of a row with tables of nodes.

The trees are data, not code, so the compile time does not grow with their number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from .bounded.writing import Kernel, long, loops, when

COMPARE = (
    lambda a, b: a <= b,
    lambda a, b: a < b,
    lambda a, b: a >= b,
    lambda a, b: a > b,
    tirx.EQ,
    tirx.NE,
)
"""Comparisons of a feature with a split, by ONNX's numbers for ``nodes_modes``."""
LEQ, LT, GTE, GT, EQ, NEQ, MEMBER = range(7)
AVERAGE, SUM, MIN, MAX = range(4)
"""ONNX's numbers for ``aggregate_function``."""
MOST_LEVELS = 10_000
"""Deepest tree; more levels are an error."""

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Forest:
    """Trees as tables. N inner nodes come first, L leaves behind them: leaf k has the number N + k."""

    roots: Ints
    """Numbers of the trees' first nodes, or of leaves."""
    features: Ints
    modes: Ints
    missing: Ints
    """Of each inner node: the feature to compare, the index in `COMPARE`, and whether the comparison holds for NaN."""
    splits: npt.NDArray[Any]
    links: Ints
    """Of each inner node: the next node if the comparison fails, and if it holds."""
    targets: Ints
    """The outputs to which each leaf contributes."""
    weights: npt.NDArray[Any]
    """The contributions of each leaf. A leaf with fewer entries than others has neutral ones: 0, or for MIN and MAX an
    infinity."""
    outputs: int
    aggregate: int = SUM
    """SUM, AVERAGE, MIN or MAX over the trees."""

    @property
    def inner(self) -> int:
        """Number of inner nodes."""
        return len(self.features)

    def levels(self) -> int:
        """Return the number of inner nodes on the longest path from a root to a leaf.

        Raises
        ------
        ValueError
            The nodes form a cycle, or a node leads to one that does not exist.
        """
        levels, reached = 0, np.unique(self.roots)
        while True:
            if reached.size and (reached.min() < 0 or reached.max() >= self.inner + len(self.targets)):
                raise ValueError("a node leads to one that does not exist")
            reached = reached[reached < self.inner]
            if not reached.size:
                return levels
            levels += 1
            if levels > min(MOST_LEVELS, self.inner):
                raise ValueError("its nodes form a cycle")
            reached = np.unique(self.links[reached])

    def tables(self) -> list[npt.NDArray[Any]]:
        """Return the kernel's arguments behind the features."""
        inner = [self.features, self.modes, self.missing, self.splits, self.links]
        if not self.inner:  # tables must not be empty
            inner = [np.zeros((1, *table.shape[1:]), table.dtype) for table in inner]
        return [self.roots, *inner, self.targets, self.weights]


def forest_kernel(forest: Forest, rows: int, columns: int) -> tirx.PrimFunc:
    """Build the kernel of a forest.

    It takes features ``(rows, columns)`` of the type of the splits and `Forest.tables`, and writes ``(rows, outputs)`` of
    that type. Rows are parallel; MIN and MAX give 0 if no leaf has a value.

    Raises
    ------
    ValueError
        See `Forest.levels`.
    """
    dtype, levels, kernel = str(forest.splits.dtype), forest.levels(), Kernel()
    start = {MIN: math.inf, MAX: -math.inf}.get(forest.aggregate, 0.0)
    with kernel.write("trees"):
        x = kernel.argument("x", (rows, columns), dtype)
        root, feature, mode, missing, split, link, target, weight = (
            kernel.argument(f"table{k}", table.shape, str(table.dtype)) for k, table in enumerate(forest.tables())
        )
        y = kernel.argument("y", (rows, forest.outputs), dtype)
        place = T.alloc_buffer((rows,), "int32")  # one for each row: rows are parallel
        with T.parallel(long(rows)) as row:
            with loops([forest.outputs]) as (k,):
                T.buffer_store(y, tirx.const(start, dtype), [row, k])
            with loops([len(forest.roots)]) as (tree,):
                T.buffer_store(place, root[tree], [row])
                with loops([levels]), when(place[row] < forest.inner):
                    at = T.Bind(long(place[row]))
                    value = T.Bind(x[row, long(feature[at])])
                    holds = _compare(forest, mode[at], value, split[at])
                    if forest.missing.any():
                        holds = tirx.any(holds, tirx.all(missing[at] != 0, tirx.isnan(value)))
                    T.buffer_store(place, tirx.Select(holds, link[at, long(1)], link[at, long(0)]), [row])
                with loops([forest.targets.shape[1]]) as (entry,):
                    leaf = T.Bind(long(place[row]) - long(forest.inner))
                    to = T.Bind(long(target[leaf, entry]))
                    T.buffer_store(y, _join(forest, y[row, to], weight[leaf, entry]), [row, to])
            if start or forest.aggregate == AVERAGE:
                with loops([forest.outputs]) as (k,):
                    T.buffer_store(y, _finish(forest, y[row, k]), [row, k])
    return kernel.function


def _compare(forest: Forest, mode: Any, value: Any, split: Any) -> Any:
    """Whether a comparison holds; if all nodes use the same one, the mode is not read."""
    kinds = sorted(set(forest.modes.tolist())) or [LEQ]
    holds = COMPARE[kinds[0]](value, split)
    for kind in kinds[1:]:
        holds = tirx.Select(mode == kind, COMPARE[kind](value, split), holds)
    return holds


def _join(forest: Forest, old: Any, new: Any) -> Any:
    if forest.aggregate in (MIN, MAX):
        return (tirx.min if forest.aggregate == MIN else tirx.max)(old, new)
    return old + new


def _finish(forest: Forest, value: Any) -> Any:
    dtype = str(forest.splits.dtype)
    if forest.aggregate == AVERAGE:
        return value / tirx.const(float(len(forest.roots)), dtype)
    return tirx.Select(tirx.isinf(value), tirx.const(0.0, dtype), value)
