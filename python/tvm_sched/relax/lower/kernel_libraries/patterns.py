"""Kernels of libraries as patterns of TVM: `FuseOpsByPattern` finds them, `RunCodegen` compiles them, without a schedule."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial, reduce
from operator import or_
from typing import Any

import tvm
from tvm import relax
from tvm.relax.backend.pattern_registry import register_patterns as register
from tvm.relax.dpl import DFPattern, is_op, wildcard

from tvm_sched_runtime.errors import InputError

from .kernel_library import KernelSet, get_library

CODEGENS = {"onednn": "tvm_sched_onednn", "nvidia": "tvm_sched_nvidia"}
"""The name of each library as a code generator of TVM, with which the names of its patterns begin."""
_ACTIVATIONS = ("nn.relu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "sigmoid", "tanh", "clip")
_ALONE = {"nn.softmax": 1, "nn.layer_norm": 3, "nn.rms_norm": 2, "nn.max_pool2d": 1, "nn.avg_pool2d": 1}
"""Operators that are kernels by themselves, with their tensors."""


@cache
def register_patterns() -> tuple[str, ...]:
    """Register the patterns of oneDNN and of cuBLASLt with cuDNN, and return their names; a second call does nothing.

    ``tvm.relax.backend.get_patterns_with_prefix("tvm_sched_onednn")`` and ``"tvm_sched_nvidia"`` then give them for
    ``FuseOpsByPattern(patterns, bind_constants=False, annotate_codegen=True)``, which ``RunCodegen`` follows. A pattern
    matches what the library can compute: products and convolutions with following additions and activation, and for oneDNN
    also normalisations, softmax and pools.

    Examples
    --------
    >>> from tvm.relax.backend import get_patterns_with_prefix
    >>> from tvm_sched.relax.lower.kernel_libraries import register_patterns
    >>> names = register_patterns()
    >>> [pattern.name for pattern in get_patterns_with_prefix("tvm_sched_nvidia")][:2]
    ['tvm_sched_nvidia.matmul_add_add_activation', 'tvm_sched_nvidia.conv2d_add_add_activation']
    """
    entries: list[tuple[str, DFPattern, Mapping[str, DFPattern], Callable[[Any], bool]]] = []
    for library, codegen in CODEGENS.items():
        tvm.register_global_func(f"relax.ext.{codegen}", partial(_compile, library), override=True)
        check = partial(_is_kernel, library)
        entries += [(f"{codegen}.{name}", pattern, {}, check) for name, pattern in _shapes(alone=library == "onednn")]
    register(entries)
    return tuple(name for name, *_ in entries)


def _shapes(alone: bool) -> Iterable[tuple[str, DFPattern]]:
    """Yield the patterns, the longest last: TVM tries later ones first."""
    if alone:
        for name, count in _ALONE.items():
            yield name.removeprefix("nn."), is_op(f"relax.{name}")(*(wildcard() for _ in range(count)))
    for additions, activated in ((0, False), (0, True), (1, False), (1, True), (2, False), (2, True)):
        for head in ("nn.conv2d", "matmul"):
            pattern = is_op(f"relax.{head}")(wildcard(), wildcard())
            for _ in range(additions):
                pattern = is_op("relax.add")(pattern, wildcard()) | is_op("relax.add")(wildcard(), pattern)
            if activated:
                pattern = reduce(or_, (_activation(name, pattern) for name in _ACTIVATIONS))
            steps = [head.removeprefix("nn."), *["add"] * additions, *["activation"] * activated]
            yield "_".join(steps), pattern


def _activation(name: str, pattern: DFPattern) -> DFPattern:
    return is_op(f"relax.{name}")(pattern, *([wildcard(), wildcard()] if name == "clip" else []))


def _is_kernel(library: str, context: Any) -> bool:
    """Whether a library computes a match by one kernel that reads its arguments in the order of their first use."""
    unbound = dict(context.matched_bindings)
    values = set(unbound)
    ordered = []
    while unbound:
        ready = [v for v, value in unbound.items() if not values & unbound.keys() & set(_operands(value))]
        ordered += [(variable, unbound.pop(variable)) for variable in ready]
    return _kernel(library, ordered, []) is not None


def _compile(
    library: str, functions: Sequence[relax.Function], options: Any, constants: Any
) -> list[tvm.runtime.Module]:
    """Return the module of a library with the functions that its patterns fused; TVM's `RunCodegen` calls this."""
    kernels = {}
    for function in functions:
        name = str(function.attrs["global_symbol"])
        bindings = [binding for block in function.body.blocks for binding in block.bindings]
        inner = [binding.value for binding in bindings if isinstance(binding.value, relax.Function)]
        described = None
        if len(inner) == 1:
            parts = [(b.var, b.value) for block in inner[0].body.blocks for b in block.bindings]
            described = _kernel(library, parts, list(inner[0].params))
        if described is None:
            raise InputError(
                f"{name!r} is no single kernel of {library!r} that takes its arguments in their order; fuse with "
                "FuseOpsByPattern(patterns, bind_constants=False, annotate_codegen=True), and merge no composite functions"
            )
        kernels[name] = described
    return [get_library(library).make_module(kernels, {}, None)]


def _kernel(
    library: str, bindings: Sequence[tuple[relax.Var, relax.Expr]], params: list[relax.Var]
) -> dict[str, Any] | None:
    """Return a library's description of operators that it computes by one kernel, else None.

    ``params`` are the variables that these may read; without them the arguments are those that they read, in this order.
    """
    made = [variable for variable, _ in bindings]
    given: dict[relax.Expr, relax.Var] = {}
    for operand in (operand for _, value in bindings for operand in _operands(value) if operand not in made):
        given.setdefault(operand, relax.Var("argument", operand.ty))
    if params and [p for p in params if p in given] != list(given):
        return None
    builder = relax.BlockBuilder()
    values: dict[relax.Expr, relax.Expr] = dict(given)
    with builder.function("main", list(given.values())):
        with builder.dataflow():
            for variable, value in bindings[:-1]:
                values[variable] = builder.emit(_with(value, values))
            result = builder.emit_output(_with(bindings[-1][1], values))
        builder.emit_func_output(result)
    claimed = KernelSet(library)
    main = get_library(library).claim(builder.get(), claimed, {})["main"]
    calls = [binding.value for block in main.body.blocks for binding in block.bindings]
    calls = [call for call in calls if isinstance(call, relax.Call)]
    if len(claimed.documents) != 1 or len(calls) != 1 or list(calls[0].args[1].fields) != list(main.params):
        return None
    (document,) = claimed.documents.values()
    kernel: dict[str, Any] = json.loads(document)["kernel"]
    return kernel


def _operands(value: relax.Expr) -> list[relax.Expr]:
    """Return the tensors that a call reads."""
    arguments = value.args if isinstance(value, relax.Call) else [value]
    return [each for each in arguments if isinstance(each.ty, relax.TensorType)]


def _with(value: relax.Expr, values: Mapping[relax.Expr, relax.Expr]) -> relax.Expr:
    if not isinstance(value, relax.Call):
        return values.get(value, value)
    return relax.Call(value.op, [values.get(each, each) for each in value.args], value.attrs, value.ty_args)
