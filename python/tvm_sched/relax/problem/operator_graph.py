"""Extract the operator graph from the lowered Relax function ``main``, with the kernel call of each operator."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import tvm
from tvm import relax

from tvm_frontends.imported_model import number_of_inputs
from tvm_sched_runtime.errors import InputError, UnsupportedModelError
from tvm_sched_runtime.problem import Group, Operator, OpGraph, Tensor, all_alternatives, choose_graph

from ...execution_plan import KernelCall
from ..ir.attributes import CHOICE, model_name
from ..ir.call_names import describe, kernel_kind, plain
from ..ir.flops import count_flops
from ..ir.loops import is_scheduled
from ..ir.tensor_types import bytes_of, dtype_of, static_shape
from ..ir.virtual_devices import copied_to, given_devices
from ..lower.kernel_libraries import kernel_flops, kernel_in_place
from ..variants.read_alternatives import (
    AlternativeBinding,
    AlternativeCollector,
    OfferedVariants,
    alternative_bindings,
    as_choice,
    graph_bindings,
)
from .read_bytes import count_read_bytes

_OF_MEMORY = ("relax.builtin.", "relax.memory.", "relax.vm.", "relax.null_value")
"""Operators that TVM adds when it plans memory."""


@dataclass(frozen=True)
class ParameterPart:
    """The part of a parameter from ``begin`` up to ``end`` along an axis."""

    parameter: str
    axis: int
    begin: int
    end: int

    def of(self, value: Any) -> Any:
        """Cut this part out of a parameter's value."""
        whole = value.numpy()
        return tvm.runtime.tensor(whole.take(range(self.begin, self.end), self.axis))


@dataclass(frozen=True)
class Extraction:
    """An operator graph, with the kernel calls and other data that later passes need."""

    graph: OpGraph
    calls: list[KernelCall]
    """One for each operator, in the order of the graph."""
    arguments: dict[str, tuple[relax.Var, tuple[int, ...]]]
    """For each input tensor, the argument of ``main`` and the positions in it if the argument is a (nested) tuple."""
    parameters: dict[str, relax.Var]
    """For each parameter tensor, the argument of ``main``."""
    result: Any
    """The results of ``main``, as names of tensors."""
    groups: tuple[Group, ...] = ()
    """Groups of operators that have alternatives."""
    alternative_calls: tuple[KernelCall, ...] = ()
    """One for each operator of their alternatives."""
    parts: dict[str, ParameterPart] = field(default_factory=dict)
    """Tensors that are parts of parameters."""
    given: dict[str, str] = field(default_factory=dict)
    """The virtual devices of the operators that TVM's annotations place."""

    def resolve(self, choice: Mapping[str, str]) -> Extraction:
        """Return the extraction for a choice, without groups; a group that it does not name stays as in the graph."""
        graph, rows = choose_graph(self.graph, self.groups, choice)
        kept = {tensor.name for tensor in graph.tensors}
        parameters = {name: variable for name, variable in self.parameters.items() if name in kept}
        parts = {name: part for name, part in self.parts.items() if name in kept}
        calls = [*self.calls, *self.alternative_calls]
        calls = [calls[row] for row in rows]
        return Extraction(graph, calls, self.arguments, parameters, self.result, parts=parts)

    def with_all_alternatives(self) -> Extraction:
        """Return the operators of the graph and of all alternatives at once, with which kernels are measured."""
        graph = all_alternatives(self.graph, self.groups)
        calls = [
            replace(call, inputs=operator.inputs, outputs=operator.outputs)
            for call, operator in zip((*self.calls, *self.alternative_calls), graph.operators, strict=True)
        ]
        return Extraction(graph, calls, self.arguments, self.parameters, self.result, parts=self.parts)


def extract(mod: tvm.IRModule) -> Extraction:
    """Extract the operator graph of a module's ``main``, in which every operation is a call of a kernel.

    Each ``call_tir``, ``call_dps_packed`` and ``call_pure_packed`` is an operator. Tuples, type casts and aliases are
    resolved. Operators keep the order of the bindings, so the same module always gives the same graph. The module's
    attribute `CHOICE` chooses the form of each group; a group that it does not name has the graph's own operators.

    Raises
    ------
    InputError
        An operation in ``main`` is not a kernel call; the message names it, its binding and the reason.
    """
    choice = json.loads(str(mod.attrs[CHOICE])) if mod.attrs and CHOICE in mod.attrs else {}
    return extract_variants(mod).resolve(choice)


