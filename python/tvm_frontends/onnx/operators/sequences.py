"""Converters of operators on lists of tensors, and of ReverseSequence."""

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


@converter("SequenceInsert")
def sequence_insert(node: Node) -> relax.Expr:
    """Convert SequenceInsert at a constant position; negative ones count from the end, where TVM is off by one."""
    sequence, value, index = node.input(0), node.input(1), node.constant(2)
    if not isinstance(sequence, relax.Tuple):
        raise node.unsupported("its sequence is known only when the model runs; export the model without it")
    if node.input(2) is not None and index is None:
        raise node.unsupported("its position is not a constant", MissingConstant())
    items = list(sequence.fields)
    position = len(items) if index is None else int(index)
    if not -len(items) <= position <= len(items):
        raise node.unsupported(f"its position {position} is outside of its sequence of {len(items)} tensors")
    items.insert(position, value)
    return relax.Tuple(items)


@converter("SequenceAt")
def sequence_at(node: Node) -> relax.Expr:
    """Convert SequenceAt at a constant position; TVM's converter knows no negative ones."""
    sequence, index = node.input(0), node.constant(1)
    if sequence is None or not isinstance(sequence.ty, relax.TupleType):
        raise node.unsupported("its sequence is known only when the model runs; export the model without it")
    if index is None:
        raise node.unsupported("its position is not a constant", MissingConstant())
    count, position = len(sequence.ty.fields), int(index.reshape(()))
    if not -count <= position < count:
        raise node.unsupported(f"its position {position} is outside of its sequence of {count} tensors")
    if isinstance(sequence, relax.Tuple):
        return sequence.fields[position % count]
    return relax.TupleGetItem(sequence, position % count)


@converter("SequenceLength")
def sequence_length(node: Node) -> relax.Expr:
    """Convert SequenceLength of a list of tensors to a constant."""
    sequence = node.input(0)
    if sequence is None or not isinstance(sequence.ty, relax.TupleType):
        raise node.unsupported("its sequence is known only when the model runs; export the model without it")
    return relax.const(len(sequence.ty.fields), "int64")
