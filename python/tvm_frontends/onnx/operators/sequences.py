"""Converter of ReverseSequence, and refusals of operators on sequences, which are resolved before."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ...errors import MissingConstant
from .nodes import Node, converter


@converter("ReverseSequence")
def reverse_sequence(node: Node) -> relax.Expr:
    """Convert ReverseSequence: reverse the first elements of each sequence, as many as its length; others are unchanged."""
    x, lengths = node.inputs
    shape = node.shape(x, "its input")
    axes = int(node.attribute("batch_axis", 1)), int(node.attribute("time_axis", 0))
    if sorted(axes) != [0, 1]:
        raise node.unsupported(f"batch_axis and time_axis are {axes}; one is 0 and the other 1")
    batch, time = axes
    steps = [1, 1]
    steps[time] = shape[time]
    position = relax.const(np.arange(shape[time]).reshape(steps), "int64")
    count = [1, 1]
    count[batch] = shape[batch]
    length = node.emit(relax.op.reshape(node.emit(relax.op.astype(lengths, "int64")), count))
    last = node.emit(relax.op.subtract(length, relax.const(1, "int64")))
    inside = node.emit(relax.op.less(position, length))
    index = node.emit(relax.op.where(inside, node.emit(relax.op.subtract(last, position)), position))
    index = node.emit(relax.op.reshape(index, [*shape[:2], *[1] * (len(shape) - 2)]))
    return node.emit(relax.op.gather_elements(x, node.emit(relax.op.broadcast_to(index, shape)), time))


@converter("ConcatFromSequence", "SequenceAt", "SequenceErase", "SequenceInsert", "SequenceLength", "SplitToSequence")
def unresolved(node: Node) -> relax.Expr:
    """Refuse an operator that `resolve_sequences` left in the graph."""
    sequence, place = node.input(0), {"SequenceAt": 1, "SequenceErase": 1, "SequenceInsert": 2}.get(node.operator)
    if place is None or not isinstance(sequence, relax.Tuple):
        raise node.unsupported("its sequence is known only when the model runs; export the model without it")
    position, count = node.constant(place), len(sequence.fields)
    if position is None:
        raise node.unsupported("its position is not a constant", MissingConstant())
    raise node.unsupported(f"its position {int(position.reshape(-1)[0])} is outside of its sequence of {count} tensors")
