"""Conversion of torch.export programs by TVM's frontend and our converters; each result is checked against torch's.

Corrections of TVM 0.27.0, ``relax/frontend/torch/exported_program_translator.py``:

- ``_upsample_bilinear2d_aa``: leaves out the filter against aliasing; refused here.
- ``from_exported_program``: checks neither type nor shape of a converter's result against what torch.export noted.
- ``_cond``: becomes a Relax ``If``, which no schedule can contain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

import tvm
from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from ..errors import first_line
from ..tensor_types import dtype_of, known_sizes
from . import complex as torch_complex
from . import (  # noqa: F401 - each registers its converters
    data_movement,
    elementwise,
    layers,
    norms,
    products,
    recurrent,
    reductions,
    scatters,
    selections,
)
from .node_calls import CONVERTERS, PARTS, Call, OpenSizes, RefusedOperator, UnsupportedOperator, name_of

_RANDOM = "it draws random numbers, and compiled models must be repeatable: draw them outside, and make them an input"
_NO_KERNELS = (
    "for which there are no kernels: compute it outside of the model, and make its result an input, or a buffer if the "
    "matrix is constant"
)
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
        ("normal.default", "normal.Tensor_float", "normal.Tensor_Tensor", "normal.float_Tensor", "poisson.default"),
        _RANDOM,
    ),
    **dict.fromkeys(
        ("multinomial.default", "native_dropout.default", "rrelu_with_noise_functional.default"),
        f"{_RANDOM}; for dropout and RReLU, export after model.eval()",
    ),
    **dict.fromkeys(
        (
            "_linalg_det.default",
            "_linalg_slogdet.default",
            "_linalg_solve_ex.default",
            "linalg_inv_ex.default",
            "linalg_pinv.atol_rtol_tensor",
            "linalg_matrix_exp.default",
            "cholesky_inverse.default",
            "ormqr.default",
            "cholesky_solve.default",
            "linalg_solve_triangular.default",
            "triangular_solve.default",
        ),
        f"it solves equations with a matrix, {_NO_KERNELS}",
    ),
    **dict.fromkeys(
        (
            "_linalg_svd.default",
            "_linalg_eigh.default",
            "linalg_eig.default",
            "linalg_qr.default",
            "linalg_lu.default",
            "linalg_cholesky_ex.default",
            "linalg_lu_factor_ex.default",
            "linalg_ldl_factor_ex.default",
            "geqrf.default",
            "linalg_householder_product.default",
        ),
        f"it decomposes a matrix, {_NO_KERNELS}",
    ),
    "_upsample_bilinear2d_aa.default": "its antialiasing filter is not supported; resize with antialias=False",
}
"""Refused operators, the reason and the remedy: random ones, those of linear algebra, and one that TVM converts wrongly."""


@cache
def known_operators() -> frozenset[str]:
    """Return the names of the operators that TVM or tvm_frontends converts."""
    return frozenset(_Importer().convert_map)


class _Importer(ExportedProgramImporter):
    """TVM's importer with our converters; after each converter, the result's type and shape are checked."""

    def create_convert_map(self) -> dict[str, Callable[[Any], Any]]:
        self.upstream = super().create_convert_map()
        ours = {name: self._ours(convert) for name, convert in CONVERTERS.items()}
        ours |= {name: self._refusal(why) for name, why in REFUSED.items() if name not in ours}
        for name in torch_complex.SPECIAL.keys() - self.upstream.keys() - ours.keys():
            ours[name] = self._refusal("it is supported for complex tensors only")
        upstream = {name: self._checked(convert, "TVM's converter") for name, convert in self.upstream.items()}
        return upstream | {name: self._checked(convert, "its converter") for name, convert in ours.items()}

    def _ours(self, convert: Callable[[Call], Any]) -> Callable[[Any], Any]:
        return lambda node: convert(Call(node, self))

    def _refusal(self, why: str) -> Callable[[Any], Any]:
        def refuse(node: Any) -> Any:
            raise Call(node, self).unsupported(why)

        return refuse

    def _checked(self, convert: Callable[[Any], Any], who: str) -> Callable[[Any], Any]:
        def converted(node: Any) -> Any:
            try:
                if torch_complex.uses_complex(node):
                    result = torch_complex.convert(Call(node, self), convert)
                else:
                    result = data_movement.zeros(Call(node, self)) if _is_empty(node) else convert(node)
            except UnsupportedOperator:
                raise
            except Exception as error:
                reason = first_line(error)
                if _depends_on_values(node):
                    raise _unsupported(
                        node, "a size depends on tensor values; export a model with fixed sizes"
                    ) from error
                if _is_symbolic(node):
                    raise OpenSizes(str(_unsupported(node, f"{who} failed on symbolic sizes ({reason})"))) from error
                raise _unsupported(node, f"{who} failed: {reason}") from error
            if isinstance(result, relax.Call):  # a call has no type before it is bound
                result = self.block_builder.emit(result)
            for part in (result.real, result.imaginary) if isinstance(result, torch_complex.Complex) else (result,):
                _check(node, part, who)
            return result

        return converted

    @staticmethod
    def _has_cond_op(nodes: Any) -> bool:
        return False  # `_cond` leaves none

    def _cond(self, node: Any) -> list[relax.Expr]:
        """Convert ``torch.cond``: both branches are computed, and each result is selected.

        A branch has no side effects, and kernels bound their indices, so the branch that is not taken does no harm.
        """
        asked, *branches, operands = node.args
        results = [self._branch(self.env[branch], operands) for branch in branches]
        condition = self.env[asked]
        if isinstance(condition, bool):
            return results[0 if condition else 1]
        condition = self.block_builder.emit(relax.op.reshape(condition, ()))
        pairs = zip(*results, strict=True)
        return [self.block_builder.emit(relax.op.where(condition, first, second)) for first, second in pairs]

    def _branch(self, graph: Any, operands: Any) -> list[relax.Expr]:
        nodes = list(graph.graph.nodes)
        self._check_unsupported_func_type(nodes)
        for placeholder, operand in zip((each for each in nodes if each.op == "placeholder"), operands, strict=True):
            self.env[placeholder] = self.env[operand]
        return [self.block_builder.emit(each) for each in self._translate_fx_graph(graph, nodes, {})]

    def _check_unsupported_func_type(self, nodes: Any) -> None:
        """Refuse the first operator that cannot be converted, and name the others."""
        problems: dict[str, UnsupportedOperator] = {}
        for node in nodes:
            name = node.target.__name__ if node.op == "call_function" else ""
            if name in REFUSED and name not in CONVERTERS:
                problems.setdefault(name, RefusedOperator(str(_unsupported(node, REFUSED[name]))))
            elif name == "with_effects":
                checked = [arg for arg in node.args[2:] if isinstance(arg, str)]
                of = checked[-1] if checked else str(node.args[1])
                why = f"it is an effect ({of}), which compiled programs cannot have; remove it from the model"
                problems.setdefault(name, _unsupported(node, why))
            elif name and name not in self.convert_map:
                why = "neither TVM's torch frontend nor tvm_frontends has a converter for it"
                problems.setdefault(name, _unsupported(node, why))
        if problems:
            (_, first), *others = problems.items()
            more = ", ".join(name for name, _ in others)
            raise type(first)(f"{first}; {more} cannot be converted either" if more else str(first))


def _unsupported(node: Any, why: str) -> UnsupportedOperator:
    name = getattr(node.target, "__name__", str(node.target))
    of = f", output {node.args[1]} of {node.args[0].target.__name__}" if name == "getitem" else ""
    return UnsupportedOperator(f"operator {name} (node {node.name!r}{of}): {why}")


def is_result(spec: Any) -> bool:
    """Whether an output of a program is one of the compiled program, too: None and numbers are not."""
    return type(spec.arg).__name__ == "TensorArgument"


def _depends_on_values(node: Any) -> bool:
    """Whether an operand is a number that the program computes from tensor values."""
    return any(_is_computed_number(each.meta.get("val")) for each in node.all_input_nodes)


def _is_computed_number(value: Any) -> bool:
    import torch

    numbers = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return isinstance(value, numbers) and bool(torch.fx.experimental.symbolic_shapes.free_unbacked_symbols(value))


def _is_symbolic(node: Any) -> bool:
    """Whether an operand has a symbolic size."""
    shapes = (getattr(each.meta.get("val"), "shape", ()) for each in node.all_input_nodes)
    return any(not isinstance(size, int) for shape in shapes for size in shape)


def _is_empty(node: Any) -> bool:
    """Whether the result has no elements, so that nothing is computed."""
    wanted = node.meta.get("val")
    sizes = tuple(getattr(wanted, "shape", ()))
    return hasattr(wanted, "dtype") and all(isinstance(size, int) for size in sizes) and 0 in sizes


def _check(node: Any, result: Any, who: str) -> None:
    """Refuse a result whose type or shape differs from the one that torch.export recorded.

    Raises
    ------
    UnsupportedOperator
    """
    wanted = node.meta.get("val")
    if not hasattr(wanted, "dtype") or not hasattr(wanted, "shape") or not isinstance(result, relax.Expr):
        return
    if not isinstance(result.ty, relax.TensorType):
        return
    dtype = dtype_of(result) if result.ty.dtype is not None else ""
    if dtype != PARTS.get(name_of(wanted.dtype), name_of(wanted.dtype)):
        raise _unsupported(node, f"{who} returns {dtype}, torch {name_of(wanted.dtype)}")
    sizes = known_sizes(result)
    if sizes is None:
        return
    wanted_sizes = [size if isinstance(size, int) else None for size in wanted.shape]
    if len(sizes) != len(wanted_sizes) or any(
        a is not None and b is not None and a != b for a, b in zip(sizes, wanted_sizes, strict=True)
    ):
        raise _unsupported(node, f"{who} returns the shape {sizes}, torch {list(wanted.shape)}")


def convert_program(program: Any) -> tvm.IRModule:
    """Convert a `decomposed` program to a Relax module whose ``main`` takes the parameters as arguments.

    Raises
    ------
    UnsupportedOperator
        An operator has no converter, is refused, or was converted to another type or shape than torch's.
    """
    importer = _Importer()
    importer._check_unsupported_func_type(
        program.graph.nodes
    )  # before TVM reads the inputs: tokens of effects are not tensors
    return importer.from_exported_program(program, True, True, False, None)


_LOOK_UP = Lock()


@contextmanager
def _operators_looked_up_once() -> Iterator[None]:
    """Let PyTorch look up the operators registered in C++ once, instead of twice for each of its 26 namespaces.

    The look-up takes as long as all other work on a small program.
    """
    import torch._export.utils as utils

    with _LOOK_UP:  # before the function is read, too: another thread may have replaced it
        look_up = getattr(utils, "_materialize_cpp_cia_ops", None)
        if look_up is None:  # another version of PyTorch
            yield
            return
        look_up()
        utils._materialize_cpp_cia_ops = lambda: None
        try:
            yield
        finally:
            utils._materialize_cpp_cia_ops = look_up


@_operators_looked_up_once()
def decomposed(program: Any) -> Any:
    """Decompose a program into core operators and operators that have one of our converters."""
    import torch

    table = torch.export.default_decompositions()
    known, usual = known_operators(), set(table)
    for operator, decomposition in torch._decomp.decomposition_table.items():
        if not isinstance(operator, torch._ops.OpOverload) or operator.namespace != "aten":
            continue
        # Decompositions outside of torch's default table may end in operators of the namespace prims.
        if operator not in usual and operator.__name__ not in known and not operator._schema.is_mutable:
            table[operator] = decomposition
    for operator in list(table):
        if getattr(operator, "__name__", "") in CONVERTERS:
            table.pop(operator, None)
    _forget_ranges_of_expressions(program)
    return _without_constants(program.run_decompositions(table))


def refuse_lone_symbols(program: Any) -> None:
    """Refuse sizes of inputs such as ``4 * n`` where n alone is no size of an input: Relax declares no such symbol."""
    sizes = [
        size.node.expr
        for node in program.graph.nodes
        if node.op == "placeholder"
        for size in getattr(node.meta.get("val"), "shape", ())
        if hasattr(size, "node")
    ]
    for size in sizes:
        if not size.free_symbols <= set(sizes):
            raise OpenSizes(f"the size {size} of an input has a symbol that no input has alone")


def _forget_ranges_of_expressions(program: Any) -> None:
    """Keep only ranges of symbols: torch.export.load adds those of sizes such as ``n + 1``, at which decomposing fails."""
    for node in program.graph.nodes:
        for size in getattr(node.meta.get("val"), "shape", ()):
            ranges = getattr(getattr(getattr(size, "node", None), "shape_env", None), "var_to_range", {})
            for expression in [each for each in ranges if not each.is_symbol]:
                del ranges[expression]


def _without_constants(program: Any) -> Any:
    """Remove the inputs and results that are no tensors from a program: None, and numbers that its shapes determine."""
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    kept = []
    for spec in program.graph_signature.input_specs:
        node = nodes.get(spec.arg.name)
        if type(spec.arg).__name__ == "ConstantArgument" and node is not None and not node.users:
            program.graph.erase_node(node)
        else:
            kept.append(spec)
    program.graph_signature.input_specs[:] = kept
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    results = []
    for spec, value in zip(program.graph_signature.output_specs, output.args[0], strict=True):
        if is_result(spec):
            results.append((spec, value))
        elif _is_computed_number(getattr(value, "meta", {}).get("val")):
            raise _unsupported(
                value, "the program returns this number, which depends on tensor values; return a tensor"
            )
    if not any(spec.kind.name == "USER_OUTPUT" for spec, _ in results):
        raise UnsupportedOperator("the program returns no tensor")
    program.graph_signature.output_specs[:] = [spec for spec, _ in results]
    output.args = (tuple(value for _, value in results),)
    return program
