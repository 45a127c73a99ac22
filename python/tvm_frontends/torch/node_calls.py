"""Registry of converters for operators of torch.export programs, and `Call`, their argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..tensor_types import dtype_of


class UnsupportedOperator(Exception):
    """An operator of the program cannot be converted; the importer makes a `ModelError` of it."""


@dataclass(frozen=True)
class Call:
    """An operator of a program, its arguments by the names of its schema."""

    node: Any
    importer: Any

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """Values by name, those that are left out by their defaults; tensors are expressions of Relax."""
        schema = self.node.target._schema.arguments
        given = dict(zip([a.name for a in schema], self.importer.retrieve_args(self.node), strict=False))
        named = {key: self.importer._retrieve_args(value) for key, value in self.node.kwargs.items()}
        return {a.name: a.default_value for a in schema} | given | named

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    @property
    def result(self) -> Any:
        """Torch's fake tensor of the result."""
        return self.node.meta["val"]

    @property
    def dtype(self) -> str:
        """The type of the result's elements; of complex ones that of their parts."""
        return PARTS.get(name_of(self.result.dtype), name_of(self.result.dtype))

    @property
    def shape(self) -> tuple[int, ...]:
        """The result's sizes.

        Raises
        ------
        UnsupportedOperator
            One is not known; programs of several sizes take another way.
        """
        return self.sizes()

    def sizes(self, first: int = 0) -> tuple[int, ...]:
        """The result's sizes from a dimension on, which may be counted from the end; see `shape`."""
        found = tuple(self.result.shape)[first:]
        if not all(isinstance(size, int) for size in found):
            raise self.unsupported(
                f"it needs sizes that are known when the program is exported, and has {list(self.result.shape)}: export "
                "it with fixed sizes, without dynamic_shapes"
            )
        return found

    def emit(self, expr: relax.Expr) -> relax.Expr:
        """Bind an expression to a variable."""
        return self.importer.block_builder.emit(expr)

    def emit_te(self, compute: Callable[..., Any], *inputs: relax.Expr, name: str) -> relax.Expr:
        """Bind what a function of `tvm.te` computes to a variable."""
        given = [value if isinstance(value, relax.Var | tvm.ir.GenericConst) else self.emit(value) for value in inputs]
        return self.importer.block_builder.emit_te(compute, *given, primfunc_name_hint=name)

    def tensor(self, name: str, dtype: str | None = None) -> relax.Expr:
        """An argument as a tensor, in a type; numbers become constants."""
        return self.cast(self[name], dtype)

    def cast(self, value: Any, dtype: str | None = None) -> relax.Expr:
        """A value as a tensor, in a type."""
        if not isinstance(value, relax.Expr) or isinstance(value, tvm.tirx.IntImm):
            if isinstance(value, tvm.tirx.IntImm):
                value = int(value)
            return relax.const(np.asarray(value).astype(dtype) if dtype and dtype != "bfloat16" else value, dtype)
        if not isinstance(value.ty, relax.TensorType):
            raise self.unsupported("one of its numbers is known only when the program runs")
        return value if dtype is None or dtype_of(value) == dtype else self.emit(relax.op.astype(value, dtype))

    def upstream(self) -> relax.Expr:
        """The result of TVM's converter."""
        return self.importer.upstream[self.node.target.__name__](self.node)

    def unsupported(self, why: str) -> UnsupportedOperator:
        """An error that names the operator."""
        return UnsupportedOperator(f"operator {self.node.target.__name__} (node {self.node.name!r}): {why}")


def name_of(dtype: Any) -> str:
    """For instance ``float32`` of ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


PARTS = {"complex64": "float32", "complex128": "float64"}
HALF = ("float16", "bfloat16")


def is_float(dtype: str) -> bool:
    """Whether a type is a floating-point one."""
    return "float" in dtype


CONVERTERS: dict[str, Callable[[Call], Any]] = {}
"""By the operator's name with its overload; they take the place of TVM's."""


def converter(
    *names: str, table: dict[str, Callable[[Call], Any]] = CONVERTERS
) -> Callable[[Callable[[Call], Any]], Callable[[Call], Any]]:
    """Register a converter for operators."""

    def register(convert: Callable[[Call], Any]) -> Callable[[Call], Any]:
        table.update(dict.fromkeys(names, convert))
        return convert

    return register
