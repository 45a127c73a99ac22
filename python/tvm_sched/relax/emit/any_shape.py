"""Lower a model with open dimensions to kernels with symbolic extents, and make a plan the template for all sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import cycle
from operator import mul
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.sym import Analyzer

from tvm_frontends import ImportedModel
from tvm_frontends.imported_model import number_of_inputs
from tvm_frontends.shapes import DeclaredInput
from tvm_sched_runtime.errors import InputError

from ...execution_plan import Calls
from ..codegen.cpu.open_loops import is_evaluable, prepare_open_kernel, substituted
from ..ir.attributes import NAME, SetCompileTarget
from ..ir.call_names import describe
from ..ir.flops import FLOPS
from ..ir.kernel_table import KernelTable
from ..ir.statements import contains, evaluate, intrinsic
from ..ir.virtual_devices import copied_to
from ..lower.kernel_libraries import available_libraries
from ..lower.lower_to_kernels import LowerToKernels
from ..lower.operators_without_kernel import simplify
from ..lower.split_tail import UNBOUNDED
from ..toolchain.compile_target import CompileTarget
from .operand_sizes import PROVED, operand_sizes, tensors

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

    def symbols(self) -> dict[tirx.Var, str]:
        """Return the open dimensions and their names.

        Raises
        ------
        InputError
            A dimension is an expression of a symbol that no input has alone.
        """
        return {variable: name for variable, (name, _) in self._symbols().items()}

    def limits(self) -> dict[tirx.Var, tuple[int, int | None]]:
        """Return the ranges of the open dimensions: those of one declared name have one."""
        return {variable: self.ranges.get(declared, (0, None)) for variable, (_, declared) in self._symbols().items()}

    def _symbols(self) -> dict[tirx.Var, tuple[str, str]]:
        """Return the open dimensions, each with a name of its own and the declared one."""
        names: dict[tirx.Var, tuple[str, str]] = {}
        used: set[tirx.Var] = set()
        for ty, item in zip(self._types(), self.inputs, strict=True):
            for axis, size in enumerate(ty.shape.values):
                used |= set(tirx.analysis.undefined_vars(size))
                if isinstance(size, tirx.Var) and size not in names:
                    declared = (item.shape or ())[axis] if item.shape else None
                    place = f"{item.name}, {axis}"
                    name = declared if isinstance(declared, str) else place
                    names[size] = (place if any(name == other for other, _ in names.values()) else name), name
        if lacking := used - set(names):
            raise InputError(f"no input has the size {', '.join(sorted(v.name for v in lacking))} as a dimension")
        return names

    def _types(self) -> list[relax.TensorType]:
        """Return the types of the inputs, fields of tuples one by one."""
        main = self.mod["main"]
        return [ty for variable in main.params[: number_of_inputs(main)] for ty in tensors(variable.ty)]

    def bind_symbols(self, sizes: Mapping[str, int]) -> tuple[tvm.IRModule, dict[str, str]]:
        """Bind the symbols to sizes by their names (`symbols`); return what `bind` does."""
        return _bind(self.mod, {variable: sizes[name] for variable, name in self.symbols().items()})

    def bind(self, shapes: Mapping[str, Sequence[int]] | tuple[int, ...]) -> tuple[tvm.IRModule, dict[str, str]]:
        """Bind the symbols to the sizes of the inputs' ``shapes``, by name; return the module, and what `Template` says.

        Numbers in place of the shapes are the sizes of the symbols in turn, as far as their ranges allow.
        """
        return _bind(self.mod, self._sizes(shapes))

    def admits(self, shapes: Mapping[str, Sequence[int]] | tuple[int, ...]) -> bool:
        """Return whether all `conditions` hold at these sizes, which are as for `bind`."""
        analyzer = Analyzer()
        for variable, size in self._sizes(shapes).items():
            analyzer.bind(variable, tirx.IntImm(str(variable.ty.dtype), size))
        return all(analyzer.can_prove_equal(size, needed) for _, size, needed in self.conditions)

    def repaired(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Return sizes of the symbols, as for `bind`, changed so that summands and factors in `conditions` fit."""
        found = self._sizes(sizes)

        def value(size: Any, symbol: tirx.Var, number: int) -> int | None:
            bound = {v: tirx.IntImm(str(v.ty.dtype), known) for v, known in {**found, symbol: number}.items()}
            result = Analyzer().simplify(substituted(size, bound))
            return int(result) if isinstance(result, tirx.IntImm) else None

        for _, *sides in self.conditions:
            for left, right in (sides, sides[::-1]):
                for symbol in [each for each in found if each in tirx.analysis.undefined_vars(left)]:
                    target, base, first = value(right, symbol, found[symbol]), *(value(left, symbol, k) for k in (0, 1))
                    if target is None or base is None or first is None or first == base:
                        continue
                    other = (target - base) // (first - base)
                    if other >= 0 and value(left, symbol, other) == value(right, symbol, other):
                        found[symbol] = other
        return tuple(found.values())

    def _sizes(self, shapes: Mapping[str, Sequence[int]] | tuple[int, ...]) -> dict[tirx.Var, int]:
        if isinstance(shapes, tuple):
            limits = zip(self.limits().items(), cycle(shapes), strict=False)
            return {v: max(low, size if high is None else min(size, high)) for (v, (low, high)), size in limits}
        sizes: dict[tirx.Var, int] = {}
        for ty, item in zip(self._types(), self.inputs, strict=True):
            for size, given in zip(ty.shape.values, shapes[item.name], strict=True):
                if isinstance(size, tirx.Var):
                    sizes[size] = int(given)
        return {variable: sizes[variable] for variable in self.symbols()}

    def template(self, plan: Mapping[str, Any], calls: Calls, anchor: Mapping[str, int]) -> dict[str, Any]:
        """Make the plan of an anchor the template of the plans for all sizes (``docs/formats/plan.md``).

        Parameters
        ----------
        plan : mapping
            Plan of a module from `bind`.
        calls : Calls
            Its kernel calls.
        anchor : mapping of str to int
            The largest sizes of the symbols for which the plan is meant; empty: all.
        """
        names, limits = self.symbols(), self.limits()
        shapes, given = self._expressions(calls, names)

        def spec(entry: Mapping[str, Any]) -> dict[str, Any]:
            return {**entry, "shape": shapes.get(entry["name"], entry["shape"])}

        def buffer(entry: Mapping[str, Any]) -> dict[str, Any]:
            return {**spec(entry), "source": {k: v for k, v in entry["source"].items() if k != "offset"}}

        def step(entry: Mapping[str, Any]) -> dict[str, Any]:
            sizes = given.get(entry["name"]) if entry["kind"] == "kernel" else None
            return {**entry, "sizes": [as_document(size, names) for size in sizes]} if sizes else dict(entry)

        def symbol(variable: tirx.Var) -> dict[str, Any]:
            low, high = limits[variable]
            up_to = {"anchor": anchor[names[variable]]} if anchor else {}
            return {"name": names[variable], "low": low, **({} if high is None else {"high": high}), **up_to}

        return {
            **plan,
            "symbols": [symbol(variable) for variable in names],
            "conditions": [
                {"where": where, "size": as_document(size, names), "needed": as_document(needed, names)}
                for where, size, needed in self.conditions
            ],
            "devices": [{k: v for k, v in device.items() if k != "arena_bytes"} for device in plan["devices"]],
            "arguments": [spec(entry) for entry in plan["arguments"]],
            "outputs": [spec(entry) for entry in plan["outputs"]],
            "buffers": [buffer(entry) for entry in plan["buffers"]],
            "steps": [step(entry) for entry in plan["steps"]],
        }

    def plan_with_kernels(self, plan: Mapping[str, Any], calls: Calls) -> dict[str, Any]:
        """Return the plan of a module from `bind` that calls `kernels`; arguments as for `template`."""
        given = self._expressions(calls, self.symbols())[1]
        values: dict[Any, Any] = {}
        for ty, argument in zip(self._types(), plan["arguments"], strict=True):
            values |= zip(ty.shape.values, argument["shape"], strict=True)
        return {
            **plan,
            "steps": [
                {**step, "sizes": [int(evaluate(size, values)) for size in given[step["name"]]]}
                if step["kind"] == "kernel" and given.get(step["name"])
                else step
                for step in plan["steps"]
            ],
        }

    def kernels(self) -> tvm.IRModule:
        """Return the kernels as executors call them: their sizes come after their tensors."""
        no_count = tirx.IntImm("int64", 0)  # it depends on the sizes
        return tvm.IRModule({v: f.with_attr(FLOPS, no_count) for v, (f, _) in self._prepared.items()})

    @cached_property
    def _prepared(self) -> dict[Any, tuple[tirx.PrimFunc, list[Any]]]:
        """Each kernel, and the expressions of its sizes that it is given after the sizes of its call."""
        functions = {v: f for v, f in self.mod.functions_items() if isinstance(f, tirx.PrimFunc)}
        return {v: prepare_open_kernel(sizes_last(f)) for v, f in functions.items()}

    def _expressions(
        self, calls: Calls, names: Mapping[tirx.Var, str]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Return the shape of each input and result, and the sizes that each operator's kernel is given."""
        shapes: dict[str, list[Any]] = {}
        given: dict[str, list[Any]] = {}

        def note(tensor: str, ty: Any) -> None:
            shapes[tensor] = [as_document(size, names) for size in ty.shape.values]

        for name, ty in zip(calls.arguments, self._types(), strict=True):
            note(name, ty)
        bindings = [binding for block in self.mod["main"].body.blocks for binding in block.bindings]
        kernels = [binding for binding in bindings if _is_kernel(binding.value)]
        for call, binding in zip(calls.calls, kernels, strict=True):
            for tensor, ty in zip(call.outputs, tensors(binding.var.ty), strict=True):
                note(tensor, ty)
            if binding.value.op.name == "relax.call_tir":
                kernel, arguments = binding.value.args[0], binding.value.args[1].fields
                sizes = _sizes_of_call(self.mod[kernel], arguments, list(tensors(binding.var.ty)))
                computed = [substituted(size, sizes) for size in self._prepared[kernel][1]]
                explicit = [argument for argument in arguments if _is_size(argument)]
                given[call.operator] = [*explicit, *computed]
        return shapes, given


@dataclass(frozen=True)
class Template:
    """A model for every size, and its schedule at one set of sizes, the anchor."""

    model: AnyShape
    placed: tvm.IRModule
    """The model bound to the anchor (`AnyShape.bind`), with problem and schedule in its attributes."""
    functions: Mapping[str, str]
    """By name of a kernel of ``placed``: the model's kernel, which has open extents."""
    schedule: Callable[[tvm.IRModule], tvm.IRModule]
    """Makes ``placed`` of what `AnyShape.bind` returns."""
    anchor: Mapping[str, int] = field(default_factory=dict)
    """The largest sizes for which it is meant; empty: all sizes."""
    others: Sequence[Template] = ()
    """The templates of larger anchors, in the order in which a call looks for its own."""
    certified: Mapping[str, Any] = field(default_factory=dict)
    """The entry ``range`` of the metadata (``docs/formats/plan.md``); empty: nothing is certified."""
    has_plan: bool = False
    """Whether the artifact's only plan is that of the largest anchor, with the kernels of the template."""

    @property
    def largest(self) -> Template:
        """The template of the largest anchor."""
        return self.others[-1] if self.others else self

    def at(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Return the model as ``placed``, for the inputs' sizes of ``mod``."""
        main = mod["main"]
        types = [ty for variable in main.params[: number_of_inputs(main)] for ty in tensors(variable.ty)]
        shapes = {item.name: ty.shape.values for item, ty in zip(self.model.inputs, types, strict=True)}
        return self.schedule(self.model.bind(shapes)[0])

    def add_kernels(self, table: KernelTable, names: Mapping[str, str]) -> dict[str, str]:
        """Add the model's kernels to the artifact's, under the ``names`` of those of ``placed``; return what they got."""
        wanted = {self.functions[bound]: name for bound, name in names.items() if bound in self.functions}
        added = table.add(self.model.kernels(), wanted, ())
        return {bound: added[name] for bound, name in self.functions.items() if name in added}


_BUFFER = type(tirx.decl_buffer([1], "float32").ty)
_KERNEL_CALLS = ("relax.call_tir", "relax.call_dps_packed", "relax.call_pure_packed")
_OPERATORS = {
    tirx.Add: "+", tirx.Sub: "-", tirx.Mul: "*", tirx.FloorDiv: "//", tirx.FloorMod: "%", tirx.Min: "min", tirx.Max: "max",
}  # fmt: skip


def _is_kernel(value: Any) -> bool:
    is_call = isinstance(value, relax.Call) and getattr(value.op, "name", "") in _KERNEL_CALLS
    return is_call and copied_to(value) is None


def as_document(size: Any, names: Mapping[tirx.Var, str]) -> Any:
    """Return a size as a plan template writes it: an integer, a symbol's name, or ``[operator, left, right]``.

    Raises
    ------
    InputError
        Another operator.
    """
    if isinstance(size, tirx.IntImm):
        return int(size)
    if isinstance(size, tirx.Var) and size in names:
        return names[size]
    if isinstance(size, tirx.Cast):
        return as_document(size.value, names)
    if (operator := _OPERATORS.get(type(size))) is not None:
        return [operator, as_document(size.a, names), as_document(size.b, names)]
    if (truth := _TRUTHS.get(type(size))) is not None:
        return truth(as_document(size.a, names), as_document(size.b, names))
    if isinstance(size, tirx.Not):
        return ["-", 1, as_document(size.a, names)]
    choice = None
    if isinstance(size, tirx.Select):
        choice = size.condition, size.true_value, size.false_value
    elif isinstance(size, tvm.ir.Call) and getattr(size.op, "name", "") in ("prim.if_then_else", "tirx.if_then_else"):
        choice = size.args
    if choice is not None:
        condition, one, other = (as_document(part, names) for part in choice)
        return ["+", other, ["*", condition, ["-", one, other]]]
    raise InputError(f"the size {size} cannot be computed when the model runs; +, -, *, //, %, min and max can")


def _less(a: Any, b: Any) -> Any:
    return ["min", 1, ["max", 0, ["-", b, a]]]


def _same_size(a: Any, b: Any) -> Any:
    return ["-", 1, ["min", 1, ["max", ["-", a, b], ["-", b, a]]]]


_TRUTHS: dict[Any, Callable[[Any, Any], Any]] = {
    tirx.LT: _less,
    tirx.GT: lambda a, b: _less(b, a),
    tirx.LE: lambda a, b: ["-", 1, _less(b, a)],
    tirx.GE: lambda a, b: ["-", 1, _less(a, b)],
    tirx.EQ: _same_size,
    tirx.NE: lambda a, b: ["-", 1, _same_size(a, b)],
    tirx.And: lambda a, b: ["*", a, b],
    tirx.Or: lambda a, b: ["max", a, b],
}
"""Conditions, as the numbers 1 and 0."""


def _bind(mod: tvm.IRModule, sizes: Mapping[tirx.Var, int]) -> tuple[tvm.IRModule, dict[str, str]]:
    """Bind the symbols of ``main`` and of each kernel that it calls."""
    mod = relax.transform.BindSymbolicVars(dict(sizes), "main")(mod)
    main = mod["main"]
    kernels: dict[str, tirx.PrimFunc] = {}
    functions: dict[str, str] = {}
    builder = relax.BlockBuilder()
    bound: list[relax.Binding] = []
    for binding in (binding for block in main.body.blocks for binding in block.bindings):
        value = binding.value
        if isinstance(value, relax.Call) and getattr(value.op, "name", "") == "relax.call_tir":
            name = value.args[0].name_hint
            arguments = value.args[1].fields
            kernel = _specialised(mod[name], arguments, list(tensors(binding.var.ty)))
            known = next((k for k, of in functions.items() if of == name and _same(kernels[k], kernel)), None)
            if known is None:
                known = name if name not in kernels else f"{name}__{len(kernels)}"
                kernels[known], functions[known] = kernel, name
            variable = builder.add_func(kernel.with_attr("global_symbol", known), known)
            operands = relax.Tuple([argument for argument in arguments if not _is_size(argument)])
            types = list(tensors(binding.var.ty)) if isinstance(binding.var.ty, relax.TupleType) else binding.var.ty
            binding = relax.VarBinding(binding.var, builder.normalize(relax.call_tir(variable, operands, types)))
        bound.append(binding)
    body = relax.SeqExpr([relax.BindingBlock(bound)], main.body.body)
    function = relax.Function(main.params, body, main.ret_ty, main.is_pure).with_attrs(main.attrs)
    builder.add_func(function, "main")
    return builder.finalize().with_attrs(mod.attrs), functions


def _same(one: tirx.PrimFunc, other: tirx.PrimFunc) -> bool:
    return bool(tvm_ffi.structural_equal(one, other))


def _sizes_of_call(function: tirx.PrimFunc, arguments: Sequence[Any], results: Sequence[Any]) -> dict[Any, Any]:
    """Return what a kernel's symbols are in a call: ``arguments`` are the call's, ``results`` the types of its outputs."""
    found: dict[Any, Any] = {}
    types = [*(argument if _is_size(argument) else argument.ty for argument in arguments), *results]
    for param, ty in zip(function.params, types, strict=True):
        pairs = [(param, ty)] if _is_size(ty) else zip(param.shape, ty.shape.values, strict=True)
        found |= {symbol: size for symbol, size in pairs if isinstance(symbol, tirx.Var)}
    return found


def _specialised(function: tirx.PrimFunc, arguments: Sequence[Any], results: Sequence[Any]) -> tirx.PrimFunc:
    """Bind the extents of a kernel: ``arguments`` are those of its call, ``results`` the types of its outputs."""
    sizes = _sizes_of_call(function, arguments, results)
    given: dict[Any, Any] = {}
    for param in function.params:
        if param in sizes:
            given[param] = sizes[param]
        elif any(isinstance(dim, tirx.Var) for dim in param.shape):
            dims = [tirx.IntImm("int64", int(sizes[dim])) if isinstance(dim, tirx.Var) else dim for dim in param.shape]
            given[param] = tirx.decl_buffer(dims, param.dtype, param.name)
    return function.specialize(given) if given else function


def _is_size(value: Any) -> bool:
    return bool(tvm.ir.is_prim_expr(value))


def sizes_last(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a kernel that takes its sizes after its tensors, as executors call it."""
    params = sorted(function.params, key=lambda param: not isinstance(param.ty, _BUFFER))
    return tirx.PrimFunc(params, function.body, function.ret_type, function.attrs, function.span)


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
    mod = imported.with_parameters().with_attr(NAME, imported.name)
    return lower_open(tvm.transform.Sequential([SetCompileTarget(target)])(mod), inputs, ranges)


def lower_open(
    mod: tvm.IRModule, inputs: tuple[DeclaredInput, ...], ranges: Mapping[str, tuple[int, int | None]]
) -> AnyShape:
    """Lower a module with a compile target, as `lower_any_shape`."""
    with tvm.target.Target("llvm"):
        conditions = _conditions(simplify(mod)["main"])
    libraries = [name for name in available_libraries() if name == "onednn"]
    lower = LowerToKernels(libraries=libraries, before_fusion=[_select_sizes])
    mod = tvm.transform.Sequential([lower, relax.transform.ToNonDataflow()])(mod)
    lowered = AnyShape(mod, conditions, inputs, ranges)
    names = lowered.symbols()
    for _, *sizes in conditions:
        for size in sizes:
            as_document(size, names)  # refuses what a template cannot state
    return lowered


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.SelectSizes")
def _select_sizes(mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
    """Choose sizes, those of pools that round up, without a call: TVM takes a call in a shape for one of an operator."""

    def select(call: tvm.ir.Call) -> Any:
        chosen = intrinsic(call) == "if_then_else" and str(call.ty.dtype) == "int64" and is_evaluable(call)
        return tirx.Select(*call.args) if chosen else call

    functions = {v: tvm_ffi.structural_map(function, (tvm.ir.Call, select)) for v, function in mod.functions_items()}
    return tvm.IRModule(functions, attrs=mod.attrs)


def _conditions(function: relax.Function) -> list[tuple[str, Any, Any]]:
    """Return the sizes that must be equal, as far as they are not always; refuse what cannot be stated so.

    Raises
    ------
    InputError
    """
    analyzer = Analyzer()
    symbols: set[Any] = set()
    for param in function.params[: number_of_inputs(function)]:
        for size in (size for ty in tensors(param.ty) for size in ty.shape.values):
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
            if isinstance(binding, relax.MatchCast):
                _cast(f"match_cast of {binding.var.name!r}", value.ty, binding.ty, equal)
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


def _cast(where: str, source: Any, target: Any, equal: Any) -> None:
    have, want = (
        [ty.values]
        if isinstance(ty, relax.ShapeType)
        else [getattr(tensor.shape, "values", None) for tensor in tensors(ty)]
        for ty in (source, target)
    )
    if len(have) != len(want) or None in have or None in want:
        raise InputError(f"{where}: the shape of its value depends on data")
    for left, right in zip(have, want, strict=True):
        for axis, sizes in enumerate(zip(left, right, strict=True)):
            equal(f"{where}: dimension {axis}", *sizes)


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
        if all(isinstance(each, tirx.IntImm) for each in (size, *limits)):
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


__all__ = ["AnyShape", "Template", "lower_any_shape", "lower_open"]
