"""SplitTail: move operators whose sizes depend on data out of ``main``; TVM's virtual machine runs them."""

from __future__ import annotations

import functools
import operator
from typing import Any

import tvm
from tvm import relax

from tvm_sched_runtime.errors import UnsupportedModelError

from ..ir.attributes import TAIL
from ..ir.call_names import describe
from ..ir.runtime_calls import copy_call
from ..ir.tensor_types import static_shape
from .dynamic_tail import ENTRY

UNBOUNDED = ("relax.nonzero", "relax.unique")
"""Operators that TVM implements only by Python functions."""
NEED_ELEMENTS = frozenset(
    f"relax.{name}"
    for name in (
        *("sum", "prod", "mean", "max", "min", "argmax", "argmin", "variance", "std", "median", "topk", "split"),
        *("all", "any"),
    )
)
"""Operators whose kernels do not write their result, or read out of bounds, if an axis has too few elements."""


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.SplitTail")
class SplitTail:
    """Move operators whose shapes depend on data, and the operators that need their results, out of ``main``.

    ``main`` then returns a tuple of the static tensors that these operators and the model's result need. The module
    attribute `TAIL` holds the function `ENTRY`, which computes the model's result from them, and its kernels.
    `EmitExecutor` joins both again. The module is unchanged if all shapes are static, or if shapes of ``main``'s arguments
    are not, since these may be bound later.

    Raises
    ------
    UnsupportedModelError
        There is no kernel for an operator.

    Examples
    --------
    >>> import tvm_frontends
    >>> from tvm_sched.relax.passes import SplitTail
    >>> imported = tvm_frontends.load_model("model.onnx", {"x": (2, 3)})
    >>> len(SplitTail()(imported.mod)["main"].params)
    2
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        return split_tail(mod)


def split_tail(mod: tvm.IRModule) -> tvm.IRModule:
    """Function form of the pass `SplitTail`."""
    function = mod["main"]
    if not isinstance(function.body, relax.SeqExpr) or not all(_is_static(v.ty) for v in function.params):
        return mod
    if all(_is_static(binding.var.ty) for block in function.body.blocks for binding in block.bindings):
        return mod
    mod = relax.transform.ToNonDataflow()(mod)
    function = mod["main"]
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    known, moved = set(function.params), set()
    for binding in bindings:  # a variable that is neither an argument nor bound is a symbolic size
        if not _is_static(binding.var.ty) or any(v in moved or v not in known for v in _used(binding.value)):
            moved.add(binding.var)
        known.add(binding.var)
    early = [binding for binding in bindings if binding.var not in moved]
    if not _is_of_tensors(function.body.body.ty):
        raise UnsupportedModelError(
            "the model returns a size that is known only when it runs, as a number and not as a tensor; return the tensor "
            "whose size it is"
        )
    late, used = _with_aliases(bindings, moved, function.body.body)
    needed = [variable for variable in used if variable in known]
    tail = _tail(mod, needed, late, function.body.body)
    body = relax.SeqExpr([relax.BindingBlock(early)], relax.Tuple(needed))
    types = relax.TupleType([variable.ty for variable in needed])
    main = relax.Function(function.params, body, types, function.is_pure, function.attrs)
    changed = mod.clone()
    changed["main"] = relax.BlockBuilder(mod).normalize(main)
    return relax.transform.ConvertToDataflow(1)(changed).with_attr(TAIL, tail)


def _with_aliases(
    bindings: list[relax.Binding], moved: set[relax.Var], result: relax.Expr
) -> tuple[list[relax.Binding], list[relax.Var]]:
    """Return the bindings of the tail, including copies of the shapes and constants that it needs, and its arguments."""
    constant: set[relax.Var] = set()
    for binding in bindings:
        tensors = isinstance(binding.var.ty, (relax.TensorType, relax.TupleType))
        if not tensors or all(variable in constant for variable in _used(binding.value)):
            constant.add(binding.var)
    late: list[relax.Binding] = []
    needed = dict.fromkeys(_used(result))
    for binding in reversed(bindings):
        if binding.var in moved or (binding.var in needed and binding.var in constant):
            late.insert(0, binding)
            needed.pop(binding.var, None)
            needed.update(dict.fromkeys(_used(binding.value)))
    return late, list(needed)


def _tail(
    mod: tvm.IRModule, arguments: list[relax.Var], bindings: list[relax.Binding], result: relax.Expr
) -> tvm.IRModule:
    """Return the module of the tail's function and the kernels that it calls."""
    params = [relax.Var(variable.name, variable.ty) for variable in arguments]
    renamed = dict(zip(arguments, params, strict=True))
    copies, result = own_results(bindings, result)
    body = Renamer(renamed).visit_expr(relax.SeqExpr([relax.BindingBlock([*bindings, *copies])], result))
    function = relax.Function(params, body, relax.analysis.erase_to_well_defined(result.ty), is_pure=True)
    kernels = tvm.IRModule({v: f for v, f in mod.functions_items() if isinstance(f, tvm.tirx.PrimFunc)})
    builder = relax.BlockBuilder(kernels)
    builder.add_func(function.with_attr("global_symbol", ENTRY), ENTRY)
    return relax.transform.DeadCodeElimination([ENTRY])(builder.finalize())


