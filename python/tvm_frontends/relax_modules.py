"""Import of Relax modules: in memory, as JSON (``tvm.ir.save_json``) or as TVMScript."""

from __future__ import annotations

import runpy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.sym import Analyzer

from .constants import Values
from .errors import ModelError, first_line
from .imported_model import PARAMETERS, ImportedModel, main_constants, number_of_inputs
from .shapes import DeclaredInput, Dimension, Expression, StaticShapes
from .source import Description, ModelSource


def read_module(path: Path) -> tvm.IRModule:
    """Read a module from ``.json`` or ``.py``."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: cannot be read as text ({error})") from None
    return _from_json(text, path) if path.suffix.lower() == ".json" else _from_script(text, path)


def _from_json(text: str, path: Path) -> tvm.IRModule:
    try:
        mod = tvm.ir.load_json(text)
    except Exception as error:
        raise ModelError(f"{path}: not a module that tvm.ir.save_json wrote ({first_line(error)})") from None
    if not isinstance(mod, tvm.IRModule):
        raise ModelError(f"{path}: holds a {type(mod).__name__}, expected a tvm.IRModule")
    return mod


def _from_script(text: str, path: Path) -> tvm.IRModule:
    """Run a script that imports its names; a script that TVM printed has its imports as comments only, and is parsed."""
    imports = any(line.startswith(("import ", "from ")) for line in text.splitlines())
    try:
        if not imports:
            mod = tvm.script.from_source(text)
            modules = [mod] if isinstance(mod, tvm.IRModule) else []
        else:
            namespace = runpy.run_path(str(path))
            modules = [value for value in namespace.values() if isinstance(value, tvm.IRModule)]
    except (Exception, SystemExit) as error:
        reason = "it ended the program" if isinstance(error, SystemExit) else first_line(error)
        raise ModelError(f"{path}: not a TVMScript module that can be read ({reason})") from error
    if len(modules) != 1:
        raise ModelError(f"{path}: defines {len(modules)} modules (@I.ir_module); exactly one is expected")
    return modules[0]


def open_module(mod: tvm.IRModule, name: str, where: str) -> ModelSource:
    """Open a Relax module; its function attribute ``params`` or module attribute `PARAMETERS` holds the parameters."""
    names = [variable.name_hint for variable in mod.get_global_vars()]
    if "main" not in names or not isinstance(mod["main"], relax.Function):
        raise ModelError(f"{where}: has no Relax function 'main'; its functions are {sorted(names)}")
    parameters: dict[str, Any] = {}
    mod = with_public_main(mod)
    function = mod["main"]
    if mod.attrs and PARAMETERS in mod.attrs:
        parameters = {str(k): v.numpy() for k, v in mod.attrs[PARAMETERS].items()}
        mod = mod.without_attr(PARAMETERS)
    elif function.attrs and "params" in function.attrs:
        values = list(function.attrs["params"])
        first = len(function.params) - len(values)
        parameters = {str(v.name): value.numpy() for v, value in zip(function.params[first:], values, strict=True)}
        mod = mod.clone()
        mod["main"] = function.without_attr("params").with_attr("num_input", first)
    mod = _with_sizes_of(mod, parameters)
    if has_open_sizes(mod):
        mod = _with_named_sizes(mod)
    return ModelSource(
        name,
        where,
        declared_inputs(mod, where),
        lambda shapes, constants: bind_module(ImportedModel(mod, parameters, name), shapes, constants, where),
        lambda: describe_module(ImportedModel(mod, parameters, name)),
        symbolic=lambda constants: freeze_inputs(ImportedModel(mod, parameters, name), constants, where),
        ranges=_ranges(function),
    )


def with_public_main(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a module whose ``main`` has a global symbol: TVM inlines and removes functions without one."""
    if "global_symbol" in (mod["main"].attrs or ()):
        return mod
    result = mod.clone()
    result["main"] = mod["main"].with_attr("global_symbol", "main")
    return result


