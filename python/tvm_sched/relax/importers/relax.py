"""Import of Relax modules: in memory, as JSON (``tvm.ir.save_json``) or as TVMScript."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from ...errors import InputError
from .model import PARAMETERS, ImportedModel, number_of_inputs
from .shapes import DeclaredInput, InputShapes, bind_shapes


def read_module(path: Path) -> tvm.IRModule:
    """Read a module from ``.json`` or ``.py``."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({error})") from None
    return _from_json(text, path) if path.suffix.lower() == ".json" else _from_script(text, path)


def _from_json(text: str, path: Path) -> tvm.IRModule:
    try:
        found = tvm.ir.load_json(text)
    except Exception as error:
        raise InputError(f"{path}: not a module that tvm.ir.save_json wrote ({_first_line(error)})") from None
    if not isinstance(found, tvm.IRModule):
        raise InputError(f"{path}: holds a {type(found).__name__}, expected a tvm.IRModule")
    return found


def _from_script(text: str, path: Path) -> tvm.IRModule:
    """Scripts that people write import what they use; those that TVM prints have these imports as comments only."""
    imports = any(line.startswith(("import ", "from ")) for line in text.splitlines())
    try:
        if not imports:
            found = tvm.script.from_source(text)
            modules = [found] if isinstance(found, tvm.IRModule) else []
        else:
            namespace = runpy.run_path(str(path))
            modules = [value for value in namespace.values() if isinstance(value, tvm.IRModule)]
    except (Exception, SystemExit) as error:
        said = "it ended the program" if isinstance(error, SystemExit) else _first_line(error)
        raise InputError(f"{path}: not a TVMScript module that can be read ({said})") from error
    if len(modules) != 1:
        raise InputError(f"{path}: defines {len(modules)} modules (@I.ir_module); exactly one is expected")
    return modules[0]


def from_module(mod: tvm.IRModule, shapes: InputShapes | None, name: str, where: str) -> ImportedModel:
    """Take a module as it is; values in the function attribute ``params`` or the attribute `PARAMETERS` are parameters."""
    names = [variable.name_hint for variable in mod.get_global_vars()]
    if "main" not in names or not isinstance(mod["main"], relax.Function):
        raise InputError(f"{where}: has no Relax function 'main'; its functions are {sorted(names)}")
    parameters: dict[str, Any] = {}
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
    return bind_module(mod, parameters, shapes, name, where)


def bind_module(
    mod: tvm.IRModule, parameters: dict[str, Any], shapes: InputShapes | None, name: str, where: str
) -> ImportedModel:
    """Give every argument of ``main`` a static shape and check that nothing symbolic is left in them."""
    function = mod["main"]
    variables = function.params[: number_of_inputs(function)]
    declared: list[DeclaredInput] = []
    symbols: dict[str, Any] = {}
    for variable in variables:
        _declare(variable.name, variable.ty, declared, symbols, where)
    static, bound = bind_shapes(declared, shapes, where)
    if bound:
        values = {symbols[symbol]: size for symbol, size in bound.items()}
        mod = relax.transform.BindSymbolicVars(values, "main")(mod)
    _check_expressions(mod["main"], static, where)
    return ImportedModel(mod, parameters, name)


def _declare(name: str, ty: Any, declared: list[DeclaredInput], symbols: dict[str, Any], where: str) -> None:
    if isinstance(ty, relax.TupleType):
        for position, field in enumerate(ty.fields):
            _declare(f"{name}.{position}", field, declared, symbols, where)
    elif isinstance(ty, relax.TensorType):
        if not isinstance(ty.shape, relax.ShapeExpr):
            raise InputError(
                f"{where}: input {name!r} has no shape in the module ({ty}); "
                "annotate it, e.g. R.Tensor((1, 3, 224, 224), ...)"
            )
        dims: list[int | str | None] = []
        for dim in ty.shape.values:
            if isinstance(dim, tvm.tirx.IntImm):
                dims.append(int(dim))
            else:
                dims.append(dim.name if hasattr(dim, "name") else str(dim))
                if hasattr(dim, "name"):
                    symbols[dim.name] = dim
        declared.append(DeclaredInput(name, tuple(dims)))


def _check_expressions(function: relax.Function, static: dict[str, tuple[int, ...]], where: str) -> None:
    """After binding, a dimension that is an expression of symbols (``2 * n``) must be what the user gave."""

    def check(name: str, ty: Any) -> None:
        if isinstance(ty, relax.TupleType):
            for position, field in enumerate(ty.fields):
                check(f"{name}.{position}", field)
        elif isinstance(ty, relax.TensorType):
            for axis, (dim, size) in enumerate(zip(ty.shape.values, static[name], strict=True)):
                if not isinstance(dim, tvm.tirx.IntImm) or int(dim) != size:
                    raise InputError(
                        f"{where}: input {name!r}: dimension {axis} is given as {size}, but the model says {dim}"
                    )

    for variable in function.params[: number_of_inputs(function)]:
        check(variable.name, variable.ty)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
