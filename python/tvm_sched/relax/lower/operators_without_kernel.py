"""Replace operators without a kernel by operators with one, before legalisation."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax, s_tir

from tvm_frontends.relax_modules import with_public_main

from ..ir.tensor_types import dtype_of
from ..ir.virtual_devices import resolve_vdevices
from .empty_tensors import rewrite_empty

_ALIASES = {"relax.builtin.stop_lift_params", "relax.memory.ensure_zero_offset"}
_WIDEST = 32
"""Most inputs of one kernel that concatenates, and most outputs of one that splits."""
_WITHOUT_RESULT = {"relax.print", "relax.assert_op"}
_WITH_NAN = {"float16", "float32", "float64"}
_SCANS = {"relax.cumsum", "relax.cumprod"}
_COMPARISONS = {f"relax.{name}" for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")}
"""TVM 0.27 generates wrong LLVM code for these on booleans."""


_NUMBERS = (tvm.tirx.IntImm, tvm.tirx.FloatImm)


@relax.expr_functor.mutator
class _Simplifier(relax.PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        call = rewrite_empty(call)
        if not isinstance(call, relax.Call):
            return self._parts(call) if isinstance(call, relax.Tuple) else call
        operation = call.op.name if isinstance(call.op, tvm.ir.Op) else ""
        if operation in _ALIASES:
            return call.args[0]
        if operation == "relax.concat" and isinstance(call.args[0], relax.Tuple):
            return self._concatenation(list(call.args[0].fields), call.attrs.axis)
        if operation == "relax.split" and (sizes := _sizes_of_parts(self.builder_.normalize(call))):
            return relax.Tuple(self._split(call.args[0], sizes, int(call.attrs.axis)))
        if operation in _WITHOUT_RESULT:
            return relax.Tuple([])
        if operation == "relax.ewise_fma":
            product = self.builder_.emit(relax.op.multiply(call.args[0], call.args[1]))
            return relax.op.add(product, call.args[2])
        if operation == "relax.call_tir_with_grad":
            return relax.call_tir(call.args[0], call.args[1], call.ty_args[0])
        if operation in _SCANS and _is_bool(call.args[0]) and call.attrs.dtype in (None, "", "void", "bool"):
            return self._sum_of_booleans(call, operation)
        if operation == "relax.call_tir" and any(isinstance(part, _NUMBERS) for part in _operands(call)):
            return self._with_numbers_inside(call)
        if operation == "relax.take" and call.attrs.mode == "fast":
            return self._bounded_take(call)
        if operation == "relax.divide" and (infinity := _infinity_for_zero(call.args[1])) is not None:
            return relax.op.multiply(call.args[0], infinity)
        if operation == "relax.power" and (factors := _whole_exponent(call.args[1])):
            return self._product(call.args[0], factors)
        if operation in _COMPARISONS and all(_is_bool(argument) for argument in call.args):
            casts = [self.builder_.emit(relax.op.astype(argument, "int8")) for argument in call.args]
            return relax.Call(call.op, casts)
        return call

    def _concatenation(self, parts: list[relax.Expr], axis: object) -> relax.Expr:
        """Concatenate many tensors in groups: TVM's kernel compares each position with the begin of every part, nested."""
        while len(parts) > _WIDEST:
            groups = [parts[first : first + _WIDEST] for first in range(0, len(parts), _WIDEST)]
            parts = [
                self.builder_.emit(relax.op.concat(group, axis)) if len(group) > 1 else group[0] for group in groups
            ]
        return relax.op.concat(parts, axis)

    def _split(self, value: relax.Expr, sizes: list[int], axis: int) -> list[relax.Expr]:
        """Split a tensor, into groups first if parts are many: LLVM's time grows faster than the number of results."""
        if len(sizes) > _WIDEST:
            groups = [sizes[first : first + _WIDEST] for first in range(0, len(sizes), _WIDEST)]
            wide = self._split(value, [sum(group) for group in groups], axis)
            return [part for whole, group in zip(wide, groups, strict=True) for part in self._split(whole, group, axis)]
        if len(sizes) == 1:
            return [value]
        parts = self.builder_.emit(relax.op.split(value, np.cumsum(sizes)[:-1].tolist(), axis))
        return [self.builder_.emit(relax.TupleGetItem(parts, k)) for k in range(len(sizes))]

    def _parts(self, value: relax.Expr) -> relax.Expr:
        """Bind the calls of a tuple to variables."""
        return relax.Tuple([self.builder_.emit(part) for part in value.fields])

    def _product(self, value: relax.Expr, factors: int) -> relax.Expr:
        """Compute a power by multiplications: the C library's ``pow`` takes about 10 ns per element."""
        result = value
        for _ in range(factors - 1):
            result = self.builder_.emit(relax.op.multiply(result, value))
        return result

    def _with_numbers_inside(self, call: relax.Call) -> relax.Expr:
        """Call a kernel that has the numbers among its arguments inside: executors pass tensors only."""
        variable, operands = call.args[0], _operands(call)
        kernel = self.builder_.get()[variable]
        pairs = zip(kernel.params, operands, strict=False)
        inside = s_tir.renew_defs(kernel.specialize({param: v for param, v in pairs if isinstance(v, _NUMBERS)}))
        inside = inside.without_attr("global_symbol") if "global_symbol" in inside.attrs else inside
        tensors = relax.Tuple([part for part in operands if not isinstance(part, _NUMBERS)])
        return relax.call_tir(self.builder_.add_func(inside, variable.name_hint), tensors, call.ty_args[0])

    def _bounded_take(self, call: relax.Call) -> relax.Expr:
        """Bound a take, so that an invalid index gives NaN, or for integers the nearest row."""
        mode = "nan" if dtype_of(call.args[0]) in _WITH_NAN else "clip"
        return relax.op.take(*call.args, call.attrs.axis, mode)

    def _sum_of_booleans(self, call: relax.Call, operation: str) -> relax.Expr:
        """Compute running sums and products of booleans in int64, as torch and numpy do; TVM's frontend keeps booleans."""
        whole = self.builder_.emit(relax.op.astype(call.args[0], "int64"))
        scan = relax.op.cumsum if operation == "relax.cumsum" else relax.op.cumprod
        return scan(whole, call.attrs.axis, "int64", call.attrs.exclusive)


