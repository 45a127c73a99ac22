"""Other ways to compute fused kernels: their ends apart, and products in pieces.

`offer_variants` puts them into ``main`` beside the fused kernels, joined by calls of `ways.CALL`, which stand for one of
their arguments; `tvm_sched.relax.graph` reads them as groups of a problem with variants, and takes the kernels of what was
chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from ..problem import Topology
from .kernel_libraries.rewrite import Rewriter
from .products import Product, as_product, concatenation
from .ways import CALL

WHOLE, FUSED, APART, COLUMNS = "whole", "fused", "apart", "columns"

_HEAVY = 4
"""TVM's pattern of kernels to which elementwise ones are fused: products, convolutions, reductions with a loop of their
own."""


def offer_variants(mod: tvm.IRModule, pieces: Sequence[int] = (), unbound: bool = False) -> tvm.IRModule:
    """Offer other ways to compute the kernels of ``main``.

    *Tails apart.* A fused kernel is one heavy operation and its epilogue. Where the epilogue reads an activation that
    another heavy kernel makes, and that kernel need not come before the heavy operation (a gate of a Llama's
    feed-forward network, the sum of two convolutions), fusing makes the heavy operation wait for it. Apart, the *head*
    is all of the kernel that does not need that activation, and the *tail* the rest.

    *Columns.* A product with a matrix of weights is computed in pieces, each of which makes some of the columns and
    needs only those of the weights; a last kernel puts them together and does what was fused to the product.

    Parameters
    ----------
    mod : tvm.IRModule
        As ``FuseOps`` leaves it: ``main`` calls PrimFuncs and functions of the attribute ``Primitive``.
    pieces : sequence of int
        Numbers of pieces to offer.
    unbound : bool
        Whether weights without values are cut, too: for scheduling alone, since nothing can cut what each call brings.
    """
    offers = _Offers(mod, pieces, unbound)
    return offers.run() if offers.splits or offers.products else mod


def pieces_for(topology: Topology) -> tuple[int, ...]:
    """Into how many pieces products are offered on a machine: two, twice as many, ... as many as devices at most."""
    return tuple(n for n in (2, 4, 8) if n <= len(topology.devices))


@dataclass(frozen=True)
class _Split:
    """A fused function in two: bindings of the head and of the tail, and the variable that the tail takes of the head."""

    head: tuple[relax.VarBinding, ...]
    tail: tuple[relax.VarBinding, ...]
    joint: relax.Var


@dataclass(frozen=True)
class _Pieces:
    """A product with its operands in ``main``, what was fused to it, and the variable that stands for the product there."""

    product: Product
    first: relax.Expr
    weights: relax.Expr
    epilogue: tuple[relax.VarBinding, ...]
    joint: relax.Var
    counts: tuple[int, ...]


class _Offers(Rewriter):
    """Goes through ``main`` and joins calls with their alternatives."""

    def __init__(self, mod: tvm.IRModule, pieces: Sequence[int], unbound: bool) -> None:
        super().__init__(mod.clone())  # functions join it
        self.splits: dict[relax.Var, _Split] = {}
        self.products: dict[relax.Var, _Pieces] = {}
        self._pieces, self._unbound = pieces, unbound
        self._made: dict[Any, Any] = {}
        self._known: dict[Any, Product | None] = {}
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
            if pieces and (found := self._product(binding)) is not None:
                self.products[binding.var] = found
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

    def _product(self, binding: relax.VarBinding) -> _Pieces | None:
        """A call of a product with weights, alone or fused with what follows it."""
        value, joint, epilogue, given = binding.value, binding.var, [], {}
        if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
            function = self.mod[value.op]
            found = _heavy_binding(self.mod, function)
            if found is None or not isinstance(binding.var.ty, relax.TensorType):
                return None
            given = dict(zip(function.params, value.args, strict=True))
            epilogue = [b for b in _kernel_calls(function) or [] if not b.var.same_as(found.var)]
            value, joint = found.value, found.var
        name = value.op.name if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op) else ""
        if name != "relax.call_tir" or len(value.args) != 2 or len(value.args[1].fields) != 2:
            return None
        first, weights = (given.get(a, a) if isinstance(a, relax.Var) else a for a in value.args[1].fields)
        constant = isinstance(weights, tvm.ir.GenericConst)
        placeholder = self._unbound and any(weights.same_as(v) for v in self.function.params)
        if not (constant or placeholder) or not isinstance(first, relax.Var):
            return None
        product = self._as_product(value.args[0], first, weights)
        counts = tuple(n for n in self._pieces if product and product.columns >= n)
        return _Pieces(product, first, weights, tuple(epilogue), joint, counts) if product and counts else None

    def _as_product(self, kernel: tvm.ir.GlobalVar, first: relax.Expr, weights: relax.Expr) -> Product | None:
        if kernel not in self._known:
            self._known[kernel] = as_product(self.mod[kernel], first, weights)
        return self._known[kernel]

    def visit(self, variable: Any, value: Any) -> Any:
        """A call, its alternatives, and the choice between them."""
        split, pieces = self.splits.get(variable), self.products.get(variable)
        if split is None and pieces is None:
            return super().visit(variable, value)
        fused = self.emit(self.rebuild(value))
        ways = {FUSED if isinstance(value.op, tvm.ir.GlobalVar) else WHOLE: fused}
        if split is not None:
            given = dict(zip(self.mod[value.op].params, (self.value(a) for a in value.args), strict=True))
            given[split.joint] = self._call(split.head, split.joint, given)
            ways[APART] = self._call(split.tail, split.tail[-1].var, given)
        if pieces is not None:
            ways |= {f"{COLUMNS}/{count}": self._in_pieces(pieces, count, value) for count in pieces.counts}
        names = [tvm.ir.StringImm(name) for name in ways]
        return self.emit(relax.op.call_pure_packed(CALL, *ways.values(), *names, ty_args=fused.ty))

    def _in_pieces(self, pieces: _Pieces, count: int, value: relax.Call) -> Any:
        """The product in pieces, put together, and what was fused to it."""
        product = pieces.product
        name = "NT_matmul" if product.transposed else "matmul"
        shape = [int(extent) for extent in pieces.joint.ty.shape.values]
        first, weights = self.value(pieces.first), self.value(pieces.weights)
        made, parts = [], []
        for begin, end in product.pieces(count):
            width = end - begin
            kernel = self._kernel(name, partial(product.kernel, width), (str(product), width))
            parts.append(relax.TensorType([*shape[:-1], width], str(pieces.joint.ty.dtype.dtype)))
            cut = relax.op.strided_slice(weights, [product.axis], [begin], [end])
            made.append(self.emit(relax.call_tir(kernel, [first, self.emit(cut)], parts[-1])))
        join = self._kernel("concatenate", lambda: concatenation(parts), str(parts))
        together = relax.call_tir(join, made, pieces.joint.ty)
        if not pieces.epilogue:
            return self.emit(together)
        given = dict(zip(self.mod[value.op].params, (self.value(a) for a in value.args), strict=True))
        inner = [relax.Var(f"piece{k}", part) for k, part in enumerate(parts)]
        joined = relax.VarBinding(pieces.joint, _typed(relax.call_tir(join, inner, pieces.joint.ty), pieces.joint.ty))
        given |= dict(zip(inner, made, strict=True))
        return self._call([joined, *pieces.epilogue], pieces.epilogue[-1].var, given)

    def _kernel(self, name: str, make: Callable[[], tvm.tirx.PrimFunc], key: Any) -> tvm.ir.GlobalVar:
        """A kernel of the module, which is made once."""
        if key not in self._made:
            self._made[key] = self._add(name, make())
        return self._made[key]

    def _add(self, name: str, function: Any) -> tvm.ir.GlobalVar:
        taken, unique, count = {v.name_hint for v in self.mod.get_global_vars()}, name, 0
        while unique in taken:
            count += 1
            unique = f"{name}{count}"
        variable = tvm.ir.GlobalVar(unique)
        relax.expr._update_type(variable, function.ty)
        self.mod.update_func(variable, function)
        return variable

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
            self._made[key] = self._add("_".join(["fused", *kernels]), function)
        return self.emit(relax.Call(self._made[key], [given[v] for v in params]))


def _typed(call: relax.Call, ty: Any) -> relax.Call:
    relax.expr._update_type(call, ty)
    return call


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