def _ranges(function: relax.Function) -> dict[str, tuple[int, int | None]]:
    """Return the sizes that the function's attributes allow, by symbol."""
    limits = [dict((function.attrs or {}).get(f"tir_var_{end}_bound", {})) for end in ("lower", "upper")]
    lower, upper = ({str(name): int(size) for name, size in each.items()} for each in limits)
    return {name: (max(0, lower.get(name, 0)), upper.get(name)) for name in {**lower, **upper}}


def has_open_sizes(mod: tvm.IRModule) -> bool:
    """Return whether an argument of ``main`` has a dimension that is a symbol, or unknown."""
    names = [variable.name_hint for variable in mod.get_global_vars()]
    main = mod["main"] if "main" in names else None
    return isinstance(main, relax.Function) and any(_is_open(variable.ty) for variable in main.params)


def _is_open(ty: Any) -> bool:
    if isinstance(ty, relax.TupleType):
        return any(map(_is_open, ty.fields))
    unknown = isinstance(ty, relax.TensorType) and not isinstance(ty.shape, relax.ShapeExpr)
    return unknown or any(not isinstance(size, tvm.tirx.IntImm) for size in _sizes(ty))


def _with_sizes_of(mod: tvm.IRModule, parameters: Mapping[str, Any]) -> tvm.IRModule:
    """Bind the symbols of parameters that have values."""
    sizes: dict[Any, int] = {}
    for variable in mod["main"].params:
        if variable.name in parameters and _sizes(variable.ty):
            _collect(variable.name, variable.ty, {variable.name: parameters[variable.name].shape}, sizes)
    return relax.transform.BindSymbolicVars(sizes, "main")(mod) if sizes else mod


def _with_named_sizes(mod: tvm.IRModule) -> tvm.IRModule:
    """Give symbols to the dimensions of inputs of which only the number is known, and replace sizes that casts name.

    Parameters become inputs if one of them has symbols.

    After ``match_cast(x, (n, m))`` the model calls the sizes of ``x`` n and m. If these are new, they become the sizes of
    ``x``; if both are symbols of inputs, they become one.
    """
    mod = relax.transform.InlinePrivateFunctions()(mod)
    function = mod["main"]
    if any(_is_open(variable.ty) for variable in function.params[number_of_inputs(function) :]):
        function = function.without_attr("num_input")
    named = {v: w for v in function.params if (w := _with_symbols(v)) is not v}
    if named:
        function = replace_variables(function, [named.get(variable, variable) for variable in function.params], named)
    while (pair := _renamed_by_cast(function)) is not None:
        function = function.bind_symbolic_vars(dict([pair]))
    if function.same_as(mod["main"]):
        return mod
    result = mod.clone()
    result["main"] = function
    return result


def _with_symbols(variable: relax.Var) -> relax.Var:
    ty = variable.ty
    if not isinstance(ty, relax.TensorType) or isinstance(ty.shape, relax.ShapeExpr) or ty.ndim < 0 or ty.dtype is None:
        return variable
    symbols = [tvm.tirx.Var(f"{variable.name}_{axis}", "int64") for axis in range(ty.ndim)]
    return relax.Var(variable.name, relax.TensorType(symbols, ty.dtype, ty.vdevice))


def replace_variables(
    function: relax.Function,
    params: Sequence[relax.Var],
    values: Mapping[relax.Var, relax.Expr],
    body: relax.Expr | None = None,
) -> relax.Function:
    """Return a function with other parameters, in whose body the ``values`` stand for variables."""
    body = _Replacer(values).visit_expr(function.body if body is None else body)
    return relax.Function(params, body, is_pure=function.is_pure, attrs=function.attrs)


@relax.expr_functor.mutator
class _Replacer(relax.PyExprMutator):
    def __init__(self, values: Mapping[relax.Var, relax.Expr]) -> None:
        super().__init__()
        self.values = values

    def visit_var_(self, op: relax.Var) -> relax.Expr:
        return self.values.get(op, super().visit_var_(op))


