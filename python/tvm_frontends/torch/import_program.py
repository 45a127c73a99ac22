"""Import of torch.export programs by TVM's frontend; parameters keep their names.

Corrections of TVM 0.27.0, ``relax/frontend/torch/exported_program_translator.py``:

- ``from_exported_program``: lists the values of parameters in the order of ``named_parameters``, which differs from
  the order of ``main``'s arguments if modules share weights.
"""

from __future__ import annotations

import os
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from ..constants import Constants, Values
from ..errors import ModelError, ModelWarning, first_line
from ..imported_model import ImportedModel
from ..logs import quiet
from ..relax_modules import bind_module, freeze_inputs
from ..shape_examples import Hints
from ..shapes import DeclaredInput, Dimension, Expression, InputShapes, StaticShapes
from ..source import Description, Importer, ModelSource
from .node_calls import OpenSizes, RefusedOperator, UnsupportedOperator


def load(
    program: str | os.PathLike[str] | Any,
    shapes: InputShapes | None = None,
    *,
    constants: Constants | None = None,
    name: str | None = None,
) -> ImportedModel:
    """Import a torch.export program, or a ``.pt2`` file of ``torch.export.save``, with static shapes.

    Parameters and errors are those of `tvm_frontends.load_model`.

    Examples
    --------
    >>> import torch, tvm_frontends
    >>> program = torch.export.export(torch.nn.Linear(3, 2).eval(), (torch.zeros(4, 3),))
    >>> imported = tvm_frontends.torch.load(program, name="linear")
    >>> imported.inputs
    {'input': ((4, 3), 'float32')}
    >>> sorted(imported.parameters)
    ['bias', 'weight']
    """
    if not isinstance(program, (str, os.PathLike)):
        where = f"model {name!r}" if name else "model"
        return open_exported_program(program, name or "model", where).load(shapes, constants)
    path = Path(program)
    return open_exported_program(read_exported_program(path), name or path.stem, str(path)).load(shapes, constants)


def read_exported_program(path: Path) -> Any:
    """Read a ``.pt2`` file of ``torch.export.save``."""
    try:
        import torch
    except ImportError:
        raise ModelError(f"{path}: reading torch.export programs needs torch: pip install torch") from None
    try:
        with warnings.catch_warnings(), quiet("torch.export"):
            warnings.simplefilter("ignore")
            return torch.export.load(path)
    except Exception as error:  # zipfile, json and torch raise unrelated classes
        if not _registered and _returns_objects(path):
            _register_outputs(path)
            return read_exported_program(path)
        first = first_line(error).split(" Please check the warnings")[0]
        raise ModelError(
            f"{path}: not a readable torch.export program ({_wrong_with(path) or first}); write it with torch.export.save"
        ) from None