def own_results(
    bindings: list[relax.Binding], result: relax.Expr, taken: set[Any] | None = None
) -> tuple[list[relax.Binding], relax.Expr]:
    """Return copies of the results without memory of their own, constants and repeated tensors, and the new result.

    ``taken``: arguments whose memory belongs to others.
    """
    taken = set(taken or ())
    values = {binding.var: binding.value for binding in bindings}
    copies: list[relax.Binding] = []

    def origin(expr: relax.Expr) -> Any:
        """Return the tuple, constant or variable that an expression is; of an element of a call's result, its place."""
        value = values.get(expr) if isinstance(expr, relax.Var) else expr
        if isinstance(value, relax.TupleGetItem):
            whole = origin(value.tuple_value)
            return origin(whole.fields[value.index]) if isinstance(whole, relax.Tuple) else (whole, value.index)
        if isinstance(value, (relax.Var, relax.Tuple, tvm.ir.GenericConst)):
            return value if value is expr else origin(value)
        return expr

    def visit(expr: relax.Expr) -> relax.Expr:
        found = origin(expr)
        if isinstance(found, relax.Tuple):
            return relax.Tuple([visit(part) for part in found.fields])
        if not isinstance(found, tvm.ir.GenericConst) and found not in taken:
            taken.add(found)
            return expr
        copy = relax.Var("copy", expr.ty)
        copies.append(relax.VarBinding(copy, copy_call(expr)))
        return copy

    return copies, visit(result)


@relax.expr_functor.mutator
class Renamer(relax.PyExprMutator):
    """Replaces variables, global ones too."""

    def __init__(self, variables: dict[Any, Any]) -> None:
        super().__init__()
        self.variables = variables

    def visit_var_(self, op: relax.Var) -> relax.Expr:
        """Replace a variable."""
        return self.variables.get(op, super().visit_var_(op))

    def visit_global_var_(self, op: tvm.ir.GlobalVar) -> relax.Expr:
        """Replace a variable."""
        return self.variables.get(op, op)

    def visit_dataflow_var_(self, op: relax.DataflowVar) -> relax.Expr:
        """Replace a variable."""
        return self.variables.get(op, super().visit_dataflow_var_(op))


def _used(expr: relax.Expr) -> list[relax.Var]:
    return list(relax.analysis.free_vars(expr))


def _is_of_tensors(ty: Any) -> bool:
    return all(map(_is_of_tensors, ty.fields)) if isinstance(ty, relax.TupleType) else isinstance(ty, relax.TensorType)


