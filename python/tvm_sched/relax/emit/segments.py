"""Segments of a model in which data decide sizes: each is a template whose sizes the segments before it compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_frontends.shapes import DeclaredInput
from tvm_sched_runtime.errors import InputError

from ..ir.attributes import COMPILE_TARGET, NAME, TAIL
from ..lower.dynamic_tail import ENTRY
from .any_shape import AnyShape, Template, lower_open
from .operand_sizes import tensors


@dataclass(frozen=True)
class Size:
    """A size that data decide: an element of an int64 tensor."""

    tensor: relax.Var
    element: int


@dataclass(frozen=True)
class Segment:
    """A part of the model, as a model of its own: ``takes`` says what each of its inputs is."""

    template: Template
    takes: tuple[relax.Var | Size, ...]
    results: tuple[relax.Var, ...]


@dataclass(frozen=True)
class Segments:
    """What follows the first, static segment of a model."""

    arguments: tuple[relax.Var, ...]
    """The results of the first segment, which is the model's ``main``."""
    parts: tuple[Segment, ...]
    results: Any
    """The model's result: arguments and results of the parts, in nested tuples."""


def make_segments(mod: tvm.IRModule, schedule: Callable[[AnyShape], Template]) -> Segments:
    """Lower and schedule what `SplitTail` moved out of ``main``; a size ends the segment that computes it.

    Raises
    ------
    InputError
        Kernels for every size do not suffice, as for `lower_any_shape`.
    """
    tail: tvm.IRModule = mod.attrs[TAIL]
    function = tail[ENTRY]
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    shapes: dict[relax.Var, relax.Var] = {}  # of tensors whose elements are sizes
    sizes: dict[tirx.Var, Size] = {}
    level: dict[Any, int] = dict.fromkeys(function.params, 0)  # of sizes, too: the first segment that has them
    parts: dict[int, list[relax.Binding]] = {}
    for binding in bindings:
        if (tensor := _shape_source(binding.value)) is not None:
            shapes[binding.var] = tensor
        elif isinstance(binding, relax.MatchCast) and binding.value in shapes:
            tensor = shapes[binding.value]
            for element, size in enumerate(binding.var.ty.values):
                if not isinstance(size, tirx.Var) or size in sizes:
                    raise InputError(f"size {size} that data decide has to equal another")
                sizes[size], level[size] = Size(tensor, element), level[tensor] + 1
        else:
            needed = [*relax.analysis.free_vars(binding.value), *_symbols(binding)]
            level[binding.var] = max([1, *(level[each] for each in needed if each in level)])
            parts.setdefault(level[binding.var], []).append(binding)
    wanted = {number: set(_free(part)) for number, part in parts.items()}
    last = set(relax.analysis.free_vars(function.body.body))
    segments = []
    for number in sorted(parts):
        own = [binding.var for binding in parts[number]]
        later = last.union(*(wanted[other] for other in parts if other > number))
        later |= {size.tensor for symbol, size in sizes.items() if level[symbol] > number}
        results = tuple(variable for variable in own if variable in later and isinstance(variable.ty, relax.TensorType))
        taken = [each for each in level if each in wanted[number] and each not in own and each not in sizes]
        if others := [each.name for each in taken if not isinstance(each.ty, relax.TensorType)]:
            raise InputError(f"an operator behind {others[0]} reads a value that is no tensor")
        known = {symbol: size for symbol, size in sizes.items() if level[symbol] <= number}
        if not taken and not known:
            raise InputError("a part of the model takes nothing")
        model = _model(mod, tail, parts[number], taken, known, results)
        segments.append(Segment(schedule(model), (*known.values(), *taken), results))
    return Segments(tuple(function.params), tuple(segments), _tree(function.body.body))


def _tree(result: relax.Expr) -> Any:
    if isinstance(result, relax.Tuple):
        return tuple(map(_tree, result.fields))
    if not isinstance(result.ty, relax.TensorType):
        raise InputError("the model returns a tuple that an operator makes")
    return result


def _shape_source(value: relax.Expr) -> relax.Var | None:
    """Return the tensor whose elements a call makes a shape, before or behind TVM's decomposition."""
    name = getattr(getattr(value, "op", None), "name", "")
    if name == "relax.tensor_to_shape":
        return value.args[0]
    if name == "relax.call_pure_packed" and value.args[0].global_symbol == "vm.builtin.tensor_to_shape":
        return value.args[1]
    return None


def _free(bindings: Sequence[relax.Binding]) -> list[relax.Var]:
    return [variable for binding in bindings for variable in relax.analysis.free_vars(binding.value)]


def _symbols(binding: relax.Binding) -> set[tirx.Var]:
    """Return the symbols in a binding's shapes."""
    found: set[tirx.Var] = set()

    def note(size: Any) -> None:
        found.update(tirx.analysis.undefined_vars(size))

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.ShapeExpr):
            for size in expr.values:
                note(size)

    relax.analysis.post_order_visit(binding.value, visit)
    for ty in tensors(binding.var.ty):
        for size in getattr(ty.shape, "values", ()):
            note(size)
    return found


def _model(
    mod: tvm.IRModule,
    tail: tvm.IRModule,
    bindings: Sequence[relax.Binding],
    taken: Sequence[relax.Var],
    sizes: Mapping[tirx.Var, Size],
    results: tuple[relax.Var, ...],
) -> AnyShape:
    """Make a model of a part of the tail: its inputs are a tensor without content for each size, then ``taken``."""
    lengths = [relax.Var(f"{symbol.name}{k}", relax.TensorType([symbol], "bool")) for k, symbol in enumerate(sizes)]
    body = relax.SeqExpr([relax.BindingBlock(bindings)], relax.Tuple(results))
    function = relax.Function([*lengths, *taken], body, relax.TupleType([each.ty for each in results]), True)
    function = function.with_attrs({"num_input": len(lengths) + len(taken), "global_symbol": "main"})
    kernels = tvm.IRModule({v: f for v, f in tail.functions_items() if isinstance(f, tirx.PrimFunc)})
    builder = relax.BlockBuilder(kernels)
    builder.add_func(function, "main")
    model = relax.transform.DeadCodeElimination(["main"])(builder.finalize())
    model = relax.transform.ConvertToDataflow(1)(model)
    model = model.with_attrs({name: mod.attrs[name] for name in (NAME, COMPILE_TARGET) if name in mod.attrs})
    inputs = tuple(
        DeclaredInput(variable.name, tuple(map(_dimension, variable.ty.shape.values)), str(variable.ty.dtype))
        for variable in (*lengths, *taken)
    )
    return lower_open(model, inputs, {})


def _dimension(size: Any) -> Any:
    return int(size) if isinstance(size, tirx.IntImm) else size.name if isinstance(size, tirx.Var) else None
