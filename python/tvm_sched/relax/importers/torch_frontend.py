"""TVM's frontend for torch.export programs with our converters beside its own, and each result checked against torch's."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import tvm
from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from . import (  # noqa: F401
    torch_layers,
    torch_moves,
    torch_norms,
    torch_operators,
    torch_products,
    torch_recurrent,
    torch_reductions,
)
from .torch_registry import CONVERTERS, Call, UnsupportedOperator, dtype_of, name_of

_RANDOM = "it gives random numbers, and what is compiled here is repeatable: draw them outside, and make them an input"
REFUSED = {
    **dict.fromkeys(
        ("randn.default", "randn_like.default", "exponential.default", "bernoulli.p", "rand.default"), _RANDOM
    ),
    **dict.fromkeys(
        ("rand_like.default", "randint.low", "randint.default", "randint_like.default", "randperm.default"), _RANDOM
    ),
    **dict.fromkeys(
        ("randint_like.low_dtype", "bernoulli.default", "uniform.default", "normal_functional.default"), _RANDOM
    ),
    **dict.fromkeys(
        ("multinomial.default", "native_dropout.default"), f"{_RANDOM}; of dropout, export after model.eval()"
    ),
    "_upsample_bilinear2d_aa.default": "TVM's converter leaves the filter against aliasing out",
}
"""Operators that TVM's converters take and get wrong, or that no compiled program should hold, and why."""


@cache
def known_operators() -> frozenset[str]:
    """The names of the operators that TVM or we convert."""
    return frozenset(_Importer().convert_map)


class _Importer(ExportedProgramImporter):
    """TVM's importer; each of its converters is followed by a check of types and sizes."""

    def create_convert_map(self) -> dict[str, Callable[[Any], Any]]:
        self.upstream = super().create_convert_map()
        ours = {name: self._ours(convert) for name, convert in CONVERTERS.items()}
        refused = {name: self._refusal(why) for name, why in REFUSED.items()}
        return {name: self._checked(convert) for name, convert in {**self.upstream, **refused, **ours}.items()}

    def _ours(self, convert: Callable[[Call], Any]) -> Callable[[Any], Any]:
        return lambda node: convert(Call(node, self))

    def _refusal(self, why: str) -> Callable[[Any], Any]:
        def refuse(node: Any) -> Any:
            raise Call(node, self).unsupported(why)

        return refuse

    def _checked(self, convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def converted(node: Any) -> Any:
            try:
                result = torch_moves.zeros(Call(node, self)) if _is_empty(node) else convert(node)
            except UnsupportedOperator:
                raise
            except Exception as error:
                lines = [line for line in str(error).strip().splitlines() if line.strip()] or [type(error).__name__]
                told = lines[-1] if lines[0].startswith("Trace") else lines[0]
                raise _unsupported(node, f"TVM's converter failed: {told.strip()}") from error
            if isinstance(result, relax.Call):  # until it is bound it has no type to check
                result = self.block_builder.emit(result)
            _check(node, result)
            return result

        return converted

    def _check_unsupported_func_type(self, nodes: Any) -> None:
        for node in nodes:
            if node.op == "call_function" and node.target.__name__ not in self.convert_map:
                raise _unsupported(node, "neither TVM's torch frontend nor tvm_sched has a converter for it")


def _unsupported(node: Any, why: str) -> UnsupportedOperator:
    name = getattr(node.target, "__name__", str(node.target))
    of = f", output {node.args[1]} of {node.args[0].target.__name__}" if name == "getitem" else ""
    return UnsupportedOperator(f"operator {name} (node {node.name!r}{of}): {why}")


def _is_empty(node: Any) -> bool:
    """Whether the result has no elements, so that nothing is to be computed."""
    wanted = node.meta.get("val")
    sizes = tuple(getattr(wanted, "shape", ()))
    return hasattr(wanted, "dtype") and all(isinstance(size, int) for size in sizes) and 0 in sizes


def _check(node: Any, result: Any) -> None:
    """Refuse a result that has another type or other sizes than torch gives it.

    Raises
    ------
    UnsupportedOperator
    """
    wanted = node.meta.get("val")
    if not hasattr(wanted, "dtype") or not hasattr(wanted, "shape") or not isinstance(result, relax.Expr):
        return
    if not isinstance(result.ty, relax.TensorType):
        return
    found = dtype_of(result) if result.ty.dtype is not None else ""
    if found != name_of(wanted.dtype):
        raise _unsupported(node, f"TVM's converter makes it {found}, torch {name_of(wanted.dtype)}")
    sizes = result.ty.shape.values if isinstance(result.ty.shape, relax.ShapeExpr) else None
    if sizes is None:
        return
    known = [int(size) if isinstance(size, tvm.tirx.IntImm) else None for size in sizes]
    right = [size if isinstance(size, int) else None for size in wanted.shape]
    if len(known) != len(right) or any(
        a is not None and b is not None and a != b for a, b in zip(known, right, strict=True)
    ):
        raise _unsupported(node, f"TVM's converter gives it the shape {known}, torch {list(wanted.shape)}")


def convert_program(program: Any) -> tvm.IRModule:
    """A module of a program that is `decomposed`, with the parameters as arguments of ``main``.

    Raises
    ------
    UnsupportedOperator
        An operator has no converter, or one that does not do what torch does.
    """
    return _Importer().from_exported_program(program, True, True, False, None)


def decomposed(program: Any) -> Any:
    """A program in core operators, and in those that have a converter of ours; what has none is taken further apart."""
    import torch

    table = torch.export.default_decompositions()
    known, usual = known_operators(), set(table)
    for operator, decomposition in torch._decomp.decomposition_table.items():
        if not isinstance(operator, torch._ops.OpOverload) or operator.namespace != "aten":
            continue
        # What the default table has, torch takes apart itself; the other table's ways may end in operators of prims.
        if operator not in usual and operator.__name__ not in known and not operator._schema.is_mutable:
            table[operator] = decomposition
    for operator in list(table):
        if getattr(operator, "__name__", "") in CONVERTERS:
            table.pop(operator, None)
    return program.run_decompositions(table)
