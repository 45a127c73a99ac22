"""Offer alternatives for fused kernels: with a separate end, products in pieces, regions in parallel parts.

`OfferVariants` puts them into ``main`` beside the fused kernels, joined by calls of `alternatives.CALL`. Such a call stands
for one of its arguments. `tvm_sched.relax.problem.operator_graph` reads them as groups of a problem with variants, and takes
the kernels of the alternatives that were chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from tvm_frontends.imported_model import number_of_inputs

from ...problem import Topology
from ..ir.tensor_types import dtype_of, known_shape
from ..lower.kernel_libraries.rewrite import Rewriter
from .alternatives import CALL
from .cut_products import Channels, Product, addition, as_channels, as_product, concatenation, part_of
from .fused_functions import HEAVY, Core, core_of, fuse, heavy_binding, kernel_calls, needs, pattern, with_type
from .kernel_parts import Interval
from .row_regions import PartCall, RowRegion, RowSearch, part_type
from .tensor_parallel import Region, find_regions

WHOLE, FUSED, APART, TENSOR = "whole", "fused", "apart", "tensor"


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.OfferVariants")
class OfferVariants:
    """Offer alternatives for the kernels of ``main``.

    *Tails apart.* A fused kernel is one heavy operation and its epilogue. Where the epilogue reads an activation that
    another heavy kernel makes, and that kernel need not come before the heavy operation (a gate of a Llama's
    feed-forward network, the sum of two convolutions), fusing makes the heavy operation wait for it. Apart, the *head*
    is all of the kernel that does not need that activation, and the *tail* the rest.

    *Columns, channels.* A product with a matrix of weights is computed in pieces, each of which makes some of the columns
    and needs only those of the weights; a last kernel puts them together and does what was fused to the product. So are a
    convolution's output channels.

    *Tensor.* A product or convolution with weights is computed in parts of its sum, which a last kernel adds, and what is
    before it in the same parts, as far as each needs only its own (`find_regions`).

    *Batch, rows.* Calls are computed for parts of the batch, of the tokens or of a picture, which a last kernel puts
    together, where that can gain although each part needs all weights (`tvm_sched.relax.variants.row_regions`).

    It takes a module as ``FuseOps`` leaves it: ``main`` calls PrimFuncs and functions of the attribute ``Primitive``.

    Parameters
    ----------
    pieces : sequence of int
        Numbers of pieces to offer.
    unbound : bool
        Whether weights without values are cut, too: for scheduling alone, since nothing can cut what each call brings.
    rows : bool
        Whether parts by rows, each of which needs all weights, are offered also where only runs with parameters on the
        devices can gain by them.
    """

    def __init__(self, pieces: Sequence[int] = (), unbound: bool = False, rows: bool = False) -> None:
        self.pieces = tuple(pieces)
        self.unbound = unbound
        self.rows = rows

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        offers = _Offers(mod, self.pieces, self.unbound, self.rows)
        return offers.run() if offers.groups else mod


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
    """A heavy kernel with weights, how it is cut, and into how many pieces it may be."""

    cut: Product | Channels
    core: Core
    counts: tuple[int, ...]


class _Offers(Rewriter):
    """Goes through ``main`` and joins calls with their alternatives."""

    def __init__(self, mod: tvm.IRModule, pieces: Sequence[int], unbound: bool, warm: bool) -> None:
        super().__init__(mod.clone())  # functions join it
        self.groups: dict[relax.Var, tuple[relax.Var, ...]] = {}  # by the last call of each: all of them
        self.splits: dict[relax.Var, _Split] = {}
        self.products: dict[relax.Var, _Pieces] = {}
        self.regions: dict[relax.Var, Region] = {}
        self.rows: dict[relax.Var, RowRegion] = {}
        self._pieces, self._unbound = pieces, unbound
        self._given = frozenset(self.function.params[number_of_inputs(self.function) :])
        self._made: dict[Any, Any] = {}
        self._known: dict[Any, Product | Channels | None] = {}
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
            if pieces and (product := self._in_parts(binding)) is not None:
                self.products[binding.var] = product
            before[binding.var] = needed | 1 << position
            heavy |= self._is_heavy(binding.value) << position
        roots = {variable: each.core for variable, each in self.products.items()}
        self.regions = find_regions(self.mod, roots, pieces, self._is_weights)
        self._find_groups(RowSearch(self.mod, pieces, self._is_weights, warm))
        self._inner = {each for members in self.groups.values() for each in members[:-1]}

    def _find_groups(self, search: RowSearch) -> None:
        """Find the calls that are replaced together: of each region, alone, and those that rows are offered for."""
        inner = {each for region in self.regions.values() for each in region.inside}
        for variable in search.calls.variables:
            if variable in self.regions:
                self.groups[variable] = self.regions[variable].variables
            elif variable in self.products and variable not in inner:
                self.groups[variable] = (variable,)
        for last, members in self.groups.items():
            if (region := search.within(members)) is not None:
                self.rows[last] = region
        others = search.others({each for members in self.groups.values() for each in members})
        self.rows |= others
        self.groups |= {last: region.variables for last, region in others.items()}
        taken = {each for members in self.groups.values() for each in members}
        self.groups |= {variable: (variable,) for variable in self.splits if variable not in taken}

    def _is_heavy(self, value: Any) -> bool:
        """Whether a call is of a heavy kernel, alone, fused, or of a kernel library."""
        if not isinstance(value, relax.Call):
            return False
        if isinstance(value.op, tvm.ir.GlobalVar):
            return heavy_binding(self.mod, self.mod[value.op]) is not None
        name = value.op.name if isinstance(value.op, tvm.ir.Op) else ""
        return name == "relax.call_dps_packed" or (name == "relax.call_tir" and pattern(self.mod, value) == HEAVY)

    def _split(self, value: Any, before: dict[Any, int], heavy: int) -> _Split | None:
        """How to compute a fused call in two, where that lets its head begin earlier."""
        if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.GlobalVar):
            return None
        function = self.mod[value.op]
        operation = heavy_binding(self.mod, function)
        if operation is None or not isinstance(value.ty, relax.TensorType):
            return None
        needed = needs(function)
        core = needed[operation.var]
        given = dict(zip(function.params, value.args, strict=True))
        early = _union(before.get(given[p], 0) for p in core if p in given)
        late = {p for p, a in given.items() if p not in core and before.get(a, 0) & ~early & heavy}
        return _cut(function, needed, late, operation.var) if late else None

    def _is_weights(self, expr: Any) -> bool:
        """Whether parts of an operand can be made: it is a parameter with a value, or nothing is to be compiled."""
        if isinstance(expr, tvm.ir.GenericConst):
            return True
        return self._unbound and isinstance(expr, relax.Var) and expr in self._given

    def _in_parts(self, binding: relax.VarBinding) -> _Pieces | None:
        """A call of a heavy kernel with weights, alone or fused with what follows it, that can be cut."""
        core = core_of(self.mod, binding)
        if core is None or len(core.operands) != 2:
            return None
        first, weights = core.operands
        if not self._is_weights(weights) or not isinstance(first, relax.Var):
            return None
        if core.kernel not in self._known:
            kernel = self.mod[core.kernel]
            self._known[core.kernel] = as_product(kernel, first, weights) or as_channels(kernel, first, weights)
        cut = self._known[core.kernel]
        counts = tuple(n for n in self._pieces if cut and cut.allows(n))
        return _Pieces(cut, core, counts) if cut and counts else None

    def visit(self, variable: Any, value: Any) -> Any:
        """A call, its alternatives, and the choice between them; of a region all calls at once, at its last one."""
        if variable in self._inner or variable not in self.groups:
            return super().visit(variable, value)
        members, region, rows = self.groups[variable], self.regions.get(variable), self.rows.get(variable)
        fused = self.emit(self.rebuild(value))
        results = {FUSED if isinstance(value.op, tvm.ir.GlobalVar) else WHOLE: fused}
        if any(each in self.splits for each in members):
            results[APART] = self._anew(members, APART, 0)
        for cut, counts in self._cuts(members).items():
            results |= {f"{cut}/{count}": self._anew(members, cut, count) for count in counts}
        if region is not None:
            results |= {f"{TENSOR}/{count}": self._tensor_parallel(region, count, value) for count in region.counts}
        if rows is not None:
            results |= {name: self._by_rows(members, parts) for name, parts in rows.parts.items()}
        names = [tvm.ir.StringImm(name) for name in results]
        return self.emit(relax.op.call_pure_packed(CALL, *results.values(), *names, ty_args=fused.ty))

    def _cuts(self, members: Sequence[relax.Var]) -> dict[str, list[int]]:
        """By kind of cut the numbers of pieces into which some of the calls can be cut."""
        counts_of: dict[str, set[int]] = {}
        for each in members:
            if each in self.products:
                counts_of.setdefault(self.products[each].cut.name, set()).update(self.products[each].counts)
        return {name: sorted(counts) for name, counts in counts_of.items()}

    def _anew(self, members: Sequence[relax.Var], kind: str, count: int) -> Any:
        """Compute some calls that follow each other anew, each as ``kind`` says where it can be; return their result."""
        before = {each: self.values[each] for each in members if each in self.values}
        for each in members:
            self.values[each] = self._computed(each, self.definitions[each], kind, count)
        result = self.values.pop(members[-1])
        self.values.update(before)
        return result

    def _computed(self, variable: relax.Var, value: Any, kind: str, count: int) -> Any:
        """Compute a call as ``kind`` says, or as in the graph where it cannot be."""
        split, pieces = self.splits.get(variable), self.products.get(variable)
        if kind == APART and split is not None:
            given = dict(zip(self.mod[value.op].params, (self.value(a) for a in value.args), strict=True))
            given[split.joint] = self._call(split.head, split.joint, given)
            return self._call(split.tail, split.tail[-1].var, given)
        if pieces is not None and pieces.cut.name == kind and count in pieces.counts:
            return self._in_pieces(pieces, count, value)
        return self.emit(self.rebuild(value))

    def _in_pieces(self, pieces: _Pieces, count: int, value: relax.Call) -> Any:
        """A kernel in pieces, put together, and what was fused to it."""
        cut, core = pieces.cut, pieces.core
        name = str(core.kernel.name_hint)
        shape = list(known_shape(core.joint))
        first, weights = (self.value(operand) for operand in core.operands)
        made, parts = [], []
        for begin, end in cut.pieces(count):
            width = end - begin
            kernel = self._kernel(name, partial(cut.kernel, width), (core.kernel, width))
            shape[cut.result_axis] = width
            parts.append(relax.TensorType(list(shape), dtype_of(core.joint)))
            part = self.emit(relax.op.strided_slice(weights, [cut.axis], [begin], [end]))
            made.append(self.emit(relax.call_tir(kernel, [first, part], parts[-1])))
        key = ("concatenate", str(parts), cut.result_axis)
        join = self._kernel("concatenate", lambda: concatenation(parts, cut.result_axis), key)
        return self._together(join, made, core, value)

    def _tensor_parallel(self, region: Region, count: int, value: relax.Call) -> Any:
        """A region in parts, each with its part of all weights, whose results are added at the end."""
        core, cutting = region.core, region.cuttings[count]
        made = []
        cut: dict[Any, Any] = {}
        for part in cutting.parts:
            env: dict[relax.Var, Any] = {}
            for member in cutting.members:
                ty = member.part_type(part, cutting.units)
                key = member.kernel, member.axis, member.units, len(part)
                kernel = self._kernel(str(member.kernel.name_hint), partial(member.cut.of, len(part)), key)
                given = member.intervals_of(part)
                env[member.variable] = self._part_call(kernel, member.arguments, given, ty, env, cut)
            made.append(env[core.joint])
        types = [core.joint.ty] * count
        return self._together(self._kernel("add", lambda: addition(types), ("add", str(types))), made, core, value)

    def _by_rows(self, members: Sequence[relax.Var], parts: Sequence[Sequence[PartCall]]) -> Any:
        """Some calls for each part of the rows, put together; those that are not cut as in the graph."""
        cut_calls = {call.variable for call in parts[0]}
        before = {each: self.values[each] for each in members if each in self.values}
        for each in members:
            if each not in cut_calls:
                self.values[each] = self.emit(self.rebuild(self.definitions[each]))
        made = []
        cut: dict[Any, Any] = {}
        for part in parts:
            env: dict[relax.Var, Any] = {}
            for call in part:
                key = call.called.variable, call.rows, call.given
                kernel = self._kernel(str(call.called.variable.name_hint), partial(call.window.kernel, call.given), key)
                env[call.variable] = self._part_call(kernel, call.called.arguments, call.given, call.type, env, cut)
            made.append(env[part[-1].variable])
        self.values.update(before)
        types, axis = [part[-1].type for part in parts], parts[0][-1].rows.axis
        join = self._kernel("concatenate", lambda: concatenation(types, axis), ("concatenate", str(types), axis))
        return self.emit(relax.call_tir(join, made, members[-1].ty))

    def _part_call(
        self,
        kernel: tvm.ir.GlobalVar,
        arguments: Sequence[Any],
        given: Sequence[Interval | None],
        ty: Any,
        env: dict[relax.Var, Any],
        cut: dict[Any, Any],
    ) -> Any:
        """The call of a kernel on what ``env`` has of its arguments, and on parts of the others, each cut off once."""
        operands = []
        for argument, interval in zip(arguments, given, strict=True):
            if isinstance(argument, relax.Var) and argument in env:
                operands.append(env[argument])
                continue
            if (argument, interval) not in cut:
                cut[argument, interval] = self._part(argument, interval)
            operands.append(cut[argument, interval])
        return self.emit(relax.call_tir(kernel, operands, ty))

    def _part(self, argument: Any, part: Interval | None) -> Any:
        """A part of an operand: of weights, or of an activation, which a kernel cuts off."""
        whole = self.value(argument)
        if part is None:
            return whole
        if self._is_weights(argument):
            return self.emit(relax.op.strided_slice(whole, [part.axis], [part.begin], [part.end]))
        kernel = self._kernel("strided_slice", lambda: part_of(argument.ty, *part), (str(argument.ty), part))
        return self.emit(relax.call_tir(kernel, [whole], part_type(argument.ty, part)))

    def _together(self, join: tvm.ir.GlobalVar, made: Sequence[Any], core: Core, value: relax.Call) -> Any:
        """What a kernel makes of all pieces, and what was fused to the heavy kernel that they are pieces of."""
        if not core.epilogue:
            return self.emit(relax.call_tir(join, made, core.joint.ty))
        given = dict(zip(self.mod[value.op].params, (self.value(a) for a in value.args), strict=True))
        inner = [relax.Var(f"piece{k}", piece.ty) for k, piece in enumerate(made)]
        joined = relax.VarBinding(core.joint, with_type(relax.call_tir(join, inner, core.joint.ty), core.joint.ty))
        given |= dict(zip(inner, made, strict=True))
        return self._call([joined, *core.epilogue], core.epilogue[-1].var, given)

    def _kernel(self, name: str, make: Callable[[], tvm.tirx.PrimFunc], key: Any) -> tvm.ir.GlobalVar:
        """A kernel of the module, which is made once; parts that compute the same have the same kernel."""
        if key not in self._made:
            function = make()
            same = str(name), tvm_ffi.structural_hash(function, map_free_vars=True)
            if same not in self._made:
                self._made[same] = self._add(name, function)
            self._made[key] = self._made[same]
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
        function = fuse(bindings, result, params)
        key = tvm_ffi.structural_hash(function, map_free_vars=True)
        if key not in self._made:
            kernels = [str(b.value.args[0].name_hint) for b in bindings]
            self._made[key] = self._add("_".join(["fused", *kernels]), function)
        return self.emit(relax.Call(self._made[key], [given[v] for v in params]))


def _cut(function: relax.Function, needs: dict[Any, set[Any]], late: set[Any], heavy: Any) -> _Split | None:
    """The head, as much as needs nothing late, and the tail; None where more than one tensor goes between the two."""
    bindings = kernel_calls(function)
    if bindings is None:
        return None
    early = [b for b in bindings if not needs[b.var] & late and (b.var.same_as(heavy) or heavy in needs[b.var])]
    joint = early[-1].var
    head = [b for b in bindings if b.var.same_as(joint) or b.var in needs[joint]]
    inside = {b.var for b in head}
    tail = [b for b in bindings if b.var not in inside]
    taken = {v for b in tail for v in relax.analysis.free_vars(b.value) if v in inside}
    return _Split(tuple(head), tuple(tail), joint) if tail and taken == {joint} else None


def _union(sets: Iterable[int]) -> int:
    result = 0
    for each in sets:
        result |= each
    return result
