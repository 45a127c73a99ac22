"""From the Relax function ``main``, lowered to kernels, to an operator graph, and back from it to kernel calls."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec
import tvm
from tvm import relax

from ..errors import InputError
from ..planning import KernelCall
from ..problem import Operator, OpGraph, Tensor
from .attributes import NAME
from .flops import count_flops
from .importers.model import number_of_inputs
from .kernel_libraries import kernel_flops
from .read_bytes import count_read_bytes


@dataclass(frozen=True)
class Extraction:
    """An operator graph and what the rest of the compiler has to know of it.

    Attributes
    ----------
    graph : OpGraph
    calls : list of KernelCall
        One for each operator, in the order of the graph.
    arguments : dict of str to (relax.Var, tuple of int)
        Tensors that are inputs of ``main``: the argument, and the way into it where it is a tuple.
    parameters : dict of str to relax.Var
        Tensors that are parameters, by the name of the argument after the inputs.
    result : nested tuple of str
        What ``main`` returns, as names of tensors.
    """

    graph: OpGraph
    calls: list[KernelCall]
    arguments: dict[str, tuple[relax.Var, tuple[int, ...]]]
    parameters: dict[str, relax.Var]
    result: Any


def extract(mod: tvm.IRModule) -> Extraction:
    """Make the operator graph of a module's ``main``, in which every operation is a call of a kernel.

    Each ``call_tir``, ``call_dps_packed`` and ``call_pure_packed`` is an operator; tuples, casts of types and other
    names for a value are seen through. The order of operators is the order of the bindings, so the same module always
    gives the same graph.

    Raises
    ------
    InputError
        Something in ``main`` that is no kernel call; the message names the operation, its binding and the reason.
    """
    return _Extractor(mod).run()


def get_graph(mod: tvm.IRModule) -> OpGraph:
    """The operator graph of a module that `LowerToKernels` made."""
    return extract(mod).graph


@dataclass
class _Extractor:
    mod: tvm.IRModule
    values: dict[relax.Var, Any] = field(default_factory=dict)  # nested tuples of tensor names, or None for shapes
    tensors: dict[str, Tensor] = field(default_factory=dict)
    operators: list[Operator] = field(default_factory=list)
    calls: list[KernelCall] = field(default_factory=list)
    arguments: dict[str, tuple[relax.Var, tuple[int, ...]]] = field(default_factory=dict)
    parameters: dict[str, relax.Var] = field(default_factory=dict)
    names: Counter[str] = field(default_factory=Counter)
    flops: dict[str, int] = field(default_factory=dict)
    read_bytes: dict[str, dict[int, int]] = field(default_factory=dict)

    def run(self) -> Extraction:
        function = self.mod["main"]
        inputs = number_of_inputs(function)
        for position, variable in enumerate(function.params):
            self.values[variable] = self._argument(variable, variable.ty, plain(variable.name), position >= inputs, ())
        body = function.body
        if not isinstance(body, relax.SeqExpr):
            body = relax.SeqExpr([], body)
        for block in body.blocks:
            for binding in block.bindings:
                self.values[binding.var] = self._bind(binding)
        result = self._value(body.body, "the result of main")
        flat = tuple(dict.fromkeys(flatten(result)))
        if None in flat:
            raise InputError(
                "main returns a shape or number beside its tensors; a schedule's results are tensors: drop it"
            )
        name = plain(self.mod.attrs[NAME]) if self.mod.attrs and NAME in self.mod.attrs else "model"
        graph = OpGraph(name, tuple(self.operators), tuple(self.tensors.values()), flat)
        return Extraction(graph, self.calls, self.arguments, self.parameters, result)

    def _argument(self, variable: relax.Var, ty: Any, name: str, parameter: bool, way: tuple[int, ...]) -> Any:
        if isinstance(ty, relax.TupleType):
            parts = enumerate(ty.fields)
            return tuple(self._argument(variable, part, f"{name}.{k}", parameter, (*way, k)) for k, part in parts)
        if not isinstance(ty, relax.TensorType):
            return None
        name = self._unique_tensor(name)
        self._add_tensor(name, ty, "parameter" if parameter else "input", f"argument {name!r}")
        if parameter:
            self.parameters[name] = variable
        else:
            self.arguments[name] = (variable, way)
        return name

    def _bind(self, binding: relax.Binding) -> Any:
        where = f"binding {binding.var.name!r}"
        value = binding.value
        if isinstance(value, relax.Call):
            return self._call(value, where)
        return self._value(value, where)

    def _value(self, expr: relax.Expr, where: str) -> Any:
        if isinstance(expr, relax.Var):
            return self.values[expr]
        if isinstance(expr, relax.Tuple):
            return tuple(self._value(part, where) for part in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            return self._value(expr.tuple_value, where)[expr.index]
        if isinstance(expr, relax.ShapeExpr) or tvm.ir.is_prim_expr(expr) or isinstance(expr, tvm.ir.StringImm):
            return None
        if isinstance(expr, tvm.ir.GenericConst):
            raise InputError(f"{where}: a constant stands in main; run LowerToKernels, which makes it a parameter")
        if isinstance(expr, relax.If):
            raise InputError(
                f"{where}: an if, whose branch is known only when the model runs; a schedule needs to know all operators"
            )
        raise InputError(f"{where}: a {type(expr).__name__} cannot be scheduled; only calls of kernels can")

    def _call(self, call: relax.Call, where: str) -> Any:
        operation = call.op.name if isinstance(call.op, tvm.ir.Op) else ""
        if operation == "relax.call_tir":
            if len(call.args) > 2:
                raise InputError(
                    f"{where}: the kernel {call.args[0].name_hint!r} takes symbolic sizes; bind all shapes first"
                )
            return self._operator(
                call, plain(call.args[0].name_hint), call.args[1], where, external=False, packed=False
            )
        if operation == "relax.call_dps_packed":
            return self._operator(call, _symbol(call.args[0]), call.args[1], where, external=True, packed=False)
        if operation == "relax.call_pure_packed":
            arguments = relax.Tuple(list(call.args[1:]))
            return self._operator(call, _symbol(call.args[0]), arguments, where, external=True, packed=True)
        raise InputError(f"{where}: {describe(call)} cannot be scheduled: {_why(operation)}")

    def _operator(
        self, call: Any, function: str, arguments: relax.Expr, where: str, *, external: bool, packed: bool
    ) -> Any:
        given = self._value(arguments, where)
        inputs = flatten(given if isinstance(given, tuple) else (given,))
        if None in inputs:
            raise InputError(f"{where}: {function!r} takes a shape or number as an argument; kernels take tensors only")
        kind = kernel_kind(function)
        self.names[kind] += 1
        name = kind if self.names[kind] == 1 else f"{kind}.{self.names[kind]}"
        result = self._outputs(call.ty, name, (), where, f"{function!r}")
        outputs = tuple(flatten(result if isinstance(result, tuple) else (result,)))
        if function not in self.flops:
            self.flops[function] = kernel_flops(self.mod, function) if external else count_flops(self.mod[function])
        if not external and function not in self.read_bytes:
            self.read_bytes[function] = count_read_bytes(self.mod[function])
        parts = _read_bytes(inputs, self.read_bytes.get(function, {}))
        self.operators.append(Operator(name, kind, tuple(inputs), outputs, self.flops.get(function, 0), parts))
        self.calls.append(KernelCall(name, function, external, packed, tuple(inputs), outputs))
        return result

    def _outputs(self, ty: Any, name: str, way: tuple[int, ...], where: str, function: str) -> Any:
        if isinstance(ty, relax.TupleType):
            return tuple(self._outputs(part, name, (*way, k), where, function) for k, part in enumerate(ty.fields))
        if not isinstance(ty, relax.TensorType):
            raise InputError(f"{where}: {function} returns {ty}; kernels return tensors or tuples of them")
        tensor = self._unique_tensor(f"{name}:{'.'.join(map(str, way)) or 0}")
        self._add_tensor(tensor, ty, "activation", f"{where}: the result of {function}")
        return tensor

    def _add_tensor(self, name: str, ty: Any, kind: Any, where: str) -> None:
        shape = static_shape(ty)
        if shape is None and not isinstance(ty.shape, relax.ShapeExpr):
            raise InputError(f"{where} is {ty}: its shape depends on data, and a schedule needs static shapes")
        if shape is None:
            raise InputError(
                f"{where} has shape {ty}, but a schedule needs static shapes; bind its symbols: --input-shape, "
                "input_shapes=..., or the pass relax.transform.BindSymbolicVars"
            )
        dtype = plain(ty.dtype.dtype)
        self.tensors[name] = Tensor(name, tensor_bytes(shape, dtype), kind, shape, dtype)

    def _unique_tensor(self, name: str) -> str:
        candidate, count = name, 1
        while candidate in self.tensors:
            count += 1
            candidate = f"{name}.{count}"
        return candidate


def _read_bytes(inputs: list[str], partial: dict[int, int]) -> dict[str, int] | msgspec.UnsetType:
    """By tensor, of those that a kernel reads in part as each argument that they are."""
    found: dict[str, int] = {}
    for name in {inputs[position] for position in partial if position < len(inputs)}:  # others are results
        positions = [position for position, other in enumerate(inputs) if other == name]
        if len(positions) == 1:
            found[name] = partial[positions[0]]
    return dict(sorted(found.items())) or msgspec.UNSET


def kernel_kind(function: str) -> str:
    """What a kernel computes: its name without the numbers that make names unique, "fused" and "tir".

    >>> kernel_kind("fused_conv2d3_add12_tir_tanh")
    'conv2d_add_tanh'
    """
    words = [re.sub(r"\d+$", "", word) for word in function.split("_")]
    if len(words) > 1 and words[0] == "fused":
        words = words[1:]
    return "_".join(word for word in words if word not in ("", "tir")) or function


def tensor_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of a dense tensor; types of less than a byte are packed."""
    kind = tvm.DataType(dtype)
    elements = 1
    for size in shape:
        elements *= size
    bits = 8 if dtype == "bool" else int(kind.bits) * int(kind.lanes)
    return (elements * bits + 7) // 8


