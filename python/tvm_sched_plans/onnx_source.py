"""Read an ONNX file as an operator graph of its own nodes, so that a plan can refer to them."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import Operator, OpGraph, Tensor

from .operators import OperatorModel, priced_kind

FREE = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Shape", "Constant")
"""Nodes that move no bytes, or next to none."""


def read_onnx(path: Path, shapes: Mapping[str, Any] | None = None) -> OperatorModel:
    """Read a model, with sizes of all of its tensors by ONNX's shape inference.

    Parameters
    ----------
    shapes : mapping, optional
        An input's name to its shape, or a symbol's to its size.

    Raises
    ------
    InputError
        No ONNX file, an open dimension without a size, a tensor whose size cannot be known before a run.
    """
    onnx = _import_onnx(path)
    try:
        model = onnx.load(os.fspath(path), load_external_data=False)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except Exception as error:  # protobuf's DecodeError has no stable home
        raise InputError(f"{path}: not an ONNX file ({type(error).__name__})") from None
    if not model.graph.node:
        raise InputError(f"{path}: an ONNX file without nodes; there is nothing to place")
    _set_shapes(model, dict(shapes or {}), path)
    try:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:
        raise InputError(f"{path}: ONNX's shape inference fails ({' '.join(str(error).split())[:200]})") from None
    return _Reader(onnx, model, path).model_of_operators()


def _import_onnx(path: Path) -> Any:
    try:
        import onnx
        import onnx.shape_inference
    except ImportError:
        raise InputError(f"{path}: ONNX files need the package onnx: pip install 'tvm_sched[onnx]'") from None
    return onnx


def _set_shapes(model: Any, shapes: dict[str, Any], path: Path) -> None:
    """Set the given sizes of inputs, and infer all other shapes again."""
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    used: set[str] = set()
    for value in inputs:
        dims = value.type.tensor_type.shape.dim
        asked = shapes.get(value.name)
        if asked is not None:
            used.add(value.name)
            sizes = tuple(asked) if isinstance(asked, Sequence) and not isinstance(asked, str) else (asked,)
            if len(sizes) != len(dims):
                raise InputError(f"{path}: input {value.name!r} has {len(dims)} dimensions, {list(sizes)} was given")
            for number, (dim, size) in enumerate(zip(dims, sizes, strict=True)):
                fixed = dim.dim_value if dim.HasField("dim_value") else 0
                if fixed > 0 and size != fixed:
                    raise InputError(
                        f"{path}: dimension {number} of input {value.name!r} is fixed to {fixed}; {size} was given"
                    )
                dim.dim_value = _size(size, f"dimension {number} of input {value.name!r}", path)
        for number, dim in enumerate(dims):
            if dim.HasField("dim_value") and dim.dim_value > 0:
                continue
            symbol = dim.dim_param or f"dimension {number}"
            if symbol not in shapes:
                example = f"{symbol}=1" if dim.dim_param else f"{value.name}:{','.join('1' for _ in dims)}"
                raise InputError(
                    f"{path}: {symbol!r} of input {value.name!r} is open; give its size, e.g. --shape {example}"
                )
            used.add(symbol)
            dim.dim_value = _size(shapes[symbol], repr(symbol), path)
    unknown = sorted(set(shapes) - used)
    if unknown:
        names = [value.name for value in inputs]
        raise InputError(
            f"{path}: there is no input or open dimension {unknown[0]!r}; the inputs are {', '.join(names)}"
        )
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")


def _size(value: object, what: str, path: Path) -> int:
    size = operator.index(value) if isinstance(value, SupportsIndex) else 0
    if not 1 <= size < 1 << 31:
        raise InputError(
            f"{path}: the size of {what} is {value!r}; a whole number from 1 to {(1 << 31) - 1} is allowed"
        )
    return size


class _Reader:
    def __init__(self, onnx: Any, model: Any, path: Path) -> None:
        self.onnx, self.model, self.path = onnx, model, path
        graph = model.graph
        self.shapes: dict[str, tuple[tuple[int, ...], int]] = {}
        for value in (*graph.input, *graph.value_info, *graph.output):
            self._note(value)
        self.weights = {tensor.name: tensor for tensor in graph.initializer}
        self.produced = {name for node in graph.node for name in node.output}
        self.read = {value.name for value in graph.output} | {name for node in graph.node for name in node.input}
        self.read |= {name for node in graph.node for name in self._captured(node)}

    def _note(self, value: Any) -> None:
        kind = value.type.tensor_type
        if value.type.HasField("tensor_type") and kind.HasField("shape"):
            dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in kind.shape.dim]
            if all(dim >= 0 for dim in dims):
                self.shapes[value.name] = tuple(dims), kind.elem_type

    def model_of_operators(self) -> OperatorModel:
        tensors: dict[str, Tensor] = {}
        operators, names, free = [], [], set()
        for number, node in enumerate(self.model.graph.node):
            read = [name for name in (*node.input, *self._captured(node)) if name]
            for name in read:
                tensors.setdefault(name, self._tensor(name))
            outputs = [name for name in node.output if name]
            for name in outputs:
                tensors[name] = self._tensor(name)
            name = f"{number}:{node.name or node.op_type}"
            names.append(name)
            if node.op_type in FREE:
                free.add(number)
            operators.append(Operator(name, priced_kind(node.op_type), tuple(read), tuple(outputs), self._flops(node)))
        external = any(tensor.data_location for tensor in self.weights.values())
        returned = tuple(value.name for value in self.model.graph.output if value.name in tensors)
        graph = OpGraph(self.path.stem, tuple(operators), tuple(tensors.values()), returned)
        return OperatorModel("onnx", self.path, graph, self.model, tuple(names), frozenset(free), external)

    def _captured(self, node: Any) -> list[str]:
        """Return the values of this graph that a node's subgraphs read."""
        reads = []
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs) if attribute.HasField("g") or attribute.graphs else ():
                reads += [name for inner in graph.node for name in inner.input]
                reads += [name for inner in graph.node for name in self._captured(inner)]
        known = self.produced | set(self.weights) | {value.name for value in self.model.graph.input}
        return [name for name in dict.fromkeys(reads) if name in known]

    def _tensor(self, name: str) -> Tensor:
        if name in self.weights:
            weight = self.weights[name]
            dims = tuple(weight.dims)
            return Tensor(name, self._bytes(dims, weight.data_type), "parameter", dims)
        if name not in self.shapes and name not in self.read:
            return Tensor(name, 0)  # such as a mask that nobody asks for
        if name not in self.shapes:
            raise InputError(
                f"{self.path}: the size of {name!r} cannot be known before a run, or an operator's shapes are not known to "
                "ONNX; give the inputs' shapes (--shape), or fold what depends on data"
            )
        shape, kind = self.shapes[name]
        dtype = {1: "float32", 10: "float16", 16: "bfloat16", 11: "float64", 6: "int32", 7: "int64"}.get(kind, "")
        return Tensor(name, self._bytes(shape, kind), "activation" if name in self.produced else "input", shape, dtype)

    def _bytes(self, shape: Sequence[int], kind: int) -> int:
        bits = 4 if kind in _HALF_BYTES else 8 * _SIZES.get(kind, 4)
        return math.ceil(math.prod(shape) * bits / 8)

    def _shape(self, name: str) -> tuple[int, ...]:
        if name in self.weights:
            return tuple(self.weights[name].dims)
        return self.shapes[name][0]

    def _flops(self, node: Any) -> int:
        outputs = [name for name in node.output if name and name in self.shapes]
        elements = sum(math.prod(self._shape(name)) for name in outputs)
        if not outputs:
            return 0
        if node.op_type in ("Conv", "ConvInteger", "QLinearConv"):
            weight = self._shape(node.input[3 if node.op_type == "QLinearConv" else 1])
            return 2 * math.prod(self._shape(outputs[0])) * math.prod(weight[1:])
        if node.op_type == "ConvTranspose":
            return 2 * math.prod(self._shape(node.input[0])) * math.prod(self._shape(node.input[1])[1:])
        if node.op_type in ("MatMul", "MatMulInteger", "FusedMatMul"):
            return 2 * math.prod(self._shape(outputs[0])) * (self._shape(node.input[0]) or (1,))[-1]
        if node.op_type == "Gemm":
            turned = any(a.name == "transA" and a.i for a in node.attribute)
            return 2 * math.prod(self._shape(outputs[0])) * self._shape(node.input[0])[0 if turned else 1]
        if node.op_type in ("LSTM", "GRU", "RNN"):
            tokens = math.prod(self._shape(node.input[0])[:2])
            return 2 * tokens * (math.prod(self._shape(node.input[1])) + math.prod(self._shape(node.input[2])))
        return elements


_SIZES = {
    1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 8: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 14: 8, 15: 16,
    16: 2, 17: 1, 18: 1, 19: 1, 20: 1,
}  # fmt: skip
"""Bytes of an element by ONNX's number of its type (onnx.TensorProto.DataType)."""
_HALF_BYTES = (21, 22, 23)
