"""Which sizes of an operator's operands must agree, where TVM infers its result without proving that they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tvm import relax, tirx

from tvm_sched_runtime.errors import InputError

_ELEMENTWISE = """
add subtract multiply divide floor_divide power mod floor_mod maximum minimum atan2 log_add_exp equal not_equal
less less_equal greater greater_equal logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor
left_shift right_shift where
"""
_OTHERS = """
stack take gather_nd index_tensor outer meshgrid full_like nn.prelu nn.layer_norm nn.rms_norm nn.batch_norm
call_tir call_tir_inplace
"""
PROVED = frozenset(f"relax.{name}" for name in (_ELEMENTWISE + _OTHERS).split())
"""Operators whose operands agree if TVM infers a result's shape, or whose kernels check the sizes of their arguments."""

Equal = Callable[[str, Any, Any], None]


def operand_sizes(where: str, call: relax.Call, equal: Equal) -> None:
    """State which sizes of operands must be equal.

    Parameters
    ----------
    where : str
        The call in messages.
    call : relax.Call
        A call of an operator that is not in `PROVED`.
    equal : function
        Takes what the sizes are of, and both.

    Raises
    ------
    InputError
        An operand has an open dimension, and which sizes must agree is not known here.
    """
    name = call.op.name.removeprefix("relax.")
    shapes = [list(ty.shape.values) for argument in call.args for ty in tensors(argument.ty)]
    if name.startswith("nn.conv"):
        _convolution(where, call, shapes, equal)
    elif name == "squeeze":
        for axis in call.attrs.axis or ():
            if isinstance(shapes[0][int(axis)], tirx.IntImm):
                continue  # known when the model was imported: dropped if it is 1
            equal(f"{where}: dimension {int(axis)}, which is dropped,", shapes[0][int(axis)], tirx.IntImm("int64", 1))
    elif name in ("nn.group_norm", "nn.instance_norm"):
        channels = shapes[0][int(call.attrs.channel_axis)]
        equal(f"{where}: number of channels", channels, shapes[1][0])
    elif name in ("nn.attention", "nn.attention_bias"):
        _attention(where, shapes, equal)
    elif name == "scatter_elements":
        for axis, (index, update) in enumerate(zip(*shapes[1:], strict=True)):
            equal(f"{where}: dimension {axis} of indices and updates", index, update)
            if axis != int(call.attrs.axis) % len(shapes[0]):
                equal(f"{where}: dimension {axis} of data and indices", shapes[0][axis], index)
    elif name == "gather_elements":
        for axis, (data, index) in enumerate(zip(*shapes, strict=True)):
            if axis != int(call.attrs.axis) % len(shapes[0]):
                equal(f"{where}: dimension {axis} of data and indices", data, index)
    elif name == "einsum":
        _einsum(where, str(call.attrs.subscripts), shapes, equal)
    elif len(shapes) > 1 and any(not isinstance(size, tirx.IntImm) for shape in shapes for size in shape):
        raise InputError(f"{where}: it is not known which sizes of its operands must agree")


def tensors(ty: Any) -> Iterator[relax.TensorType]:
    """Return the tensors of a value's type."""
    if isinstance(ty, relax.TupleType):
        for part in ty.fields:
            yield from tensors(part)
    elif isinstance(ty, relax.TensorType):
        yield ty


def _convolution(where: str, call: relax.Call, shapes: list[list[Any]], equal: Equal) -> None:
    layout, weights = str(call.attrs.data_layout), str(call.attrs.kernel_layout)
    if len(layout) != len(shapes[0]) or len(weights) != len(shapes[1]):  # channels in blocks
        raise InputError(f"{where}: its channels lie in blocks ({layout}), which open dimensions do not allow")
    channels = shapes[1][weights.index("I")]
    if "transpose" not in call.op.name:
        channels = channels * tirx.IntImm("int64", int(call.attrs.groups))
    equal(f"{where}: number of channels", shapes[0][layout.index("C")], channels)


def _attention(where: str, shapes: list[list[Any]], equal: Equal) -> None:
    """Operands are (batch, tokens, heads, width)."""
    query, key, value, *bias = shapes
    for what, left, right in (
        ("batch", query[0], key[0]),
        ("batch", query[0], value[0]),
        ("tokens of keys and values", key[1], value[1]),
        ("heads of keys and values", key[2], value[2]),
        ("width of queries and keys", query[3], key[3]),
    ):
        equal(f"{where}: {what}", left, right)
    for added in bias:
        scores = [query[0], query[2], query[1], key[1]]
        for axis, (size, wanted) in enumerate(zip(reversed(added), reversed(scores), strict=False)):
            if not (isinstance(size, tirx.IntImm) and int(size) == 1):
                equal(f"{where}: dimension {len(added) - 1 - axis} of the bias", size, wanted)


def _einsum(where: str, subscripts: str, shapes: list[list[Any]], equal: Equal) -> None:
    operands = [term.strip() for term in subscripts.split("->")[0].split(",")]
    if "." in subscripts or list(map(len, operands)) != list(map(len, shapes)):
        raise InputError(f"{where}: {subscripts!r} is not taken with open dimensions")
    known: dict[str, Any] = {}
    for term, shape in zip(operands, shapes, strict=True):
        for label, size in zip(term, shape, strict=True):
            equal(f"{where}: size of {label!r}", known.setdefault(label, size), size)


__all__ = ["PROVED", "operand_sizes", "tensors"]
