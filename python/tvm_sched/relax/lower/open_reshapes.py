"""Lower reshapes with open sizes: match groups of dimensions with equal products, and compute indices within each group.

TVM computes the position of each element in the whole tensor, which it cannot simplify where sizes are symbols. Such a
kernel divides many times for each element, and is not fused with others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

from tvm import relax, te, tirx

from ..ir.sizes import AnySize, sizes_of
from .half_precision import Legalize


def legalizations() -> dict[str, Legalize]:
    """Return legalization functions for `LegalizeOps`; static reshapes are lowered as in TVM."""
    return {"relax.reshape": _reshape}


def _reshape(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    old, new = sizes_of(call.args[0]), sizes_of(call)
    if not old or not new or all(isinstance(size, int) for size in (*old, *new)):
        return call.op.get_attr("FLegalize")(builder, call)
    groups = list(_groups(old, new))

    def compute(x: te.Tensor) -> te.Tensor:
        def element(*at: tirx.Var) -> Any:
            place: list[Any] = []
            for before, after in groups:
                flat: Any = tirx.IntImm("int64", 0)
                for axis in after:
                    flat = flat * shape[axis] + at[axis]
                parts: list[Any] = []
                for axis in before[:0:-1]:
                    parts.insert(0, flat % x.shape[axis])
                    flat = flat // x.shape[axis]
                place += [flat, *parts][: len(before)]
            return x(*place)

        shape = call.ty.shape.values
        return te.compute(list(shape), element, name="T_reshape", tag="injective")

    return builder.call_te(compute, call.args[0], primfunc_name_hint="reshape")


def _groups(old: Sequence[AnySize], new: Sequence[AnySize]) -> Iterator[tuple[range, range]]:
    """Yield the fewest consecutive dimensions of both shapes that hold as many elements; at last, all that are left."""
    i = j = 0
    while i < len(old) or j < len(new):
        ends = sorted(product(range(i + 1, len(old) + 1), range(j + 1, len(new) + 1)), key=sum)
        fitting = (end for end in ends if prod(old[i : end[0]]) == prod(new[j : end[1]]))
        k, m = next(fitting, (len(old), len(new)))
        if k == len(old) or m == len(new):  # what follows are dimensions of extent 1
            k, m = len(old), len(new)
        yield range(i, k), range(j, m)
        i, j = k, m