def static_shape(ty: Any) -> tuple[int, ...] | None:
    """The sizes of a tensor type, or None where one is not a number."""
    if not isinstance(ty.shape, relax.ShapeExpr) or not all(isinstance(d, tvm.tirx.IntImm) for d in ty.shape.values):
        return None
    return tuple(int(d) for d in ty.shape.values)


def plain(text: Any) -> str:
    """A string of Python's own class: long ones of TVM are of a subclass, which the writers of files refuse."""
    return "".join(str(text))


def flatten(value: Any) -> list[Any]:
    """The leaves of nested tuples."""
    if isinstance(value, tuple):
        return [leaf for part in value for leaf in flatten(part)]
    return [value]


def describe(call: relax.Call) -> str:
    """Name of what a call calls, for messages."""
    if isinstance(call.op, tvm.ir.Op):
        return str(call.op.name).replace("relax.", "R.", 1)
    if isinstance(call.op, tvm.ir.GlobalVar):
        return f"the call of function {call.op.name_hint!r}"
    return f"the call of {call.op}"


def _symbol(expr: Any) -> str:
    return plain(getattr(expr, "global_symbol", None) or expr.name_hint)


def _why(operation: str) -> str:
    if operation in ("relax.nonzero", "relax.unique", "relax.tensor_to_shape", "relax.vm.call_tir_dyn"):
        return "the shape of its result depends on data, and a schedule needs static shapes"
    if not operation:
        return "it is no call of a kernel, and it could not be inlined into main"
    if operation == "relax.call_tir_inplace":
        return "it writes into one of its inputs, so that copies on other devices would keep old values; use R.call_tir"
    if operation.startswith(("relax.builtin.", "relax.memory.", "relax.vm.")):
        return "memory is planned with the schedule; give the module as it is before TVM allocates (CallTIRRewrite)"
    operator = tvm.ir.Op.get(operation)
    if operator.has_attr("FLegalize") or operation in (
        "relax.cumsum",
        "relax.cumprod",
        "relax.sort",
        "relax.argsort",
        "relax.topk",
    ):
        return "it is not lowered to a kernel; run LowerToKernels first"
    return "TVM has no kernel for it (no legalisation), and no packed function implements it"
