"""Registry of converters for operators of torch.export programs, and `Call`, their argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm import relax

from ..tensor_types import dtype_of


class UnsupportedOperator(Exception):
    """An operator of the program cannot be converted; the importer raises a `ModelError` for it."""


class RefusedOperator(UnsupportedOperator):
    """An operator that no front end converts; the message has its own remedy."""


class OpenSizes(UnsupportedOperator):
    """Something cannot be converted with symbolic sizes; the importer tries fixed ones."""


@dataclass(frozen=True)
class Call:
    """A call of an operator, with its arguments by the names of the operator's schema."""

    node: Any
    importer: Any

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name, with the schema's defaults; tensors are Relax expressions."""
        schema = self.node.target._schema.arguments
        positional = dict(zip([a.name for a in schema], self.importer.retrieve_args(self.node), strict=False))
        named = {key: self.importer._retrieve_args(value) for key, value in self.node.kwargs.items()}
        return {a.name: a.default_value for a in schema} | positional | named

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    @property
    def result(self) -> Any:
        """Torch's fake tensor of the result."""
        return self.node.meta["val"]

    @property
    def dtype(self) -> str:
        """The element type of the result; for a complex result, the type of its parts."""
        return PARTS.get(name_of(self.result.dtype), name_of(self.result.dtype))

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the result.

        Raises
        ------
        UnsupportedOperator
            A size is symbolic.
        """
        return self.sizes()

    def sizes(self, first: int = 0) -> tuple[int, ...]:
        """Return the result's sizes from dimension ``first`` on, which may be negative; see `shape`."""
        sizes = tuple(self.result.shape)[first:]
        if not all(isinstance(size, int) for size in sizes):
            raise self.unsupported(
                f"its result has the symbolic shape {list(self.result.shape)}, and its converter needs fixed sizes: export "
                "the program without dynamic_shapes"
            )
        return sizes

    def emit(self, expr: relax.Expr) -> relax.Expr:
        """Bind an expression to a variable."""
        return self.importer.block_builder.emit(expr)

    def emit_te(self, compute: Callable[..., Any], *inputs: relax.Expr, name: str) -> relax.Expr:
        """Emit a kernel from a tensor expression, and bind its result to a variable."""
        operands = [
            value if isinstance(value, relax.Var | tvm.ir.GenericConst) else self.emit(value) for value in inputs
        ]
        return self.importer.block_builder.emit_te(compute, *operands, primfunc_name_hint=name)

    def tensor(self, name: str, dtype: str | None = None) -> relax.Expr:
        """Return an argument as a tensor of a type; numbers become constants."""
        return self.cast(self[name], dtype)

    def cast(self, value: Any, dtype: str | None = None) -> relax.Expr:
        """Return a value as a tensor of a type."""
        if not isinstance(value, relax.Expr) or isinstance(value, tvm.tirx.IntImm):
            if isinstance(value, tvm.tirx.IntImm):
                value = int(value)
            return relax.const(np.asarray(value).astype(dtype) if dtype and dtype != "bfloat16" else value, dtype)
        if not isinstance(value.ty, relax.TensorType):
            raise self.unsupported("one of its numbers depends on tensor values; make it a constant or a tensor")
        return value if dtype is None or dtype_of(value) == dtype else self.emit(relax.op.astype(value, dtype))

    def upstream(self) -> relax.Expr:
        """Return the result of TVM's converter."""
        return self.importer.upstream[self.node.target.__name__](self.node)

    def unsupported(self, why: str) -> UnsupportedOperator:
        """Return an error that names the operator and its node."""
        return UnsupportedOperator(f"operator {self.node.target.__name__} (node {self.node.name!r}): {why}")


def name_of(dtype: Any) -> str:
    """Return the name of a torch dtype, for instance ``float32``."""
    return str(dtype).removeprefix("torch.")


PARTS = {"complex64": "float32", "complex128": "float64"}
HALF = ("float16", "bfloat16")


def is_float(dtype: str) -> bool:
    """Whether a type is floating point."""
    return "float" in dtype


Convert: TypeAlias = "Callable[[Call], Any]"
CONVERTERS: dict[str, Convert] = {}
"""Our converters by the operator's name with its overload; they replace TVM's."""


def converter(*names: str, table: dict[str, Convert] = CONVERTERS) -> Callable[[Convert], Convert]:
    """Register a converter in a table under the names of operators with their overloads, such as ``add.Tensor``."""

    def register(convert: Convert) -> Convert:
        table.update(dict.fromkeys(names, convert))
        return convert

    return register