def _renamed_by_cast(function: relax.Function) -> tuple[Any, Any] | None:
    """Return a symbol that a cast names, or makes equal to another size, and this size."""
    known = {
        v for param in function.params for size in _sizes(param.ty) for v in tvm.tirx.analysis.undefined_vars(size)
    }
    for binding in (binding for block in function.body.blocks for binding in block.bindings):
        if not isinstance(binding, relax.MatchCast):
            continue
        for have, want in zip(_sizes(binding.value.ty), _sizes(binding.ty), strict=False):
            if isinstance(want, tvm.tirx.Var) and want not in known and not want.same_as(have):
                return want, have
            whole = isinstance(want, (tvm.tirx.Var, tvm.tirx.IntImm)) and not want.same_as(have)
            if whole and isinstance(have, tvm.tirx.Var):
                return have, want
    return None


def _sizes(ty: Any) -> list[Any]:
    """Return the sizes of a tensor or shape; none if they are unknown."""
    if isinstance(ty, relax.TensorType):
        return list(ty.shape.values) if isinstance(ty.shape, relax.ShapeExpr) else []
    return list(ty.values or ()) if isinstance(ty, relax.ShapeType) else []


def describe_module(model: ImportedModel) -> Description:
    """Return the operators that ``main`` calls, its outputs, and its parameters, constants included."""
    operators: Counter[str] = Counter()

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call):
            named = expr.args[0] if isinstance(expr.op, tvm.ir.Op) and expr.op.name == "relax.call_tir" else expr.op
            operators[str(getattr(named, "name", None) or getattr(named, "name_hint", named))] += 1

    function = model.mod["main"]
    relax.analysis.post_order_visit(function, visit)
    outputs: list[DeclaredInput] = []
    _declare_output("output", function.ret_ty, outputs)
    values = [*model.parameters.values(), *(constant.value.numpy() for constant in main_constants(model.mod))]
    return Description(
        "relax", {}, tuple(outputs), dict(operators.most_common()), len(values), sum(value.nbytes for value in values)
    )


def _declare_output(name: str, ty: Any, outputs: list[DeclaredInput]) -> None:
    if isinstance(ty, relax.TupleType):
        for position, field in enumerate(ty.fields):
            _declare_output(f"{name}.{position}", field, outputs)
    elif isinstance(ty, relax.TensorType):
        dims = tuple(map(_dimension, ty.shape.values)) if isinstance(ty.shape, relax.ShapeExpr) else None
        outputs.append(DeclaredInput(name, dims, str(ty.dtype.dtype)))


def declared_inputs(mod: tvm.IRModule, where: str) -> tuple[DeclaredInput, ...]:
    """Return the tensor inputs of ``main``; a field of a tuple is named by its position (``x.0``)."""
    function = mod["main"]
    declared: list[DeclaredInput] = []
    for variable in function.params[: number_of_inputs(function)]:
        _declare(variable.name, variable.ty, declared, where)
    return tuple(declared)


def bind_module(model: ImportedModel, shapes: StaticShapes, constants: Values, where: str) -> ImportedModel:
    """Bind every input of ``main`` to its shape, and inputs that become constants to their values.

    Parameters
    ----------
    model : ImportedModel
        Its shapes may be symbolic.
    shapes : dict of str to tuple of int
        Shapes of all inputs that do not become constants.
    where : str
        The model, for messages.
    """
    mod = model.mod
    function = mod["main"]
    all_shapes = {**{name: value.shape for name, value in constants.items()}, **shapes}
    sizes: dict[Any, int] = {}
    for variable in function.params[: number_of_inputs(function)]:
        _collect(variable.name, variable.ty, all_shapes, sizes)
    if sizes:
        mod = relax.transform.BindSymbolicVars(sizes, "main")(mod)
    _check_bound(mod["main"], all_shapes, where)
    return ImportedModel(_freeze(mod, constants, where), model.parameters, model.name, model.output_names)