def _operands(call: relax.Call) -> list[relax.Expr]:
    return list(call.args[1].fields) if isinstance(call.args[1], relax.Tuple) else []


def _sizes_of_parts(call: relax.Call) -> list[int]:
    """Return the sizes of the parts of a split if these are static and too many for one kernel, else nothing."""
    parts = call.ty.fields if isinstance(call.ty, tvm.ir.TupleType) else []
    if len(parts) <= _WIDEST or not all(isinstance(part.shape, relax.ShapeExpr) for part in parts):
        return []
    sizes = [part.shape.values[int(call.attrs.axis)] for part in parts]
    return [int(size) for size in sizes] if all(isinstance(size, tvm.tirx.IntImm) for size in sizes) else []


def _whole_exponent(expr: relax.Expr) -> int:
    """Return the exponent if it is the scalar constant 2, 3 or 4, else 0."""
    constant = isinstance(expr, tvm.ir.GenericConst) and isinstance(expr.ty, relax.TensorType)
    if not constant or expr.ty.ndim != 0:
        return 0
    value = float(expr.value.numpy())
    return int(value) if value in (2, 3, 4) else 0


def _infinity_for_zero(divisor: relax.Expr) -> relax.Expr | None:
    """Return the infinite factor equivalent to a constant divisor 0, on which TVM's simplifier fails, else None."""
    if not isinstance(divisor, tvm.ir.GenericConst) or dtype_of(divisor) not in _WITH_NAN:
        return None
    value = divisor.value.numpy()
    return relax.const(np.copysign(np.inf, value), value.dtype.name) if value.size == 1 and not value.any() else None


def _is_bool(expr: relax.Expr) -> bool:
    return dtype_of(expr) == "bool"


def simplify(mod: tvm.IRModule) -> tvm.IRModule:
    """Inline functions, remove checks and prints, resolve hints of devices, and decompose operators for inference.

    Prints and assertions would have to run in program order, but a schedule runs operators in its own order.
    """
    transform = relax.transform
    mod = resolve_vdevices(transform.InlinePrivateFunctions()(with_public_main(mod)))
    simplifier = _Simplifier(mod)
    main = simplifier.visit_expr(mod["main"])
    result = simplifier.builder_.get().with_attrs(mod.attrs)
    result.update_func(mod.get_global_var("main"), main)
    return tvm.transform.Sequential(
        [
            transform.DecomposeOpsForInference(),
            transform.CanonicalizeBindings(),
            transform.ConvertToDataflow(1),
            transform.DeadCodeElimination(),
        ]
    )(result)
