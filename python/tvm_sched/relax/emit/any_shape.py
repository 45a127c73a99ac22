"""Lower a model with open dimensions to one function, which TVM's virtual machine runs for sizes without a plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import mul
from typing import Any

import tvm
from tvm import relax, s_tir, tirx
from tvm.sym import Analyzer

from tvm_frontends import ImportedModel
from tvm_frontends.imported_model import PARAMETERS, number_of_inputs
from tvm_frontends.shapes import DeclaredInput

from ...errors import InputError
from ..codegen.cpu.index_bounds import bound_indices
from ..ir.attributes import SetCompileTarget
from ..ir.call_names import describe
from ..ir.statements import contains
from ..lower.kernel_libraries import KERNELS, available_libraries, claimed_functions, make_modules
from ..lower.lower_to_kernels import LowerToKernels
from ..lower.operators_without_kernel import simplify
from ..lower.split_tail import UNBOUNDED, own_results
from ..toolchain.compile_target import CompileTarget
from .operand_sizes import PROVED, operand_sizes, tensors

ENTRY = "tvm_sched_any_shape"
"""Name of the function."""
REQUIRE, PARAMETER, HAS_PLAN = "tvm_sched.require", "tvm_sched.parameter", "tvm_sched.has_plan"
"""Functions of the runtime module that the virtual machine calls."""
_REDUCTION = 2
_DIVISIONS = (tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod)


@dataclass(frozen=True)
class AnyShape:
    """A model lowered for every admissible size."""

    mod: tvm.IRModule
    """Its ``main`` takes the inputs, then the parameters; all are calls of kernels with symbolic extents."""
    conditions: list[tuple[str, Any, Any]]
    """What is computed twice and must be equal: where, and the two sizes."""
    inputs: tuple[DeclaredInput, ...]
    ranges: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)

    def about(self) -> dict[str, Any]:
        """Return the entry ``any_shape`` of the artifact's metadata."""

        def dimension(item: DeclaredInput, axis: int, size: Any) -> int | str:
            return size if isinstance(size, int) else f"{item.name}, {axis}" if size is None else str(size)

        return {
            "inputs": [
                {
                    "name": item.name,
                    "shape": [dimension(item, axis, size) for axis, size in enumerate(item.shape or ())],
                    "dtype": item.dtype,
                }
                for item in self.inputs
            ],
            "ranges": {name: list(limits) for name, limits in self.ranges.items()},
        }

    def function(self, held: Mapping[str, str]) -> tvm.IRModule:
        """Return a module with the function `ENTRY` and its kernels.

        Parameters
        ----------
        held : mapping of str to str
            Names under which the runtime module holds values of parameters; the others become constants.
        """
        main, values = self.mod["main"], self.mod.attrs[PARAMETERS]
        count = number_of_inputs(main)
        params, conditions = [], list(self.conditions)
        for variable in main.params[:count]:
            param, more = _with_free_dimensions(variable)
            params.append(param)
            conditions += more
        renamed: dict[Any, relax.Expr] = dict(zip(main.params[:count], params, strict=True))
        given = [relax.Var(variable.name, relax.TensorType(dtype="")) for variable in params]  # the caller checks them
        first: list[relax.Binding] = [relax.MatchCast(v, g, v.ty) for v, g in zip(params, given, strict=True)]
        for text, left, right in conditions:
            call = relax.Call(relax.ExternFunc(REQUIRE), [tvm.ir.StringImm(text), left, right], None, [_EMPTY])
            first.append(relax.VarBinding(relax.Var("checked", _EMPTY), call))
        for variable in main.params[count:]:
            name = held.get(variable.name)
            if name is None:
                renamed[variable] = relax.const(values[variable.name])
                continue
            renamed[variable] = relax.Var(variable.name, variable.ty)
            load = relax.call_pure_packed(PARAMETER, tvm.ir.StringImm(name), ty_args=variable.ty)
            first.append(relax.VarBinding(renamed[variable], load))
        bindings = [binding for block in main.body.blocks for binding in block.bindings]
        copies, result = own_results(bindings, main.body.body, set(main.params))
        body = relax.SeqExpr([relax.BindingBlock([*bindings, *copies])], result)
        body = _Substitution(renamed).visit_expr(body)
        whole = relax.SeqExpr([relax.BindingBlock(first), *body.blocks] if first else body.blocks, body.body)
        ret = relax.analysis.erase_to_well_defined(result.ty)
        function = relax.Function(given, whole, ret, is_pure=False).with_attr("global_symbol", ENTRY)
        kernels = tvm.IRModule({v: f for v, f in self.mod.functions_items() if v.name_hint != "main"})
        builder = relax.BlockBuilder(kernels)
        builder.add_func(function, ENTRY)
        return builder.finalize()

    def libraries(self) -> list[tvm.runtime.Module]:
        """Return the modules of the kernel libraries that the function calls."""
        return make_modules(self.mod, {name: name for name in claimed_functions(self.mod)}, {})


