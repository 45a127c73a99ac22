"""Registry of converters by domain and operator, and `Node`, their argument."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from ...errors import Missing, UnsupportedNode

if TYPE_CHECKING:
    import onnx

STANDARD = ("", "ai.onnx")
"""Names of the standard domain."""
OPSET = 18
"""Opset with which our converters call those of TVM."""


@dataclass(frozen=True)
class Node:
    """An ONNX node whose inputs are already converted."""

    operator: str
    name: str
    inputs: tuple[relax.Expr | None, ...]
    """None for optional inputs that are left out. Inputs at the end may be missing: use `input`."""
    attributes: Mapping[str, Any]
    """The attributes as TVM's frontend parses them: numbers, bytes, tuples, ``TensorProto``, ``GraphProto``."""
    outputs: tuple[str, ...]
    """Names of the outputs; an empty name is an unused output."""
    opset: int
    """Version of the node's domain."""
    builder: relax.BlockBuilder
    """Emits intermediate values."""

    def input(self, position: int) -> relax.Expr | None:
        """Return an input, or None if it is left out."""
        return self.inputs[position] if position < len(self.inputs) else None

    def wants(self, position: int) -> bool:
        """Whether an output is used."""
        return position < len(self.outputs) and self.outputs[position] != ""

    def emit(self, value: relax.Expr) -> relax.Expr:
        """Bind a value to a variable, so that its type is known."""
        return self.builder.emit(value)

    def positions(self, start: Any, count: Any, dtype: str) -> relax.Expr:
        """Return the integers from ``start`` on, ``count`` of them: a constant, unless one is an open size."""
        if isinstance(start, int) and isinstance(count, int):
            return relax.const(np.arange(start, start + count, dtype=dtype))
        first, size = (tvm.tirx.IntImm("int64", n) if isinstance(n, int) else n for n in (start, count))
        return self.emit(relax.op.arange(first, first + size, tvm.tirx.IntImm("int64", 1), dtype))

    def convert_as(
        self,
        operator: str,
        inputs: Sequence[relax.Expr | None],
        attributes: Mapping[str, Any],
        opset: int | None = None,
    ) -> relax.Expr:
        """Return the result of TVM's converter for a node of the standard domain with these inputs and attributes."""
        from tvm.relax.frontend.onnx import onnx_frontend

        convert = onnx_frontend._get_convert_map()[operator].get_converter(opset or OPSET)
        operands = onnx_frontend.onnx_input()
        operands.extend(inputs)
        return self.emit(convert(self.builder, operands, dict(attributes), [{}, {}]))

    def unsupported(self, reason: str, missing: Missing | None = None) -> UnsupportedNode:
        """Return the error to raise if the node cannot be converted: operator, node and reason."""
        name = self.name or "->".join(self.outputs)
        return UnsupportedNode(f"operator {self.operator} (node {name!r}): {reason}", missing)

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute, bytes as `str`."""
        value = self.attributes.get(name, default)
        if isinstance(value, tuple) and value and isinstance(value[0], bytes):
            return tuple(_text(item) for item in value)
        return _text(value)

    def constant(self, position: int) -> npt.NDArray[Any] | None:
        """Return the value of a constant input; None if it is left out, or known only when the model runs."""
        value = self.input(position)
        if isinstance(value, relax.ShapeExpr) and all(isinstance(d, tvm.tirx.IntImm) for d in value.values):
            return np.array([int(d) for d in value.values], np.int64)
        return constant_of(value)

    def sizes(self, value: relax.Expr | None, what: str) -> tuple[Any, ...]:
        """Return the sizes of a tensor: integers, and integer expressions of symbols for open dimensions.

        Parameters
        ----------
        what : str
            The tensor in the message: ``"its input X"``.

        Raises
        ------
        UnsupportedNode
            The tensor is left out, or not even its rank is known.
        """
        if value is None:
            raise self.unsupported(f"{what} is missing")
        if isinstance(value, relax.ShapeExpr):
            return (len(value.values),)
        if not isinstance(value.ty, relax.TensorType) or not isinstance(value.ty.shape, relax.ShapeExpr):
            raise self.unsupported(
                f"how many dimensions {what} has is known only when the model runs; cut it before this"
            )
        return tuple(int(size) if isinstance(size, tvm.tirx.IntImm) else size for size in value.ty.shape.values)

    def size(self, value: relax.Expr | None, axis: int, what: str) -> int:
        """Return the size of one axis of a tensor, which must be static; others may be open.

        Raises
        ------
        UnsupportedNode
            As `sizes`, or this size is open.
        """
        size = self.sizes(value, what)[axis]
        if not isinstance(size, int):
            raise self.unsupported(f"dimension {axis} of {what} is open ({size}); give it a size")
        return size

    def shape(self, value: relax.Expr | None, what: str) -> tuple[int, ...]:
        """Return the sizes of a tensor, which must be static.

        Raises
        ------
        UnsupportedNode
            As `sizes`, or a dimension is known only when the model runs.
        """
        shape = self.sizes(value, what)
        if not all(isinstance(size, int) for size in shape):
            raise self.unsupported(
                f"the shape of {what} is known only when the model runs; freeze its input shapes, or cut it before this"
            )
        return shape


def node_text(node: onnx.NodeProto) -> str:
    """Return a node for messages: its operator, and its name or else its outputs."""
    kind = f"{node.domain}.{node.op_type}" if node.domain not in STANDARD else node.op_type
    return f"{kind} (node {node.name or '->'.join(node.output)!r})"


Converter: TypeAlias = "Callable[[Node], relax.Expr | Sequence[relax.Expr]]"

CONVERTERS: dict[tuple[str, str], Converter] = {}


def converter(*names: str, domain: str = "") -> Callable[[Converter], Converter]:
    """Register a converter for operators of a domain."""

    def register(function: Converter) -> Converter:
        for name in names:
            CONVERTERS[domain, name] = function
        return function

    return register


def find(name: str, domain: str = "") -> Converter | None:
    """Return our converter for an operator, or None if TVM's is used."""
    _load()
    return CONVERTERS.get(("" if domain in STANDARD else domain, name))


def constant_of(value: relax.Expr | None) -> npt.NDArray[np.generic] | None:
    """Return the value of a constant; None for values known only when the model runs."""
    if isinstance(value, tvm.ir.GenericConst) and isinstance(value.ty, relax.TensorType):
        return value.value.numpy()
    return None


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


@cache
def _load() -> None:
    """Import each module of this package, which registers its converters."""
    package = __package__ or ""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
