"""Other ways to compute fused kernels: what is fused to a kernel's end kept apart, where it waits for another kernel.

`offer_variants` puts them into ``main`` beside the fused kernels, joined by calls of `ways.CALL`, which stand for one of
their arguments; `tvm_sched.relax.graph` reads them as groups of a problem with variants, and takes the kernels of what was chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from .kernel_libraries.rewrite import Rewriter
from .ways import CALL

FUSED, APART = "fused", "apart"

_HEAVY = 4
"""TVM's pattern of kernels to which elementwise ones are fused: products, convolutions, reductions with a loop of their own."""


def offer_variants(mod: tvm.IRModule) -> tvm.IRModule:
    """Offer for fused kernels the way in which their tails are apart.

    A fused kernel is one heavy operation and its epilogue. Where the epilogue reads an activation that another heavy kernel
    makes, and that kernel need not come before the heavy operation (a gate of a Llama's feed-forward network, the sum of two
    convolutions), fusing makes the heavy operation wait for it. Apart, the *head* is all of the kernel that does not need
    that activation, and the *tail* the rest.

    Parameters
    ----------
    mod : tvm.IRModule
        As ``FuseOps`` leaves it: ``main`` calls PrimFuncs and functions of the attribute ``Primitive``.
    """
    offers = _Offers(mod)
    return offers.run() if offers.splits else mod


@dataclass(frozen=True)
class _Split:
    """A fused function in two: bindings of the head and of the tail, and the variable that the tail takes of the head."""

    head: tuple[relax.VarBinding, ...]
    tail: tuple[relax.VarBinding, ...]
    joint: relax.Var