def extract_variants(mod: tvm.IRModule) -> Extraction:
    """Extract the operator graph as `extract`, with the alternatives of all groups."""
    return _Extractor(mod).run()


def get_graph(mod: tvm.IRModule) -> OpGraph:
    """Return the operator graph of a module that `LowerToKernels` lowered.

    Examples
    --------
    >>> from tvm_sched.relax import get_graph
    >>> [operator.kind for operator in get_graph(lowered).operators]
    ['onednn.matmul_tanh']
    """
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
    read_bytes: dict[str, Mapping[int, int]] = field(default_factory=dict)
    members: dict[relax.Var, AlternativeBinding] = field(default_factory=dict)
    parts: dict[str, ParameterPart] = field(default_factory=dict)
    member: AlternativeBinding | None = None  # of the current binding
    owned: dict[relax.Var, OfferedVariants] = field(default_factory=dict)
    owner: OfferedVariants | None = None  # of the current binding, if no alternative of the choice needs it
    alternatives: AlternativeCollector = field(default_factory=AlternativeCollector)
    copies: dict[relax.Var, str] = field(default_factory=dict)  # with their virtual devices
    makers: dict[str, str] = field(default_factory=dict)  # the operator of each result
    reads: dict[str, tuple[list[str], list[str]]] = field(default_factory=dict)  # as for `given_devices`

    def run(self) -> Extraction:
        function = self.mod["main"]
        inputs = number_of_inputs(function)
        for position, variable in enumerate(function.params):
            self.values[variable] = self._argument(variable, variable.ty, plain(variable.name), position >= inputs, ())
        body = function.body
        if not isinstance(body, relax.SeqExpr):
            body = relax.SeqExpr([], body)
        bindings = [binding for block in body.blocks for binding in block.bindings]
        self.members, self.owned = alternative_bindings(bindings, body.body), graph_bindings(bindings, body.body)
        for binding in bindings:
            self.member, self.owner = self.members.get(binding.var), self.owned.get(binding.var)
            self.values[binding.var] = self._bind(binding)
        result = self._value(body.body, "the result of main")
        self._keep_states()
        flat = tuple(dict.fromkeys(flatten(result)))
        if None in flat:
            raise InputError(
                "main returns a shape or number beside its tensors; a schedule's results are tensors: drop it"
            )
        graph = OpGraph(plain(model_name(self.mod)), tuple(self.operators), tuple(self.tensors.values()), flat)
        groups, calls = self.alternatives.finish()
        given = given_devices(self.reads) if self.copies else {}
        return Extraction(graph, self.calls, self.arguments, self.parameters, result, groups, calls, self.parts, given)

    def _keep_states(self) -> None:
        """Make inputs that kernels update in place parameters: they stay on a device from run to run."""
        for call in self.calls:
            for position in call.in_place.values():
                tensor = self.tensors[call.inputs[position]]
                if tensor.kind == "input":
                    self.tensors[tensor.name] = msgspec.structs.replace(tensor, kind="parameter")

    def _argument(self, variable: relax.Var, ty: Any, name: str, parameter: bool, path: tuple[int, ...]) -> Any:
        if isinstance(ty, relax.TupleType):
            if parameter:
                raise InputError(
                    f"main takes its parameters in the tuple {name!r} (BundleModelParams); give the module as it was "
                    "before, or without the function attribute num_input, so that the tuple is an input"
                )
            parts = enumerate(ty.fields)
            return tuple(self._argument(variable, part, f"{name}.{k}", parameter, (*path, k)) for k, part in parts)
        if not isinstance(ty, relax.TensorType):
            return None
        name = self._unique_tensor(name)
        self._add_tensor(name, ty, "parameter" if parameter else "input", f"argument {name!r}")
        if parameter:
            self.parameters[name] = variable
        else:
            self.arguments[name] = (variable, path)
        return name

    def _bind(self, binding: relax.Binding) -> Any:
        where = f"binding {binding.var.name!r}"
        value = binding.value
        if (choice := as_choice(value)) is not None:
            return self.values[choice.results[0]]
        if (device := copied_to(value)) is not None:
            self.copies[binding.var] = device
            return self._value(value.args[1].fields[0], where)
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
            raise InputError(f"{where}: main contains a constant; run LowerToKernels, which makes it a parameter")
        if isinstance(expr, relax.If):
            raise UnsupportedModelError(
                f"{where}: an if, whose branch is known only when the model runs; a schedule needs to know all operators"
            )
        raise UnsupportedModelError(f"{where}: a {type(expr).__name__} cannot be scheduled; only calls of kernels can")

    def _call(self, call: relax.Call, where: str) -> Any:
        operation = call.op.name if isinstance(call.op, tvm.ir.Op) else ""
        if operation == "relax.call_tir":
            if len(call.args) > 2:
                raise UnsupportedModelError(
                    f"{where}: the kernel {call.args[0].name_hint!r} takes symbolic sizes; bind all shapes first"
                )
            return self._operator(
                call, plain(call.args[0].name_hint), call.args[1], where, external=False, packed=False
            )
        if operation == "relax.call_dps_packed":
            return self._operator(call, _symbol(call.args[0]), call.args[1], where, external=True, packed=False)
        if operation == "relax.strided_slice" and self.member is not None:
            return self._part(call, where)
        if operation == "relax.call_pure_packed":
            arguments = relax.Tuple(list(call.args[1:]))
            return self._operator(call, _symbol(call.args[0]), arguments, where, external=True, packed=True)
        if not operation.startswith(_OF_MEMORY) and not isinstance(call.ty, (relax.TensorType, relax.TupleType)):
            raise UnsupportedModelError(
                f"{where}: {describe(call)} gives no tensor ({call.ty}), and kernels take and give tensors only"
            )
        raise UnsupportedModelError(f"{where}: {describe(call)} cannot be scheduled: {_refusal_reason(operation)}")

    def _operator(
        self, call: Any, function: str, arguments: relax.Expr, where: str, *, external: bool, packed: bool
    ) -> Any:
        inputs = flatten(self._value(arguments, where))
        if None in inputs:
            raise UnsupportedModelError(
                f"{where}: {function!r} takes a shape or number as an argument; kernels take tensors only"
            )
        kind = kernel_kind(function)
        if not external and is_scheduled(self.mod[function]):
            kind = f"scheduled.{kind}"
        member = self.member
        prefix = f"{self._maker(member)}/{member.choice.names[member.number]}/" if member is not None else ""
        self.names[prefix + kind] += 1
        count = self.names[prefix + kind]
        name = prefix + (kind if count == 1 else f"{kind}.{count}")
        result = self._outputs(call.ty, name, (), where, f"{function!r}")
        outputs = tuple(flatten(result))
        if function not in self.flops:
            self.flops[function] = kernel_flops(self.mod, function) if external else count_flops(self.mod[function])
        if not external and function not in self.read_bytes:
            self.read_bytes[function] = count_read_bytes(self.mod[function])
        parts = _read_bytes(inputs, self.read_bytes.get(function, {}))
        operator = Operator(name, kind, tuple(inputs), outputs, self.flops.get(function, 0), parts)
        updated = kernel_in_place(self.mod, function) if external else {}
        call = KernelCall(name, function, external, packed, tuple(inputs), outputs, updated)
        if self.member is not None:
            self.alternatives.add(self._maker(self.member), self.member, operator, call)
        else:
            self.operators.append(operator)
            self.calls.append(call)
            self.reads[name] = self._reads(arguments)
            self.makers |= dict.fromkeys(outputs, name)
            if self.owner is not None:
                self.alternatives.add_of_graph(self.owner, name)
        return result

    def _reads(self, arguments: relax.Expr) -> tuple[list[str], list[str]]:
        """Return the makers of the results that an operator reads where they are, and the devices of the copies it reads."""
        read = list(arguments.fields) if isinstance(arguments, relax.Tuple) else [arguments]
        here = [tensor for each in read if each not in self.copies for tensor in flatten(self._value(each, ""))]
        copied = [self.copies[each] for each in read if each in self.copies]
        return [self.makers[tensor] for tensor in here if tensor in self.makers], copied

    def _part(self, call: relax.Call, where: str) -> str:
        """Add the part of a parameter that an alternative reads."""
        whole = self._value(call.args[0], where)
        axis, begin, end = (int(call.args[k].fields[0]) for k in (1, 2, 3))
        name = self._unique_tensor(f"{whole}/{axis}/{begin}:{end}")
        self._add_tensor(name, call.ty, "parameter", where)
        self.parameters[name] = self.parameters[whole]
        self.parts[name] = ParameterPart(whole, axis, begin, end)
        return name

    def _maker(self, member: AlternativeBinding) -> str:
        """Return the graph's operator that computes the alternative's result; it names the group."""
        result = self.values[member.choice.results[0]]
        return next(operator.name for operator in reversed(self.operators) if result in operator.outputs)

    def _outputs(self, ty: Any, name: str, path: tuple[int, ...], where: str, function: str) -> Any:
        if isinstance(ty, relax.TupleType):
            return tuple(self._outputs(part, name, (*path, k), where, function) for k, part in enumerate(ty.fields))
        if not isinstance(ty, relax.TensorType):
            raise UnsupportedModelError(f"{where}: {function} returns {ty}; kernels return tensors or tuples of them")
        if self.member is not None and self.member.last:
            return self.values[self.member.choice.results[0]]
        tensor = self._unique_tensor(f"{name}:{'.'.join(map(str, path)) or 0}")
        self._add_tensor(tensor, ty, "activation", f"{where}: the result of {function}")
        return tensor

    def _add_tensor(self, name: str, ty: Any, kind: Any, where: str) -> None:
        shape = static_shape(ty)
        if shape is None and not isinstance(ty.shape, relax.ShapeExpr):
            raise UnsupportedModelError(
                f"{where} is {ty}: its shape depends on data, and a schedule needs static shapes"
            )
        if shape is None:
            raise UnsupportedModelError(
                f"{where} has shape {ty}, but a schedule needs static shapes; bind its symbols: input_shapes=..., "
                "--shape, or the pass relax.transform.BindSymbolicVars"
            )
        dtype = plain(dtype_of(ty))
        tensor = Tensor(name, bytes_of(shape, dtype), kind, shape, dtype)
        if self.member is not None:
            self.alternatives.add_tensor(self._maker(self.member), self.member, tensor)
        else:
            self.tensors[name] = tensor

    def _unique_tensor(self, name: str) -> str:
        candidate, count = name, 1
        while candidate in self.tensors or candidate in self.alternatives.tensors:
            count += 1
            candidate = f"{name}.{count}"
        return candidate