def _is_static(ty: Any) -> bool:
    """Whether a type has static sizes only."""
    if isinstance(ty, relax.TupleType):
        return all(_is_static(part) for part in ty.fields)
    if isinstance(ty, relax.TensorType):
        return static_shape(ty) is not None
    if isinstance(ty, relax.ShapeType):
        return ty.values is not None and all(isinstance(d, tvm.tirx.IntImm) for d in ty.values)
    return True


def check_tail(tail: tvm.IRModule) -> None:
    """Refuse operators that TVM's virtual machine cannot run for all sizes.

    Raises
    ------
    UnsupportedModelError
    """
    for block in tail[ENTRY].body.blocks:
        for binding in block.bindings:
            _check(binding)


def _check(binding: relax.Binding) -> None:
    value = binding.value
    if isinstance(value, relax.If):
        raise UnsupportedModelError(
            f"binding {binding.var.name!r}: an if, whose branch is known only when the model runs; a schedule needs to "
            "know all operators: compute both branches and select with where"
        )
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return
    if value.op.name in UNBOUNDED:
        raise UnsupportedModelError(
            f"binding {binding.var.name!r}: {describe(value)} cannot be scheduled: the shape of its result depends on data, "
            "and TVM has no kernel for it; export the model to ONNX, whose operators of this kind are supported"
        )
    inner = value.op.name == "relax.matmul" and not _has_known_inner_size(value)
    if inner or (value.op.name in NEED_ELEMENTS and not _has_known_size(value)):
        raise UnsupportedModelError(
            f"binding {binding.var.name!r}: {describe(value)} runs over an axis whose size is known only when the model "
            "runs, and its kernel is right only for known sizes: cut the model before it"
        )
    ty = binding.var.ty
    if _may_not_fit(value, ty) or (isinstance(ty, relax.TensorType) and not isinstance(ty.shape, relax.ShapeExpr)):
        raise UnsupportedModelError(
            f"binding {binding.var.name!r}: {describe(value)} is right only where a size that is known when the model runs "
            "happens to equal another one: cut the model before it"
        )


def _may_not_fit(call: relax.Call, ty: relax.TensorType) -> bool:
    """Whether a call takes sizes that the virtual machine does not compare with those of its operand."""
    if call.op.name not in ("relax.reshape", "relax.broadcast_to", "relax.strided_slice"):
        return False
    equal = tvm.sym.Analyzer().can_prove_equal
    shapes = [each.shape for each in (call.args[0].ty, ty)]
    if not all(isinstance(shape, relax.ShapeExpr) for shape in shapes):
        return True
    have, want = (list(shape.values) for shape in shapes)
    if call.op.name == "relax.reshape":
        return not equal(
            *(functools.reduce(operator.mul, sizes, tvm.tirx.IntImm("int64", 1)) for sizes in (have, want))
        )
    if call.op.name == "relax.broadcast_to":
        pairs = zip(reversed(have), reversed(want), strict=False)
        return not all(equal(size, 1) or equal(size, wanted) for size, wanted in pairs)
    return bool(getattr(call.attrs, "assume_inbound", False)) and not all(
        isinstance(limit, tvm.tirx.IntImm) for limits in call.args[2:4] for limit in limits.fields
    )


def _has_known_size(call: relax.Call) -> bool:
    """Whether the axes of a reduction, search or split have static sizes."""
    ty = call.args[0].ty
    if not isinstance(ty.shape, relax.ShapeExpr):
        return False
    axis = getattr(call.attrs, "axis", None)
    axes = range(ty.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    return all(isinstance(ty.shape.values[int(a)], tvm.tirx.IntImm) for a in axes)


def _has_known_inner_size(product: relax.Call) -> bool:
    shapes = [argument.ty.shape for argument in product.args]
    if not all(isinstance(shape, relax.ShapeExpr) for shape in shapes):
        return False
    first, second = (list(shape.values) for shape in shapes)
    return all(isinstance(d, tvm.tirx.IntImm) for d in (first[-1], second[-2] if len(second) > 1 else second[0]))