class _Offers(Rewriter):
    """Goes through ``main`` and joins fused calls with their alternatives."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod.clone())  # functions join it
        self.splits: dict[relax.Var, _Split] = {}
        self._made: dict[tuple[Any, ...], Any] = {}
        body = self.function.body
        if not isinstance(body, relax.SeqExpr):
            return
        before: dict[Any, int] = {}  # of each variable: the bindings that it needs, itself included, as bits
        heavy = 0
        for position, binding in enumerate(each for block in body.blocks for each in block.bindings):
            used = relax.analysis.free_vars(binding.value)
            needed = _union(before.get(variable, 0) for variable in used)
            if (split := self._split(binding.value, before, heavy)) is not None:
                self.splits[binding.var] = split
            before[binding.var] = needed | 1 << position
            heavy |= self._is_heavy(binding.value) << position

    def _is_heavy(self, value: Any) -> bool:
        """Whether a call is of a heavy kernel, alone, fused, or of a kernel library."""
        if not isinstance(value, relax.Call):
            return False
        if isinstance(value.op, tvm.ir.GlobalVar):
            return _heavy_binding(self.mod, self.mod[value.op]) is not None
        name = value.op.name if isinstance(value.op, tvm.ir.Op) else ""
        return name == "relax.call_dps_packed" or (name == "relax.call_tir" and _pattern(self.mod, value) == _HEAVY)

    def _split(self, value: Any, before: dict[Any, int], heavy: int) -> _Split | None:
        """How to compute a fused call in two, where that lets its head begin earlier."""
        if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.GlobalVar):
            return None
        function = self.mod[value.op]
        found = _heavy_binding(self.mod, function)
        if found is None or not isinstance(value.ty, relax.TensorType):
            return None
        needs = _needs(function)
        core = needs[found.var]
        given = dict(zip(function.params, value.args, strict=True))
        early = _union(before.get(given[p], 0) for p in core if p in given)
        late = {p for p, a in given.items() if p not in core and before.get(a, 0) & ~early & heavy}
        return _cut(function, needs, late, found.var) if late else None

    def visit(self, variable: Any, value: Any) -> Any:
        """A fused call, its head and tail, and the choice between them."""
        split = self.splits.get(variable)
        if split is None:
            return super().visit(variable, value)
        fused = self.emit(self.rebuild(value))
        given = dict(zip(self.mod[value.op].params, (self.value(a) for a in value.args), strict=True))
        given[split.joint] = self._call(split.head, split.joint, given)
        apart = self._call(split.tail, split.tail[-1].var, given)
        ways = [fused, apart, tvm.ir.StringImm(FUSED), tvm.ir.StringImm(APART)]
        return self.emit(relax.op.call_pure_packed(CALL, *ways, ty_args=fused.ty))

    def _call(self, bindings: Sequence[relax.VarBinding], result: relax.Var, given: dict[Any, Any]) -> Any:
        """The call of some bindings of a fused function: of their kernel, or of a function that fuses several."""
        if len(bindings) == 1:
            call = bindings[0].value
            arguments = relax.Tuple([given.get(a, a) for a in call.args[1].fields])
            return self.emit(relax.Call(call.op, [call.args[0], arguments, *call.args[2:]], call.attrs, call.ty_args))
        made = {binding.var for binding in bindings}
        used = dict.fromkeys(v for b in bindings for v in relax.analysis.free_vars(b.value) if v not in made)
        params = [v for v in used if v in given]
        function = _function(bindings, result, params)
        key = tvm_ffi.structural_hash(function, map_free_vars=True)
        if key not in self._made:
            kernels = [str(b.value.args[0].name_hint) for b in bindings]
            name = relax.BlockBuilder(self.mod).get_unique_name("_".join(["fused", *kernels]))
            variable = tvm.ir.GlobalVar(name)
            relax.expr._update_type(variable, function.ty)
            self.mod.update_func(variable, function)
            self._made[key] = variable
        return self.emit(relax.Call(self._made[key], [given[v] for v in params]))


def _function(bindings: Sequence[relax.VarBinding], result: relax.Var, params: Sequence[relax.Var]) -> relax.Function:
    """A function that ``FuseTIR`` makes one kernel of."""
    block = relax.DataflowBlock(list(bindings))
    new = relax.Var("gv", result.ty)
    body = relax.SeqExpr([relax.DataflowBlock([*block.bindings, relax.VarBinding(new, result)])], new)
    function = relax.Function(list(params), body, result.ty, is_pure=True).with_attr("Primitive", True)
    return relax.utils.copy_with_new_vars(function)


def _cut(function: relax.Function, needs: dict[Any, set[Any]], late: set[Any], heavy: Any) -> _Split | None:
    """The head, as much as needs nothing late, and the tail; None where more than one tensor goes between the two."""
    bindings = _kernel_calls(function)
    if bindings is None:
        return None
    early = [b for b in bindings if not needs[b.var] & late and (b.var.same_as(heavy) or heavy in needs[b.var])]
    joint = early[-1].var
    head = [b for b in bindings if b.var.same_as(joint) or b.var in needs[joint]]
    inside = {b.var for b in head}
    tail = [b for b in bindings if b.var not in inside]
    taken = {v for b in tail for v in relax.analysis.free_vars(b.value) if v in inside}
    return _Split(tuple(head), tuple(tail), joint) if tail and taken == {joint} else None


def _kernel_calls(function: relax.Function) -> list[relax.VarBinding] | None:
    """The bindings of a fused function, all of them calls of PrimFuncs that make one tensor; None where others are there."""
    found = [binding for block in function.body.blocks for binding in block.bindings]
    if found and isinstance(found[-1].value, relax.Var):  # the output's other name
        found = found[:-1]
    for binding in found:
        value = binding.value
        call = isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op) and value.op.name == "relax.call_tir"
        if not call or not isinstance(binding.var.ty, relax.TensorType):
            return None
    return found


def _needs(function: relax.Function) -> dict[Any, set[Any]]:
    """For each variable of a fused function all arguments and variables that it needs."""
    needs: dict[Any, set[Any]] = {p: set() for p in function.params}
    for block in function.body.blocks:
        for binding in block.bindings:
            used = [v for v in relax.analysis.free_vars(binding.value) if v in needs]
            needs[binding.var] = set(used).union(*(needs[v] for v in used))
    return needs


def _heavy_binding(mod: tvm.IRModule, function: Any) -> relax.VarBinding | None:
    """The one binding of a fused function that calls a heavy kernel."""
    if not isinstance(function, relax.Function) or not function.attrs or "Primitive" not in function.attrs:
        return None
    calls = _kernel_calls(function) or []
    found = [binding for binding in calls if _pattern(mod, binding.value) == _HEAVY]
    return found[0] if len(found) == 1 else None


def _pattern(mod: tvm.IRModule, call: relax.Call) -> int:
    attributes = mod[call.args[0]].attrs
    return int(attributes["op_pattern"]) if attributes and "op_pattern" in attributes else -1


def _union(sets: Iterable[int]) -> int:
    result = 0
    for each in sets:
        result |= each
    return result
