"""Import of torch.export programs through TVM's frontend, with the names of their parameters kept."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from ...errors import InputError
from .model import ImportedModel
from .relax import bind_module
from .torch_recurrent import CONVERTERS, has_recurrent_layers, without_recurrent_decompositions


def read_exported_program(path: Path) -> Any:
    """Read a ``.pt2`` file of ``torch.export.save``."""
    try:
        import torch
    except ImportError:
        raise InputError(f"{path}: reading torch.export programs needs torch: pip install 'tvm_sched[torch]'") from None
    try:
        with warnings.catch_warnings(), _quiet():
            warnings.simplefilter("ignore")
            return torch.export.load(path)
    except Exception as error:  # zipfile, json, torch: several unrelated classes
        first = (str(error).strip().splitlines() or [type(error).__name__])[0].split(" Please check the warnings")[0]
        raise InputError(
            f"{path}: not a readable torch.export program ({first}); write it with torch.export.save"
        ) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from logging the traceback of an error that it then raises."""
    logger = logging.getLogger("torch.export")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def from_exported_program(program: Any, shapes: Any, name: str, where: str) -> ImportedModel:
    """Import a torch.export program; parameters and buffers keep the names of ``state_dict``."""
    from tvm.relax.frontend.torch import from_exported_program as convert

    _check_inputs(program, where)
    _check_ranges(program, shapes or {}, where)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            whole = has_recurrent_layers(program)
            mod = convert(
                without_recurrent_decompositions(program) if whole else program,
                keep_params_as_input=True,
                unwrap_unit_return_tuple=True,
                run_ep_decomposition=not whole,
                custom_convert_map=CONVERTERS,
            )
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(
            f"{where}: TVM's torch frontend failed: {lines[-1] if lines[0].startswith('Trace') else lines[0]}"
        ) from error
    targets = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs if spec.target}
    mod, parameters = _parameters(mod, program, targets)
    return bind_module(mod, parameters, shapes, name, where)


def _check_inputs(program: Any, where: str) -> None:
    """TVM's frontend knows tensors only."""
    for spec in program.graph_signature.input_specs:
        if spec.kind.name == "USER_INPUT" and type(spec.arg).__name__ != "TensorArgument":
            said = f" ({spec.arg.value!r})" if hasattr(spec.arg, "value") else ""
            raise InputError(
                f"{where}: input {spec.arg.name!r} is no tensor{said}; TVM's torch frontend takes tensors only: make it "
                "a tensor, or a constant of the module"
            )


def _check_ranges(program: Any, shapes: Mapping[str, Sequence[int]], where: str) -> None:
    """A dimension may have the sizes for which torch.export checked the program, and no others."""
    ranges = {str(symbol): allowed for symbol, allowed in program.range_constraints.items()}
    for node in program.graph.nodes:
        given, declared = shapes.get(node.name, ()), getattr(node.meta.get("val"), "shape", ())
        for axis, (size, symbol) in enumerate(zip(given, declared, strict=False)):
            allowed = ranges.get(str(symbol))
            if allowed is not None and not allowed.lower <= size <= allowed.upper:
                raise InputError(
                    f"{where}: input {node.name!r}: dimension {axis} is given as {size}; the program was exported for "
                    f"{allowed.lower} to {allowed.upper}"
                )


def _parameters(mod: tvm.IRModule, program: Any, targets: dict[str, str]) -> tuple[tvm.IRModule, dict[str, Any]]:
    """Rename the parameter arguments to their names in torch and take their values from the program.

    The frontend's own list of values follows ``named_parameters``, which can differ from the order of the arguments
    (shared weights), so values are looked up by name.
    """
    function = mod["main"].without_attr("params")
    inputs = int(function.attrs["num_input"])
    values = {**dict(program.named_buffers()), **program.constants, **program.state_dict}
    renamed, parameters = {}, {}
    for variable in function.params[inputs:]:
        target = targets.get(variable.name, variable.name)
        renamed[variable] = relax.Var(target, variable.ty)
        parameters[target] = _to_numpy(values[target])
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
    if value.dtype == torch.bfloat16:  # numpy has no bfloat16 of its own
        import ml_dtypes

        return value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return value.numpy()