_EMPTY = relax.TupleType([])


def lower_any_shape(
    imported: ImportedModel,
    inputs: tuple[DeclaredInput, ...],
    ranges: Mapping[str, tuple[int, int | None]],
    target: CompileTarget,
) -> AnyShape:
    """Lower a model whose shapes are expressions of symbols.

    Raises
    ------
    InputError
        A size depends on data, or two sizes may be equal or not.
    """
    mod = tvm.transform.Sequential([SetCompileTarget(target)])(imported.with_parameters())
    with tvm.target.Target("llvm"):
        conditions = _conditions(simplify(mod)["main"])
    libraries = [name for name in available_libraries() if name == "onednn"]
    mod = tvm.transform.Sequential([LowerToKernels(libraries=libraries), relax.transform.ToNonDataflow()])(mod)
    builder, renamed = relax.BlockBuilder(), {}
    for variable, function in mod.functions_items():
        if isinstance(function, tirx.PrimFunc):  # plans have kernels of the same names
            prepared = bound_indices(initialise_first(function))
            renamed[variable] = builder.add_func(prepared, f"{ENTRY}_{variable.name_hint}")
    result = builder.get().with_attrs(mod.attrs)
    documents = mod.attrs.get(KERNELS, {})
    result = result.with_attr(KERNELS, {f"{ENTRY}_{name}": document for name, document in documents.items()})
    result["main"] = _Substitution(renamed, set(map(str, documents))).visit_expr(mod["main"])
    return AnyShape(result, conditions, inputs, ranges)