def _read_bytes(inputs: list[str], partial: Mapping[int, int]) -> dict[str, int] | msgspec.UnsetType:
    """Return the bytes read of each tensor that a kernel reads in part and takes as one argument only."""
    positions = [position for position in partial if position < len(inputs)]  # others are results
    read = {inputs[position]: partial[position] for position in positions if inputs.count(inputs[position]) == 1}
    return dict(sorted(read.items())) or msgspec.UNSET


def flatten(value: Any) -> list[Any]:
    """Return the leaves of nested tuples; a leaf itself is its only one."""
    if isinstance(value, tuple):
        return [leaf for part in value for leaf in flatten(part)]
    return [value]


def _symbol(expr: Any) -> str:
    return plain(getattr(expr, "global_symbol", None) or expr.name_hint)


def _refusal_reason(operation: str) -> str:
    if operation in ("relax.nonzero", "relax.unique", "relax.tensor_to_shape", "relax.vm.call_tir_dyn"):
        return "the shape of its result depends on data, and a schedule needs static shapes"
    if not operation:
        return "it is not a call of a kernel, and it could not be inlined into main"
    if operation == "relax.call_tir_inplace":
        return "it writes into one of its inputs, so that copies on other devices would keep old values; use R.call_tir"
    if operation.startswith(_OF_MEMORY):
        return "memory is planned with the schedule; give the module as it is before TVM allocates (CallTIRRewrite)"
    operator = tvm.ir.Op.get(operation)
    lowered = ("relax.cumsum", "relax.cumprod", "relax.sort", "relax.argsort", "relax.topk")
    if operator.has_attr("FLegalize") or operation in lowered:
        return "run LowerToKernels first; if it ran, TVM has no kernel for its types, layouts or attributes"
    return "TVM has no kernel for it (no legalisation), and no packed function implements it"