def freeze_inputs(model: ImportedModel, constants: Values, where: str) -> ImportedModel:
    """Turn inputs into constants of a model with symbols."""
    return replace(model, mod=_freeze(model.mod, constants, where))


def _freeze(mod: tvm.IRModule, constants: Values, where: str) -> tvm.IRModule:
    """Turn inputs into constants of ``main``."""
    if not constants:
        return mod
    function = mod["main"]
    count = number_of_inputs(function)
    variables = {variable.name: variable for variable in function.params[:count]}
    parts = sorted(constants.keys() - variables.keys())
    if parts:
        raise ModelError(f"{where}: input {parts[0]!r} is a field of a tuple; only whole inputs can become constants")
    values = {variables[name]: tvm.runtime.tensor(value) for name, value in constants.items()}
    # The pass drops these arguments but keeps the attribute with their number.
    return _with_inputs(relax.transform.BindParams("main", values)(mod), count - len(values))


def _with_inputs(mod: tvm.IRModule, count: int) -> tvm.IRModule:
    result = mod.clone()
    result["main"] = mod["main"].with_attr("num_input", count)
    return result


def _declare(name: str, ty: Any, declared: list[DeclaredInput], where: str) -> None:
    if isinstance(ty, relax.TupleType):
        for position, field in enumerate(ty.fields):
            _declare(f"{name}.{position}", field, declared, where)
    elif isinstance(ty, relax.TensorType):
        if not isinstance(ty.shape, relax.ShapeExpr):
            raise ModelError(
                f"{where}: input {name!r} has no shape in the module ({ty}); "
                "annotate it, e.g. R.Tensor((1, 3, 224, 224), ...)"
            )
        if ty.dtype is None:
            raise ModelError(
                f"{where}: input {name!r} has no data type in the module ({ty}); "
                'annotate it, e.g. R.Tensor((1, 3, 224, 224), "float32")'
            )
        declared.append(DeclaredInput(name, tuple(map(_dimension, ty.shape.values)), str(ty.dtype.dtype)))


def _dimension(dim: Any) -> Dimension:
    if isinstance(dim, tvm.tirx.IntImm):
        return int(dim)
    if isinstance(dim, tvm.tirx.Var):
        return str(dim.name)
    variables = {str(variable.name): variable for variable in tvm.tirx.analysis.undefined_vars(dim)}

    def evaluate(sizes: Mapping[str, int]) -> int:
        analyzer = Analyzer()
        for name, variable in variables.items():
            analyzer.bind(variable, tvm.tirx.IntImm(str(variable.ty.dtype), sizes[name]))
        return int(analyzer.simplify(dim))

    return Expression(str(dim), tuple(variables), evaluate)


def _collect(name: str, ty: Any, shapes: StaticShapes, sizes: dict[Any, int]) -> None:
    """Add the sizes of an input's symbols to ``sizes``."""
    if isinstance(ty, relax.TupleType):
        for position, field in enumerate(ty.fields):
            _collect(f"{name}.{position}", field, shapes, sizes)
    elif isinstance(ty, relax.TensorType):
        for dim, size in zip(ty.shape.values, shapes[name], strict=True):
            if isinstance(dim, tvm.tirx.Var):
                sizes[dim] = size


def _check_bound(function: relax.Function, static: StaticShapes, where: str) -> None:
    """Refuse shapes that contradict a dimension such as ``2 * n``, an expression of symbols."""

    def check(name: str, ty: Any) -> None:
        if isinstance(ty, relax.TupleType):
            for position, field in enumerate(ty.fields):
                check(f"{name}.{position}", field)
        elif isinstance(ty, relax.TensorType):
            for axis, (dim, size) in enumerate(zip(ty.shape.values, static[name], strict=True)):
                if not isinstance(dim, tvm.tirx.IntImm) or int(dim) != size:
                    raise ModelError(
                        f"{where}: input {name!r}: dimension {axis} is given as {size}, but the model says {dim}"
                    )

    for variable in function.params[: number_of_inputs(function)]:
        check(variable.name, variable.ty)
