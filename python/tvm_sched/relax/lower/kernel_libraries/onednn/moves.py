"""Remove pairs of transpositions that undo each other, leaving a reshape."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ....ir.tensor_types import static_shape
from ..rewrite import Rewriter, axis_order, operation

MOST_ELEMENTS = 1 << 22
"""Of values that are looked at: the place of each element is kept in mind."""


class WithoutTranspositions(Rewriter):
    """Sees that transpositions, with reshapes between them, leave all elements where they were.

    ``permute_dims`` to channels first, a reshape that joins height and width, and ``permute_dims`` back are how vision
    transformers come from images to tokens.
    """

    wanted = ("permute_dims",)

    def visit(self, variable: Any, value: Any) -> Any:
        """Rewrite one binding."""
        shape = static_shape(value)
        if operation(value) in ("permute_dims", "reshape") and shape is not None:
            source = self._unmoved(value)
            if source is not None:
                return self.emit(relax.op.reshape(self.value(source), shape))
        return super().visit(variable, value)

    def _unmoved(self, value: Any) -> Any:
        """The furthest value before moves whose elements all lie as in this one; None where there is none."""
        moves, found = [value], None
        source = value.args[0]
        while (before := self.defined(source)) is not None and operation(before) in ("permute_dims", "reshape"):
            moves.append(before)
            source = before.args[0]
            if operation(before) == "permute_dims" and _keep_order(static_shape(source), moves):
                found = source
        return found


def _keep_order(shape: tuple[int, ...] | None, moves: list[Any]) -> bool:
    """Whether moves, the last one first, leave the elements of a tensor of this shape in their order."""
    if shape is None or (count := int(np.prod(shape))) > MOST_ELEMENTS:
        return False
    places = np.arange(count, dtype=np.int32)
    order = places.reshape(shape)
    for move in reversed(moves):
        order = (
            order.transpose(axis_order(move))
            if operation(move) == "permute_dims"
            else order.reshape(static_shape(move))
        )
    return bool((order.reshape(-1) == places).all())