def initialise_first(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Initialise each reduction before its loops: in its first iteration, it would not be if it has none."""
    schedule = s_tir.Schedule(tvm.IRModule({"main": function}))
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        step, loops = schedule.get(block), schedule.get_loops(block)
        kinds = [int(item.iter_type) for item in step.iter_vars]
        if step.init is None or _REDUCTION not in kinds or len(kinds) != len(loops):
            continue
        schedule.decompose_reduction(block, loops[kinds.index(_REDUCTION)])
    return schedule.mod["main"]


def _with_free_dimensions(variable: relax.Var) -> tuple[relax.Var, list[tuple[str, Any, Any]]]:
    """Return an argument whose dimensions are numbers and symbols, and the conditions for those that were expressions."""
    if not isinstance(variable.ty, relax.TensorType):
        raise InputError(f"input {variable.name!r} is a tuple; a model with open dimensions takes tensors")
    dims, conditions = [], []
    for axis, size in enumerate(variable.ty.shape.values):
        if isinstance(size, (tirx.IntImm, tirx.Var)):
            dims.append(size)
            continue
        free = tirx.Var(f"{variable.name}_{axis}", "int64")
        dims.append(free)
        conditions.append((f"input {variable.name!r}: dimension {axis} (the model says {size})", free, size))
    return relax.Var(variable.name, relax.TensorType(dims, variable.ty.dtype.dtype)), conditions


def _conditions(function: relax.Function) -> list[tuple[str, Any, Any]]:
    """Return the sizes that must be equal, as far as they are not always; refuse what cannot be stated so.

    Raises
    ------
    InputError
    """
    analyzer = Analyzer()
    symbols: set[Any] = set()
    for param in function.params[: number_of_inputs(function)]:
        for size in getattr(getattr(param.ty, "shape", None), "values", ()):
            for symbol in tirx.analysis.undefined_vars(size):
                if symbol not in symbols:
                    symbols.add(symbol)
                    analyzer.bind(symbol, tvm.ir.Range(0, 1 << 40))
    found: list[tuple[str, Any, Any]] = []

    def equal(text: str, left: Any, right: Any) -> None:
        if not analyzer.can_prove_equal(left, right):
            found.append((text, left, right))

    for block in function.body.blocks:
        for binding in block.bindings:
            value = binding.value
            for ty in tensors(binding.var.ty):
                if not isinstance(ty.shape, relax.ShapeExpr):
                    raise InputError(
                        f"{_text(binding)}: the shape of its result depends on data or on whether two sizes are equal"
                    )
                if any(set(tirx.analysis.undefined_vars(size)) - symbols for size in ty.shape.values):
                    raise InputError(f"{_text(binding)}: the shape of its result depends on data")
                for axis, size in enumerate(ty.shape.values):
                    if contains(size, _DIVISIONS, lambda node: not analyzer.can_prove(node.b > 0)):
                        raise InputError(
                            f"{_text(binding)}: dimension {axis} of the result is divided by a size, which may be 0"
                        )
                    if not analyzer.can_prove(size >= 0):
                        least = tirx.max(size, tirx.IntImm("int64", 0))
                        found.append(
                            (f"{_text(binding)}: dimension {axis} of the result, which is 0 or more,", size, least)
                        )
            if isinstance(value, relax.If):
                raise InputError(f"{_text(binding)}: a branch that data decide")
            if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
                continue
            operation = value.op.name
            if operation in UNBOUNDED:
                raise InputError(f"{_text(binding)}: the shape of its result depends on data")
            if operation == "relax.reshape":
                equal(f"{_text(binding)}: number of elements", _volume(value.args[0]), _volume(binding.var))
            elif operation == "relax.broadcast_to":
                _broadcast(_text(binding), value.args[0].ty, binding.var.ty, analyzer, equal)
            elif operation == "relax.matmul":
                first, second = (list(argument.ty.shape.values) for argument in value.args)
                equal(f"{_text(binding)}: inner size", first[-1], second[-2] if len(second) > 1 else second[0])
            elif operation == "relax.concat":
                _concat(_text(binding), value, equal)
            elif operation == "relax.strided_slice":
                _slice(_text(binding), value, analyzer, found)
            elif operation == "relax.split":
                _split(_text(binding), value)
            elif operation not in PROVED:
                operand_sizes(_text(binding), value, equal)
    return found


def _text(binding: relax.Binding) -> str:
    return f"{describe(binding.value) if isinstance(binding.value, relax.Call) else binding.var.name}"


def _volume(tensor: relax.Expr) -> Any:
    return reduce(mul, tensor.ty.shape.values, tirx.IntImm("int64", 1))


def _broadcast(where: str, source: Any, target: Any, analyzer: Any, equal: Any) -> None:
    have, want = list(source.shape.values), list(target.shape.values)
    for size, wanted in zip(reversed(have), reversed(want), strict=False):
        if not analyzer.can_prove_equal(size, 1):
            equal(f"{where}: size", size, wanted)


def _concat(where: str, call: relax.Call, equal: Any) -> None:
    if not isinstance(call.args[0], relax.Tuple):
        return
    shapes = [list(part.ty.shape.values) for part in call.args[0].fields]
    axis = int(call.attrs.axis or 0) % len(shapes[0])
    for other in shapes[1:]:
        for k, (left, right) in enumerate(zip(shapes[0], other, strict=True)):
            if k != axis:
                equal(f"{where}: dimension {k}", left, right)


def _slice(where: str, call: relax.Call, analyzer: Any, found: list[tuple[str, Any, Any]]) -> None:
    """Refuse positions beyond a dimension if the kernel assumes that they are inside."""
    if not bool(getattr(call.attrs, "assume_inbound", False)):
        return
    sizes = call.args[0].ty.shape.values
    axes, begins, ends = call.args[1:4]
    for axis, *limits in zip(axes.fields, begins.fields, ends.fields, strict=True):
        size = sizes[int(getattr(axis, "value", axis))]
        if isinstance(size, tirx.IntImm):
            continue
        for limit in limits:
            reach = tirx.max(limit, -limit)
            if not analyzer.can_prove(reach <= size) and not (
                isinstance(limit, tirx.IntImm) and abs(int(limit)) >= (1 << 31) - 1
            ):
                found.append((f"{where}: dimension, which reaches its positions,", size, tirx.max(size, reach)))


def _split(where: str, call: relax.Call) -> None:
    shape = call.args[0].ty.shape.values
    if not isinstance(shape[int(call.attrs.axis) % len(shape)], tirx.IntImm):
        raise InputError(f"{where}: splits a dimension of open size")


@relax.expr_functor.mutator
class _Substitution(relax.PyExprMutator):
    def __init__(self, values: Mapping[Any, relax.Expr], kernels: Collection[str] = ()) -> None:
        super().__init__()
        self.values, self.kernels = values, kernels

    def visit_var_(self, op: relax.Var) -> relax.Expr:
        return self.values.get(op, super().visit_var_(op))

    def visit_extern_func_(self, op: relax.ExternFunc) -> relax.Expr:
        name = str(op.global_symbol)
        return relax.ExternFunc(f"{ENTRY}_{name}") if name in self.kernels else op

    def visit_global_var_(self, op: tvm.ir.GlobalVar) -> relax.Expr:
        return self.values.get(op, op)


__all__ = ["ENTRY", "HAS_PLAN", "AnyShape", "lower_any_shape"]