def _wrong_with(path: Path) -> str:
    """Return what an archive holds in place of a program, or lacks of it; empty if that is not known."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if (damaged := archive.testzip()) is not None:
                return f"its part {damaged} is damaged"
            lists = [archive.read(name) for name in names if name.endswith("weights_config.json")]
    except OSError:
        return ""
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        RuntimeError,
    ):  # RuntimeError: encrypted, or packed in an unknown way
        return "it is not a zip file, or is cut off"
    if any("/code/" in name for name in names):
        return "it holds TorchScript"
    if any(name.endswith("data.pkl") for name in names):
        return "it holds objects of torch.save, such as a state_dict"
    if not any(name.endswith("models/model.json") for name in names):
        return "it holds no program, models/model.json"
    has_some = not lists or b"path_name" in lists[0]  # a program without parameters has an empty list
    if has_some and not any(name.endswith("weights/weight_0") for name in names):
        return "its parameters are missing, or it holds another version of the format"
    return ""


_registered: list[str] = []
"""Packages that were imported because a program returns their objects."""


def _returns_objects(path: Path) -> bool:
    """Whether a program returns objects of transformers."""
    try:
        with zipfile.ZipFile(path) as archive:
            models = [name for name in archive.namelist() if name.endswith(".json")]
            return any(b"transformers." in archive.read(name) for name in models)
    except (OSError, zipfile.BadZipFile):
        return False


def _register_outputs(path: Path) -> None:
    """Import transformers, whose output classes (``transformers.ModelOutput``) a program returns.

    Raises
    ------
    ModelError
        transformers is not installed.
    """
    try:
        import transformers.modeling_outputs
    except ImportError:
        raise ModelError(
            f"{path}: its results are objects of the package transformers, which is not installed: "
            "pip install transformers, or export a module that returns tensors"
        ) from None
    _registered.append(transformers.__name__)


def open_exported_program(program: Any, name: str, where: str) -> ModelSource:
    """Read what a torch.export program declares; parameters and buffers keep the names of ``state_dict``.

    The program is converted once, with its symbols, however many shapes are bound afterwards.
    """
    importer, symbolic = import_exported_program(program, name, where), _symbolic_importer(program, name, where)
    names = _names_of_symbols(program)
    ranges = {
        names.get(str(symbol), str(symbol)): (max(0, _whole(allowed.lower) or 0), _whole(allowed.upper))
        for symbol, allowed in program.range_constraints.items()
    }
    return ModelSource(
        name,
        where,
        declared_inputs(program),
        importer,
        lambda: _describe(program),
        hints=lambda: _exported_sizes(program),
        symbolic=symbolic,
        ranges=ranges,
    )


def _whole(limit: Any) -> int | None:
    """Return a limit of a range, None if it is infinite."""
    try:
        return int(limit)
    except (OverflowError, TypeError, ValueError, AttributeError):
        return None


def _symbolic_importer(program: Any, name: str, where: str) -> Callable[[Values], ImportedModel]:
    return lambda constants: freeze_inputs(_convert(program, name, where, ""), constants, where)


def _names_of_symbols(program: Any) -> dict[str, str]:
    """Return the names that the user gave to symbols (``torch.export.Dim``); files of ``torch.export.save`` lack them."""
    names: dict[str, str] = {}
    for node in program.graph.nodes:
        sizes = getattr(node.meta.get("val"), "shape", ()) if node.op == "placeholder" else ()
        for axis, size in enumerate(sizes):
            if isinstance(size, int) or not size.node.expr.is_symbol:
                continue
            given = getattr(size.node.shape_env, "source_name_to_debug_name", {}).get(
                f"L['{node.name}'].size()[{axis}]"
            )
            if given and given.isidentifier() and not given.startswith("_") and given not in names.values():
                names.setdefault(str(size.node.expr), given)
    return names


def _exported_sizes(program: Any) -> Hints:
    """Return the sizes of the inputs with which the program was exported: they are in its ranges and fit each other."""
    shapes = {node.name: getattr(node.meta.get("val"), "shape", ()) for node in program.graph.nodes}
    return Hints(
        {
            (item.name, axis): int(hint)
            for item in declared_inputs(program)
            for axis, size in enumerate(shapes[item.name])
            if (hint := getattr(getattr(size, "node", None), "hint", None)) is not None
        }
    )


def _describe(program: Any) -> Description:
    import torch

    called = [node.target for node in program.graph.nodes if node.op == "call_function"]
    operators = Counter(str(target).removesuffix(".default") for target in called)
    values = {**dict(program.named_buffers()), **program.state_dict}
    tensors = [value for value in (*values.values(), *program.constants.values()) if isinstance(value, torch.Tensor)]
    outputs = []
    for spec, argument in zip(program.graph_signature.output_specs, _results(program), strict=False):
        value = getattr(argument, "meta", {}).get("val")
        if spec.kind.name == "USER_OUTPUT" and value is not None and hasattr(value, "shape"):
            dtype = str(value.dtype).removeprefix("torch.")
            outputs.append(DeclaredInput(spec.arg.name, tuple(map(_dimension, value.shape)), dtype))
    ranges = {
        str(symbol): f"{allowed.lower} to {allowed.upper}" for symbol, allowed in program.range_constraints.items()
    }
    about = {"torch": torch.__version__, **{f"size of {symbol}": text for symbol, text in ranges.items()}}
    size = sum(value.numel() * value.element_size() for value in tensors)
    return Description("torch.export", about, tuple(outputs), dict(operators.most_common()), len(tensors), size)


def _results(program: Any) -> Any:
    return next(node.args[0] for node in program.graph.nodes if node.op == "output")


def import_exported_program(program: Any, name: str, where: str, prefix: str = "") -> Importer:
    """Return the importer of a program for static shapes; ``prefix`` is removed from the names of its parameters."""

    @cache
    def converted() -> ImportedModel:
        return _convert(program, name, where, prefix)

    def import_with(shapes: StaticShapes, constants: Values) -> ImportedModel:
        all_shapes = {**shapes, **{key: value.shape for key, value in constants.items()}}
        _check_ranges(program, all_shapes, where)
        try:
            return bind_module(converted(), shapes, constants, where)
        except ModelError as error:
            if not isinstance(error.__cause__, OpenSizes):
                raise
        return bind_module(
            _convert(_exported_with(program, all_shapes, where), name, where, prefix), shapes, constants, where
        )

    return import_with


def _exported_with(program: Any, shapes: StaticShapes, where: str) -> Any:
    """Export a program again with fixed sizes, since TVM or a converter cannot express all symbolic ones."""
    import torch
    from torch.utils import _pytree as pytree

    nodes = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    arguments = [
        torch.zeros(shapes[spec.arg.name], dtype=nodes[spec.arg.name].dtype)
        if spec.arg.name in shapes
        else spec.arg.value
        for spec in program.graph_signature.input_specs
        if spec.kind.name == "USER_INPUT"
    ]
    positional, named = pytree.tree_unflatten(arguments, program.call_spec.in_spec)
    try:
        with warnings.catch_warnings(), quiet("torch.export"):
            warnings.simplefilter("ignore")
            return torch.export.export(program.module(), positional, named)
    except Exception as error:
        given = ", ".join(f"{name}{list(shape)}" for name, shape in shapes.items())
        raise ModelError(
            f"{where}: torch cannot run the program with the shapes {given} ({first_line(error)}); give others, for example "
            "those that it was exported with"
        ) from None


def declared_inputs(program: Any) -> tuple[DeclaredInput, ...]:
    """Return the tensor inputs of a program, without those that torch.export turned into constants."""
    declared = []
    names = _names_of_symbols(program)
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    for spec in program.graph_signature.input_specs:
        value = nodes[spec.arg.name].meta.get("val") if spec.arg.name in nodes else None
        if spec.kind.name == "USER_INPUT" and value is not None and hasattr(value, "shape"):
            dtype = str(value.dtype).removeprefix("torch.")
            declared.append(DeclaredInput(spec.arg.name, tuple(_dimension(size, names) for size in value.shape), dtype))
    return tuple(declared)


def _dimension(size: Any, names: Mapping[str, str] | None = None) -> Dimension:
    if isinstance(size, int):
        return size
    expression = size.node.expr
    if expression.is_number:
        return int(expression)
    if expression.is_symbol:
        return (names or {}).get(str(expression), str(expression))
    symbols = {(names or {}).get(str(symbol), str(symbol)): symbol for symbol in expression.free_symbols}

    def evaluate(sizes: Mapping[str, int]) -> int:
        return int(expression.subs({symbol: sizes[name] for name, symbol in symbols.items()}))

    text = str(expression.subs({symbol: type(symbol)(name) for name, symbol in symbols.items()}))
    return Expression(text, tuple(sorted(symbols)), evaluate)


def _convert(program: Any, name: str, where: str, prefix: str) -> ImportedModel:
    from .convert_program import convert_program, decomposed, refuse_lone_symbols

    _check_inputs(program, where)
    _refuse_complex(program, where)
    try:
        with warnings.catch_warnings(), _views_as_reshapes(program):
            warnings.simplefilter("ignore")
            refuse_lone_symbols(program)
            core = decomposed(program)
            mod = convert_program(core)
    except RefusedOperator as error:
        raise ModelError(f"{where}: {error}") from error
    except UnsupportedOperator as error:
        raise ModelError(
            f"{where}: {error}; change it in the model, or export the model to ONNX and import that"
        ) from error
    except Exception as error:
        raise ModelError(
            f"{where}: torch or TVM's torch frontend cannot convert it ({first_line(error)}); change the model, or "
            "export it to ONNX and import that"
        ) from error
    if written := sorted(set(core.graph_signature.buffers_to_mutate.values())):
        warnings.warn(
            f"{where}: it writes to its buffers {', '.join(written)}; the writes are lost after each run, and the next "
            "run starts from the exported values",
            ModelWarning,
            stacklevel=2,
        )
    targets = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs if spec.target}
    return ImportedModel(*_parameters(mod, program, targets, prefix), name, _output_names(program))


def _output_names(program: Any) -> tuple[str, ...]:
    """Return the names of the outputs: keys or field names of what the program returns, else names of nodes."""
    from torch.utils import _pytree as pytree

    from .convert_program import is_result

    specs = [spec for spec in program.graph_signature.output_specs if spec.kind.name == "USER_OUTPUT"]
    structure = program.call_spec.out_spec
    if structure.num_leaves != len(specs):
        return tuple(spec.arg.name for spec in specs if is_result(spec))
    paths, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(specs, structure))
    names = []
    for path, spec in paths:
        keys = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", "")))) for key in path]
        named = any(not isinstance(key, pytree.SequenceKey) for key in path)
        if is_result(spec):
            names.append(".".join(keys) if named else spec.arg.name)
    return tuple(names)


@contextmanager
def _views_as_reshapes(program: Any) -> Iterator[None]:
    """Replace views by reshapes while the program is decomposed.

    A decomposition may change the memory layout (that of scaled dot product attention does), and torch then refuses the
    view. Relax has no layouts, so both are the same.
    """
    import torch

    view, reshape = torch.ops.aten.view.default, torch.ops.aten.reshape.default
    views = [node for node in program.graph.nodes if node.target is view]
    for node in views:
        node.target = reshape
    try:
        yield
    finally:
        for node in views:
            node.target = view


def _check_inputs(program: Any, where: str) -> None:
    """Refuse numbers that stay open as inputs; other inputs that are no tensors are constants of the program."""
    for spec in program.graph_signature.input_specs:
        if spec.kind.name == "USER_INPUT" and type(spec.arg).__name__ not in ("TensorArgument", "ConstantArgument"):
            raise ModelError(
                f"{where}: input {spec.arg.name!r} is a number that torch.export left open; export the program with it "
                "fixed (without dynamic_shapes for it), or make it a tensor"
            )


def _refuse_complex(program: Any, where: str) -> None:
    """Refuse complex inputs, outputs and parameters; only inside of a program may tensors be complex."""
    nodes = {node.name: node for node in program.graph.nodes}
    signatures = (("input", program.graph_signature.input_specs), ("output", program.graph_signature.output_specs))
    for direction, specs in signatures:
        for spec in specs:
            value = nodes[spec.arg.name].meta.get("val") if getattr(spec.arg, "name", None) in nodes else None
            if value is not None and hasattr(value, "is_complex") and value.is_complex():
                subject = (
                    f"{spec.kind.name.lower()} {spec.target!r}" if spec.target else f"{direction} {spec.arg.name!r}"
                )
                raise ModelError(
                    f"{where}: {subject} is complex; pass its parts as a last dimension of 2, with torch.view_as_real and "
                    "torch.view_as_complex in the model"
                )


def _check_ranges(program: Any, shapes: StaticShapes, where: str) -> None:
    """Refuse a size outside of the range for which torch.export checked the program."""
    ranges = {str(symbol): allowed for symbol, allowed in program.range_constraints.items()}
    for node in program.graph.nodes:
        shape, declared = shapes.get(node.name, ()), getattr(node.meta.get("val"), "shape", ())
        for axis, (size, symbol) in enumerate(zip(shape, declared, strict=False)):
            allowed = ranges.get(str(symbol))
            if allowed is not None and not allowed.lower <= size <= allowed.upper:
                upper = "or more" if str(allowed.upper) == "int_oo" else f"to {allowed.upper}"
                raise ModelError(
                    f"{where}: input {node.name!r}: dimension {axis} is given as {size}; the program was exported for "
                    f"{allowed.lower} {upper}; give such a size, or export the program for others (dynamic_shapes)"
                )


def _parameters(
    mod: tvm.IRModule, program: Any, targets: dict[str, str], prefix: str
) -> tuple[tvm.IRModule, dict[str, Any]]:
    """Rename the parameter arguments to their names in torch, and take their values from the program.

    Values are looked up by name: the frontend's own list follows ``named_parameters``, whose order can differ from that
    of the arguments if modules share weights.
    """
    function = mod["main"].without_attr("params")
    inputs = int(function.attrs["num_input"])
    values = {**dict(program.named_buffers()), **program.constants, **program.state_dict}
    renamed, parameters = {}, {}
    for variable in function.params[inputs:]:
        target = targets.get(variable.name, variable.name)
        named = target.removeprefix(prefix)
        renamed[variable] = relax.Var(named, variable.ty)
        parameters[named] = _to_numpy(values[target])
    params = [renamed.get(v, v) for v in function.params]
    body = _replace(function.body, renamed)
    result = mod.clone()
    result["main"] = relax.Function(params, body, function.ret_ty, function.is_pure, function.attrs)
    return result, parameters


def _replace(body: relax.Expr, variables: dict[relax.Var, relax.Var]) -> relax.Expr:
    @relax.expr_functor.mutator
    class Renamer(relax.PyExprMutator):
        def visit_var_(self, op: relax.Var) -> relax.Expr:
            return variables.get(op, op)

    return Renamer().visit_expr(body)


def _to_numpy(value: Any) -> Any:
    import torch

    value = value.detach().cpu().contiguous()
    if value.dtype == torch.bfloat16:  # NumPy has no bfloat16
        import ml_dtypes

        return value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return value.numpy()
