"""Converters of torch's matrix products, and of distances between rows.

Corrections of TVM 0.27.0, ``relax/frontend/torch/base_fx_graph_translator.py``:

- ``_binary_op``: matrix products of half types return float32.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..vector_norms import vector_norm
from .elementwise import constant
from .node_calls import Call, converter


@converter("_trilinear.default")
def trilinear(call: Call) -> relax.Expr:
    """Convert ``_trilinear``, the core of Bilinear layers: expand the factors, multiply, and sum over ``sumdim``."""
    factors = []
    for k in (1, 2, 3):
        factor = call.tensor(f"i{k}")
        for axis in sorted(call[f"expand{k}"]):
            factor = call.emit(relax.op.expand_dims(factor, axis))
        factors.append(factor)
    terms = call.emit(relax.op.multiply(call.emit(relax.op.multiply(*factors[:2])), factors[2]))
    return call.emit(relax.op.sum(terms, [int(axis) for axis in call["sumdim"]]))


@converter("matmul.default", "mm.default", "bmm.default")
def product(call: Call) -> relax.Expr:
    """Convert ``matmul``, ``mm`` and ``bmm`` in the operands' type; TVM's converter returns float32."""
    return call.emit(relax.op.matmul(*call.importer.retrieve_args(call.node)[:2]))


@converter("addmm.default", "baddbmm.default", "addbmm.default")
def add_product(call: Call) -> relax.Expr:
    """Convert ``addmm``, ``baddbmm`` and ``addbmm``: ``beta * self + alpha * a @ b``; addbmm also sums over the batch.

    If beta is 0, ``self`` is not read, so its NaNs do not matter.
    """
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
    """Convert ``_cdist_forward`` in any norm; differences are computed directly, which keeps the digits of close rows."""
    x = call.emit(relax.op.expand_dims(call.tensor("x1"), -2))
    y = call.emit(relax.op.expand_dims(call.tensor("x2"), -3))
    return vector_norm(call.emit, call.emit(relax.op.subtract(x, y)), float(call["p"]), [-1], keep=False)


@converter("_pdist_forward.default")
def distances_of_pairs(call: Call) -> relax.Expr:
    """Convert ``_pdist_forward``: distances between the rows of each pair, in any norm, computed as in `distances`."""
    x = call.tensor("self")
    sides = (relax.const(side, "int64") for side in np.triu_indices(int(x.ty.shape[0]), 1))
    first, second = (call.emit(relax.op.take(x, side, 0)) for side in sides)
    return vector_norm(call.emit, call.emit(relax.op.subtract(first, second)), float(call["p"]), [-1], keep=False)


@converter("grouped_mm_fallback.default", "_grouped_mm.default")
def grouped_product(call: Call) -> relax.Expr:
    """Convert ``grouped_mm``: sorted rows, each multiplied by the matrix of its group.

    transformers computes mixtures of experts by it. If there are more rows than groups, all rows are multiplied with all
    matrices; otherwise each row has a copy of its matrix. Biases and other ranks than rows [n, k] by matrices [groups, k,
    m] are refused.
    """
    name = "input" if "input" in call.arguments else "self"
    x = call.tensor(name)
    weight = call.tensor("weight" if "weight" in call.arguments else "mat2")
    if len(x.ty.shape) != 2 or len(weight.ty.shape) != 3 or call.arguments.get("bias") is not None:
        raise call.unsupported("its operands are not [n, k] and [groups, k, m] without a bias, the only supported form")
    rows, groups = int(x.ty.shape[0]), int(weight.ty.shape[0])
    row_numbers = call.emit(relax.op.expand_dims(relax.const(np.arange(rows), "int64"), -1))
    past_ends = call.emit(relax.op.less_equal(call.tensor("offs", "int64"), row_numbers))
    group = call.emit(relax.op.sum(call.cast(past_ends, "int64"), [1]))
    bounded_group = call.emit(relax.op.minimum(group, relax.const(groups - 1, "int64")))
    if rows <= groups:
        matrices = call.emit(relax.op.take(weight, bounded_group, 0))
        products = call.emit(relax.op.matmul(call.emit(relax.op.expand_dims(x, 1)), matrices))
    else:
        all_products = call.emit(relax.op.matmul(call.emit(relax.op.expand_dims(x, 0)), weight))
        all_products = call.emit(relax.op.permute_dims(all_products, [1, 0, 2]))
        indices = call.emit(
            relax.op.broadcast_to(relax.op.reshape(bounded_group, (rows, 1, 1)), (rows, 1, int(weight.ty.shape[2])))
        )
        products = call.emit(relax.op.gather_elements(all_products, indices, 1))
    products = call.emit(relax.op.squeeze(products, [1]))
    inside = call.emit(relax.op.less(call.emit(relax.op.expand_dims(group, -1)), relax.const(groups, "int64")))
    return call.emit(relax.op.where(inside, products, constant(0, products)))
