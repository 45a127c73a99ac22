"""Helpers to write kernels: the function's frame, arguments, counters, loops over several axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812


class Kernel:
    """A function under construction; `function` is the result."""

    function: tirx.PrimFunc

    @contextmanager
    def write(self, name: str) -> Iterator[None]:
        """Write the function's body in this block."""
        with IRBuilder() as builder, T.prim_func(private=True, s_tir=True):
            T.func_name(name)
            T.func_attr({"op_pattern": 8, "tirx.noalias": True})  # opaque: no operator is fused into it
            yield
        self.function = builder.get()

    def argument(self, name: str, shape: Sequence[Any], dtype: str) -> Any:
        """Add a tensor that the function reads or writes."""
        return T.arg(name, T.buffer(tuple(shape), dtype))

    def sizes(self, shape: Sequence[Any]) -> list[Any]:
        """Return a shape with a symbol of the function for each size that is not a number."""
        return [size if isinstance(size, int) else T.int64() for size in shape]


def counter(start: int = 0) -> Any:
    """Allocate a mutable integer variable."""
    variable = T.alloc_buffer((1,), "int64", scope="local")
    assign(variable, start)
    return variable


def assign(target: Any, value: Any) -> None:
    """Set a counter."""
    T.buffer_store(target, long(value), [0])


def add_one(target: Any) -> None:
    """Increase a counter by 1."""
    assign(target, target[0] + long(1))


def long(value: Any) -> Any:
    """Return an integer as int64."""
    return tirx.const(value, "int64") if isinstance(value, int) else tirx.Cast("int64", value)


def least(a: Any, b: Any) -> Any:
    """Return the smaller of two sizes, which may be symbols."""
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else tirx.min(long(a), long(b))


@contextmanager
def when(condition: Any) -> Iterator[None]:
    """Execute the block only if the condition holds."""
    with T.If(condition), T.Then():
        yield


@contextmanager
def loops(extents: Sequence[Any]) -> Iterator[list[Any]]:
    """Loop over each axis; without an axis, the body runs once."""
    if not extents:
        yield []
        return
    with T.grid(*(long(extent) if isinstance(extent, int) else extent for extent in extents)) as variables:
        yield [variables] if isinstance(variables, tirx.Var) else list(variables)
