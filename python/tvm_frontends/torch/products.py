"""Products of matrices and distances of rows in torch.export programs.

Corrections of TVM 0.27.0, ``relax/frontend/torch/base_fx_graph_translator.py``:

- ``_binary_op``: matrix products of half types return float32.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from .elementwise import constant
from .node_calls import Call, converter


@converter("_trilinear.default")
def trilinear(call: Call) -> relax.Expr:
    """The sum of products that bilinear layers are: each factor with its dimensions expanded, some of them summed."""
    factors = []
    for k in (1, 2, 3):
        factor = call.tensor(f"i{k}")
        for axis in sorted(call[f"expand{k}"]):
            factor = call.emit(relax.op.expand_dims(factor, axis))
        factors.append(factor)
    whole = call.emit(relax.op.multiply(call.emit(relax.op.multiply(*factors[:2])), factors[2]))
    return call.emit(relax.op.sum(whole, [int(axis) for axis in call["sumdim"]]))


@converter("matmul.default", "mm.default", "bmm.default")
def product(call: Call) -> relax.Expr:
    """Matrix product in the type of the operands; TVM's converter returns float32."""
    return call.emit(relax.op.matmul(*call.importer.retrieve_args(call.node)[:2]))


@converter("addmm.default", "baddbmm.default", "addbmm.default")
def add_product(call: Call) -> relax.Expr:
    """``beta * self + alpha * a @ b``, of addbmm the sum over its batch; with beta 0, self is not read."""
    self, a, b = call.importer.retrieve_args(call.node)[:3]
    result = call.emit(relax.op.matmul(a, b))
    if call.node.target.__name__ == "addbmm.default":
        result = call.emit(relax.op.sum(result, [0]))
    if call["alpha"] != 1:
        result = call.emit(relax.op.multiply(result, call.cast(call["alpha"], call.dtype)))
    if call["beta"] == 0:
        return result
    if call["beta"] != 1:
        self = call.emit(relax.op.multiply(self, call.cast(call["beta"], call.dtype)))
    return call.emit(relax.op.add(result, self))


@converter("_cdist_forward.default")
def distances(call: Call) -> relax.Expr:
    """Between all pairs of rows of two matrices, in any norm: by differences, which lose nothing where rows are near."""
    order = float(call["p"])
    x = call.emit(relax.op.expand_dims(call.tensor("x1"), -2))
    y = call.emit(relax.op.expand_dims(call.tensor("x2"), -3))
    apart = call.emit(relax.op.abs(call.emit(relax.op.subtract(x, y))))
    if order == float("inf"):
        return call.emit(relax.op.max(apart, [-1]))
    if order == 0:
        return call.emit(
            relax.op.sum(call.cast(call.emit(relax.op.not_equal(apart, constant(0, apart))), call.dtype), [-1])
        )
    if order == 1:
        return call.emit(relax.op.sum(apart, [-1]))
    if order == 2:
        return call.emit(relax.op.sqrt(call.emit(relax.op.sum(call.emit(relax.op.multiply(apart, apart)), [-1]))))
    total = call.emit(relax.op.sum(call.emit(relax.op.power(apart, constant(order, apart))), [-1]))
    return call.emit(relax.op.power(total, constant(1 / order, total)))


@converter("grouped_mm_fallback.default", "_grouped_mm.default")
def grouped_product(call: Call) -> relax.Expr:
    """Rows that lie by group, each times the matrix of its group: how transformers computes a mixture of experts.

    Where there are more rows than groups, all rows are multiplied with all matrices; else each has a copy of its matrix.
    """
    name = "input" if "input" in call.arguments else "self"
    x = call.tensor(name)
    weight = call.tensor("weight" if "weight" in call.arguments else "mat2")
    if len(x.ty.shape) != 2 or len(weight.ty.shape) != 3 or call.arguments.get("bias") is not None:
        raise call.unsupported("only rows [n, k] by matrices [groups, k, m] without a bias are supported")
    rows, groups = int(x.ty.shape[0]), int(weight.ty.shape[0])
    places = call.emit(relax.op.expand_dims(relax.const(np.arange(rows), "int64"), -1))
    ended = call.emit(relax.op.less_equal(call.tensor("offs", "int64"), places))
    group = call.emit(relax.op.sum(call.cast(ended, "int64"), [1]))
    last = call.emit(relax.op.minimum(group, relax.const(groups - 1, "int64")))
    if rows <= groups:
        chosen = call.emit(relax.op.take(weight, last, 0))
        found = call.emit(relax.op.matmul(call.emit(relax.op.expand_dims(x, 1)), chosen))
    else:
        every = call.emit(relax.op.matmul(call.emit(relax.op.expand_dims(x, 0)), weight))
        every = call.emit(relax.op.permute_dims(every, [1, 0, 2]))
        at = call.emit(relax.op.broadcast_to(relax.op.reshape(last, (rows, 1, 1)), (rows, 1, int(weight.ty.shape[2]))))
        found = call.emit(relax.op.gather_elements(every, at, 1))
    found = call.emit(relax.op.squeeze(found, [1]))
    inside = call.emit(relax.op.less(call.emit(relax.op.expand_dims(group, -1)), relax.const(groups, "int64")))
    return call.emit(relax.op.where(inside, found, constant(0, found)))
