"""Conversion of ``If`` and ``Loop`` that data decide: calls that name their bodies (`tvm_frontends.flow_calls`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

from ..errors import UnsupportedNode
from ..flow_calls import CALL, CARRIED, NO_LIMIT, result_values
from ..tensor_types import dtype_of, numpy_dtype
from .onnx_files import subgraphs
from .operators.nodes import constant_of, node_text
from .shape_values import expression_of

if TYPE_CHECKING:
    import onnx

Convert = Callable[[Any, Mapping[str, tuple[Any, ...]], Mapping[str, Any], str], tvm.IRModule]
"""Converts a model whose inputs have these shapes, of numbers and symbols, and these constant values."""


class ControlFlow:
    """The control flow of a graph that data decide.

    Parameters
    ----------
    builder : relax.BlockBuilder
    model : onnx.ModelProto
        The model, for its opsets.
    known : callable
        Returns the value of a name of the graph.
    convert : callable
        Converts a body.
    """

    def __init__(
        self, builder: relax.BlockBuilder, model: onnx.ModelProto, known: Callable[[str], relax.Expr], convert: Convert
    ) -> None:
        self.builder, self.model, self.known, self.convert = builder, model, known, convert
        self.bodies: dict[str, dict[str, tvm.IRModule]] = {}

    def results(self, node: Any) -> list[relax.Expr]:
        """Convert a node; return its results.

        Raises
        ------
        UnsupportedNode
            A result is a sequence, or its data type or number of dimensions depends on data.
        """
        graphs = {attribute.name: attribute.g for attribute in node.attribute if attribute.HasField("g")}
        for item in (item for graph in graphs.values() for item in (*graph.input, *graph.output)):
            kind = item.type.WhichOneof("value")
            if kind not in ("tensor_type", None):
                raise UnsupportedNode(
                    f"{node_text(node)}: {item.name!r} is no tensor ({kind.removesuffix('_type')}), and data decide what "
                    "runs: what its bodies take and return has to be tensors"
                )
        scope = Scope({name: self.known(name) for graph in graphs.values() for name in outer_names(graph)})
        return self._loop(node, graphs["body"], scope) if "body" in graphs else self._branch(node, graphs, scope)

    def _branch(self, node: Any, graphs: Mapping[str, onnx.GraphProto], scope: Scope) -> list[relax.Expr]:
        bodies = {which: self._body(node, graphs[f"{which}_branch"], [], {}, scope) for which in ("then", "else")}
        given = [list(operand.ty.shape.values) for operand in scope.operands]
        pairs = zip(*(_result_types(mod, given) for mod in bodies.values()), strict=True)
        types = [self._joined(node, name, *pair) for name, pair in zip(node.output, pairs, strict=True)]
        return self._emit("if", node, bodies, [self.known(node.input[0]), *scope.operands], types)

    def _loop(self, node: Any, graph: onnx.GraphProto, scope: Scope) -> list[relax.Expr]:
        limit, condition, *initial = node.input
        most = self.known(limit) if limit else relax.const(NO_LIMIT, "int64")
        going = self.known(condition) if condition else relax.const(True, "bool")
        carried = [self.known(name) for name in initial]
        sizes = [list(value.ty.shape.values) for value in carried]
        changing: list[list[int]] = [[] for _ in carried]
        iteration, true, *names = (item.name for item in graph.input)
        rank = len(graph.input[1].type.tensor_type.shape.dim)
        while True:
            inside = [
                [size if axis in axes else scope.inside(size) for axis, size in enumerate(each)]
                for each, axes in zip(sizes, changing, strict=True)
            ]
            own = [(iteration, (), "int64"), *zip(names, inside, map(dtype_of, carried), strict=True)]
            mod = self._body(node, graph, own, {true: np.ones((1,) * rank, bool)}, scope)
            _, *types = _result_types(mod, [[], *sizes, *(list(each.ty.shape.values) for each in scope.operands)])
            changed = False
            for k, (name, kept) in enumerate(zip(names, types, strict=False)):
                self._check_alike(node, name, (sizes[k], dtype_of(carried[k])), kept)
                for axis, size in enumerate(kept[0]):
                    if axis not in changing[k] and not _equal(size, sizes[k][axis]):
                        sizes[k][axis], changed = _symbol(f"each_{name}", axis), True
                        changing[k].append(axis)
            if not changed:
                break
        own_symbols = {sizes[k][axis] for k, axes in enumerate(changing) for axis in axes}
        always = [constant_of(each) for each in (result_values(mod["main"].body)[0], going)]
        if not limit and always[0] is not None and always[0].all():
            raise UnsupportedNode(
                f"{node_text(node)} never ends once it has begun: it has no trip count and its condition stays true; "
                "correct it"
            )
        trips = constant_of(most)
        if trips is not None and all(each is not None and each.all() for each in always):
            number: Any = int(trips.reshape(-1)[0])
        else:
            number = None
        found = []
        for k, (name, (each, dtype)) in enumerate(zip(node.output, types, strict=True)):
            outside = [
                size if size is not None and not own_symbols & set(tirx.analysis.undefined_vars(size)) else None
                for size in each
            ]
            if k >= len(carried):
                outside = [None if number is None else tirx.IntImm("int64", max(number, 0)), *outside]
            found.append(
                relax.TensorType(
                    [_symbol(name, axis) if size is None else size for axis, size in enumerate(outside)], dtype
                )
            )
        body = mod.with_attr(CARRIED, changing)
        return self._emit("loop", node, {"body": body}, [most, going, *carried, *scope.operands], found)

    def _body(
        self,
        node: Any,
        graph: onnx.GraphProto,
        own: Sequence[tuple[str, Sequence[Any], str]],
        constants: Mapping[str, Any],
        scope: Scope,
    ) -> tvm.IRModule:
        """Convert a body; ``own`` are its inputs (name, shape and dtype), ``constants`` those that have a value."""
        from onnx import ModelProto, helper

        constants = {**scope.constants, **constants}
        inputs = [*own, *scope.inputs, *((name, array.shape, array.dtype.name) for name, array in constants.items())]
        model = ModelProto(ir_version=self.model.ir_version, opset_import=self.model.opset_import)
        model.graph.CopyFrom(graph)
        del model.graph.input[:]
        for name, shape, dtype in inputs:
            kind = helper.np_dtype_to_tensor_dtype(numpy_dtype(dtype))
            sizes = [size.name if isinstance(size, tirx.Var) else int(size) for size in shape]
            model.graph.input.append(helper.make_tensor_value_info(name, kind, sizes))
        shapes = {name: tuple(shape) for name, shape, _ in (*own, *scope.inputs)}
        return self.convert(model, shapes, constants, f"a body of {node_text(node)}")

    def _joined(self, node: Any, name: str, one: ResultType, other: ResultType) -> relax.TensorType:
        """Return the type of a result that is the one or the other: sizes that differ get a symbol."""
        self._check_alike(node, name, one, other)
        pairs = enumerate(zip(one[0], other[0], strict=True))
        return relax.TensorType([a if _equal(a, b) else _symbol(name, axis) for axis, (a, b) in pairs], one[1])

    def _check_alike(self, node: Any, name: str, one: ResultType, other: ResultType) -> None:
        if one[1] == other[1] and len(one[0]) == len(other[0]):
            return
        texts = [f"{dtype} of {len(sizes)} dimensions" for sizes, dtype in (one, other)]
        raise UnsupportedNode(
            f"{node_text(node)}: {name!r} is {texts[0]} or {texts[1]}, and data decide which: it must have one data type "
            "and one number of dimensions"
        )

    def _emit(
        self,
        kind: str,
        node: Any,
        bodies: dict[str, tvm.IRModule],
        operands: Sequence[relax.Expr],
        types: Sequence[Any],
    ) -> list[relax.Expr]:
        key = f"{len(self.bodies)}:{node.name or node.output[0]}"
        self.bodies[key] = bodies
        open_types = [relax.TensorType(dtype=ty.dtype, ndim=len(ty.shape.values)) for ty in types]
        key_operand = tvm.ir.StringImm(key)
        call = relax.call_pure_packed(CALL + kind, key_operand, *operands, ty_args=relax.TupleType(open_types))
        value = self.builder.emit(call)
        fields = [self.builder.emit(relax.TupleGetItem(value, k)) for k in range(len(types))]
        return [self.builder.match_cast(field, ty) for field, ty in zip(fields, types, strict=True)]


class Scope:
    """What bodies take from the graph around them: constants, and operands with a symbol for each open size."""

    def __init__(self, values: Mapping[str, relax.Expr]) -> None:
        self.constants: dict[str, Any] = {}
        self.operands: list[relax.Expr] = []
        self.inputs: list[tuple[str, list[Any], str]] = []
        self.sizes: list[tuple[tirx.Var, Any]] = []
        for name, value in values.items():
            if (constant := constant_of(value)) is not None:
                self.constants[name] = constant
                continue
            self.operands.append(value)
            self.inputs.append((name, [self.inside(size) for size in value.ty.shape.values], dtype_of(value)))

    def inside(self, size: Any) -> Any:
        """Return a size of the graph as bodies see it."""
        if isinstance(size, tirx.IntImm):
            return int(size)
        known = next((variable for variable, other in self.sizes if _equal(other, size)), None)
        if known is None:
            known = _symbol("outer", len(self.sizes))
            self.sizes.append((known, size))
        return known


ResultType = tuple[list[Any], str]
"""Sizes, None where only the body knows it, and data type."""


def _result_types(mod: tvm.IRModule, given: Sequence[Sequence[Any]]) -> list[ResultType]:
    """Return the types of a body's results; ``given`` are the sizes of what it takes."""
    main = mod["main"]
    sizes: dict[Any, Any] = {}
    for param, known in zip(main.params, given, strict=True):
        sizes |= {
            own: size for own, size in zip(param.ty.shape.values, known, strict=True) if isinstance(own, tirx.Var)
        }

    def outside(size: Any) -> Any:
        lacking = set(tirx.analysis.undefined_vars(size)) - set(sizes)
        return None if lacking else tvm_ffi.structural_map(size, (tirx.Var, lambda v: expression_of(sizes[v])))

    types = main.ret_ty.fields if isinstance(main.ret_ty, relax.TupleType) else [main.ret_ty]
    return [
        (list(map(outside, ty.shape.values)) if ty.shape is not None else [None] * ty.ndim, str(ty.dtype.dtype))
        for ty in types
    ]


def outer_names(graph: onnx.GraphProto) -> list[str]:
    """Return the names that a body reads from the graphs around it."""
    read = [name for node in graph.node for name in (*node.input, *names_of_bodies(node)) if name]
    own = {item.name for item in (*graph.input, *graph.initializer)} | {
        name for node in graph.node for name in node.output
    }
    return [name for name in dict.fromkeys((*read, *(item.name for item in graph.output))) if name not in own]


def names_of_bodies(node: Any) -> list[str]:
    """Return the names that the bodies of a node read from the graphs around them."""
    return [name for attribute in node.attribute for body in subgraphs(attribute) for name in outer_names(body)]


def _equal(one: Any, other: Any) -> bool:
    return one is not None and other is not None and bool(tvm.sym.Analyzer().can_prove_equal(one, other))


def _symbol(name: str, axis: int) -> tirx.Var:
    return tirx.Var(f"{re.sub(r'[^A-Za-z0-9]', '_', name)}_{axis}", "int64")
