"""Replace transpositions that cancel each other by a reshape."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import relax

from ....ir.sizes import sizes_of
from ..rewrite import Rewriter, axis_order, operation

MOST_ELEMENTS = 1 << 22
"""Largest value that is traced: the trace holds the position of each element."""


class WithoutTranspositions(Rewriter):
    """Finds transpositions that, with reshapes between them, keep the order of the elements.

    Vision transformers convert images to tokens by ``permute_dims`` to channels first, a reshape that joins height and
    width, and ``permute_dims`` back.
    """

    operators = ("permute_dims",)

    def visit(self, variable: Any, value: Any) -> Any:
        """Rewrite one binding."""
        shape = sizes_of(value)
        if operation(value) in ("permute_dims", "reshape") and shape is not None:
            source = self._unmoved(value)
            if source is not None:
                return self.emit(relax.op.reshape(self.value(source), shape))
        return super().visit(variable, value)

    def _unmoved(self, value: Any) -> Any:
        """Return the earliest value before transpositions and reshapes with the same order of elements, or None."""
        moves, unmoved = [value], None
        source = value.args[0]
        while (before := self.defined(source)) is not None and operation(before) in ("permute_dims", "reshape"):
            moves.append(before)
            source = before.args[0]
            if operation(before) == "permute_dims" and _keep_order(sizes_of(source), moves):
                unmoved = source
        return unmoved


def _keep_order(shape: tuple[int, ...] | None, moves: list[Any]) -> bool:
    """Whether transpositions and reshapes, in reverse order, keep the order of a tensor's elements."""
    if shape is None or (count := prod(shape)) > MOST_ELEMENTS:
        return False
    places = np.arange(count, dtype=np.int32)
    order = places.reshape(shape)
    for move in reversed(moves):
        transposes = operation(move) == "permute_dims"
        order = order.transpose(axis_order(move)) if transposes else order.reshape(sizes_of(move))
    return bool((order.reshape(-1) == places).all())
