"""Offer alternatives for fused kernels: separate tails, products in pieces, tensor-parallel regions, parts by rows.

`OfferVariants` adds them to ``main`` beside the fused kernels. A call of `alternatives.CALL` joins a kernel with its
alternatives and stands for one of its arguments. `tvm_sched.relax.problem.operator_graph` reads these calls as the groups
of a problem, and keeps the kernels of the chosen alternatives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from tvm_frontends.imported_model import number_of_inputs
from tvm_sched_runtime.problem import Topology

from ..ir.tensor_types import dtype_of, known_shape
from ..ir.virtual_devices import has_vdevices
from .cut_products import Channels, Product, addition, as_channels, as_product, concatenation, part_of
from .find_tensor_parallel import TensorParallelRegion, find_regions
from .kernel_parts import Interval
from .new_kernels import KernelRewriter
from .read_alternatives import CALL
from .read_fused_functions import HEAVY, Core, core_of, fuse, heavy_binding, kernel_calls, needs, pattern, with_type
from .row_regions import PartCall, RowRegion, RowSearch, part_type
from .split_rows import is_part

WHOLE, FUSED, APART, TENSOR, TREE = "whole", "fused", "apart", "tensor", "tensor-tree"

FEWEST_IN_TREE = 4
"""Least number of parts whose sum may be a tree; the kernel that ends a group adds two or three as fast."""


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.OfferVariants")
class OfferVariants:
    """Offer alternatives for the kernels of ``main``.

    *Tails apart.* A fused kernel is a heavy operation with its epilogue. If the epilogue reads an activation of another
    heavy kernel (a gate of a Llama's feed-forward network, the sum of two convolutions), fusion makes the heavy operation
    wait for that kernel. The alternative has two kernels: the *head* does not need that activation, the *tail* does.

    *Columns, channels.* Each piece of a product computes some of the columns and needs only those columns of the weights.
    A last kernel concatenates the pieces and applies the epilogue. Convolutions are cut by output channels.

    *Tensor.* Each part computes some terms of the sum in a product or convolution, and a last kernel adds the parts. The
    calls before it are cut in the same parts if each part needs only its own part of their results (`find_regions`).

    *Tensor-tree.* The same, with partial sums added in pairs on several devices. So a device receives one tensor for each
    halving of their number, where the last kernel alone would receive all parts through one bus or port.

    *Batch, rows.* Each part computes some rows of the batch, the tokens or an image, and needs all weights. A last kernel
    concatenates the parts (`tvm_sched.relax.variants.row_regions`).

    After `tvm_sched.relax.passes.SplitRows` only calls that it left whole get alternatives.

    The pass takes a module as ``FuseOps`` leaves it: ``main`` calls PrimFuncs and functions of the attribute ``Primitive``.

    Parameters
    ----------
    pieces : sequence of int
        Numbers of pieces to offer.
    unbound : bool
        Whether to cut weights without values, too. Such a module can only be scheduled: callers pass whole weights.
    rows : bool
        Whether to offer parts by rows also where only runs with resident parameters can gain.

    Examples
    --------
    >>> from tvm_sched.relax.passes import OfferVariants
    >>> OfferVariants(pieces=(2,)).info.name
    'tvm_sched.OfferVariants'
    """

    def __init__(self, pieces: Sequence[int] = (), unbound: bool = False, rows: bool = False) -> None:
        self.pieces = tuple(pieces)
        self.unbound = unbound
        self.rows = rows

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        if has_vdevices(mod):
            return mod  # pieces of an operator would be on other devices than the one that is given
        offers = _Offers(mod, self.pieces, self.unbound, self.rows)
        return offers.run() if offers.groups else mod


def pieces_for(topology: Topology) -> tuple[int, ...]:
    """Return the numbers of pieces to offer on a machine: powers of two up to 8 and the number of devices."""
    return tuple(n for n in (2, 4, 8) if n <= len(topology.devices))


@dataclass(frozen=True)
class _Split:
    """The bindings of a fused function's head and tail, and the variable of the head that the tail reads."""

    head: tuple[relax.VarBinding, ...]
    tail: tuple[relax.VarBinding, ...]
    joint: relax.Var


@dataclass(frozen=True)
class _Pieces:
    """A heavy kernel with weights, its cut, and the allowed numbers of pieces."""

    cut: Product | Channels
    core: Core
    counts: tuple[int, ...]


class _Offers(KernelRewriter):
    """Rewrites ``main``: joins calls with their alternatives."""

    def __init__(self, mod: tvm.IRModule, pieces: Sequence[int], unbound: bool, warm: bool) -> None:
        super().__init__(mod.clone())  # functions are added to the clone
        self.groups: dict[relax.Var, tuple[relax.Var, ...]] = {}  # the calls of each group, by the last
        self.splits: dict[relax.Var, _Split] = {}
        self.products: dict[relax.Var, _Pieces] = {}
        self.regions: dict[relax.Var, TensorParallelRegion] = {}
        self.rows: dict[relax.Var, RowRegion] = {}
        self.parts: set[relax.Var] = set()  # calls of a model that is in parts already
        self._pieces, self._unbound = pieces, unbound
        self._parameters = frozenset(self.function.params[number_of_inputs(self.function) :])
        self._cut_of: dict[Any, Product | Channels | None] = {}
        body = self.function.body
        if not isinstance(body, relax.SeqExpr):
            return
        before: dict[Any, int] = {}  # by variable: the bindings that it needs and its own, as bits
        heavy = 0
        for position, binding in enumerate(each for block in body.blocks for each in block.bindings):
            used = relax.analysis.free_vars(binding.value)
            divided = is_part(self.mod, binding.value)
            needed = _union(before.get(variable, 0) for variable in used)
            if not divided and (split := self._split(binding.value, before, heavy)) is not None:
                self.splits[binding.var] = split
            if pieces and not divided and (product := self._pieces_of(binding)) is not None:
                self.products[binding.var] = product
            before[binding.var] = needed | 1 << position
            self.parts |= {binding.var} if divided else set()
            heavy |= self._is_heavy(binding.value) << position
        roots = {variable: each.core for variable, each in self.products.items()}
        self.regions = find_regions(self.mod, roots, pieces, self._is_weights)
        self._find_groups(RowSearch(self.mod, pieces, self._is_weights, warm))
        self._inner = {each for members in self.groups.values() for each in members[:-1]}

    def _find_groups(self, search: RowSearch) -> None:
        """Group the calls: tensor-parallel regions, single products, row regions, then single kernels with tails apart."""
        inner = {each for region in self.regions.values() for each in region.inside}
        for variable in search.calls.variables:
            if variable in self.regions:
                self.groups[variable] = self.regions[variable].variables
            elif variable in self.products and variable not in inner:
                self.groups[variable] = (variable,)
        for last, members in self.groups.items() if not self.parts else ():
            if (region := search.within(members)) is not None:
                self.rows[last] = region
        claimed = {each for members in self.groups.values() for each in members}
        others = search.others(claimed) if not self.parts else {}
        self.rows |= others
        self.groups |= {last: region.variables for last, region in others.items()}
        grouped = {each for members in self.groups.values() for each in members}
        self.groups |= {variable: (variable,) for variable in self.splits if variable not in grouped}

    def _is_heavy(self, value: Any) -> bool:
        """Whether a value calls a heavy kernel: alone, fused, or of a kernel library."""
        if not isinstance(value, relax.Call):
            return False
        if isinstance(value.op, tvm.ir.GlobalVar):
            return heavy_binding(self.mod, self.mod[value.op]) is not None
        name = value.op.name if isinstance(value.op, tvm.ir.Op) else ""
        return name == "relax.call_dps_packed" or (name == "relax.call_tir" and pattern(self.mod, value) == HEAVY)

    def _split(self, value: Any, before: dict[Any, int], heavy: int) -> _Split | None:
        """Split a fused call into head and tail, if that lets the head begin earlier."""
        if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.GlobalVar):
            return None
        function = self.mod[value.op]
        operation = heavy_binding(self.mod, function)
        if operation is None or not isinstance(value.ty, relax.TensorType):
            return None
        needed = needs(function)
        core = needed[operation.var]
        arguments = dict(zip(function.params, value.args, strict=True))
        early = _union(before.get(arguments[p], 0) for p in core if p in arguments)
        late = {p for p, a in arguments.items() if p not in core and before.get(a, 0) & ~early & heavy}
        return _cut(function, needed, late, operation.var) if late else None

    def _is_weights(self, expr: Any) -> bool:
        """Whether an operand can be cut in advance: a parameter with a value, or any parameter if ``unbound``."""
        if isinstance(expr, tvm.ir.GenericConst):
            return True
        return self._unbound and isinstance(expr, relax.Var) and expr in self._parameters

    def _pieces_of(self, binding: relax.VarBinding) -> _Pieces | None:
        """Return how to cut a call of a heavy kernel with weights, alone or with an epilogue; None if it cannot be cut."""
        core = core_of(self.mod, binding)
        if core is None or len(core.operands) != 2:
            return None
        first, weights = core.operands
        if not self._is_weights(weights) or not isinstance(first, relax.Var):
            return None
        if core.kernel not in self._cut_of:
            kernel = self.mod[core.kernel]
            self._cut_of[core.kernel] = as_product(kernel, first, weights) or as_channels(kernel, first, weights)
        cut = self._cut_of[core.kernel]
        counts = tuple(n for n in self._pieces if cut and cut.allows(n))
        return _Pieces(cut, core, counts) if cut and counts else None

    def visit(self, variable: Any, value: Any) -> Any:
        """Emit a call, its alternatives and the choice between them; a group's alternatives stand at its last call."""
        if variable in self._inner or variable not in self.groups:
            return super().visit(variable, value)
        members, region, rows = self.groups[variable], self.regions.get(variable), self.rows.get(variable)
        fused = self.emit(self.rebuild(value))
        results = {FUSED if isinstance(value.op, tvm.ir.GlobalVar) else WHOLE: fused}
        if any(each in self.splits for each in members):
            results[APART] = self._recompute(members, APART, 0)
        for cut, counts in self._cuts(members).items():
            results |= {f"{cut}/{count}": self._recompute(members, cut, count) for count in counts}
        if region is not None:
            results |= {f"{TENSOR}/{count}": self._tensor_parallel(region, count, value) for count in region.counts}
            results |= {
                f"{TREE}/{count}": self._tensor_parallel(region, count, value, in_pairs=True)
                for count in region.counts
                if count >= FEWEST_IN_TREE
            }
        if rows is not None:
            results |= {name: self._by_rows(members, parts) for name, parts in rows.parts.items()}
        names = [tvm.ir.StringImm(name) for name in results]
        return self.emit(relax.op.call_pure_packed(CALL, *results.values(), *names, ty_args=fused.ty))

    def _cuts(self, members: Sequence[relax.Var]) -> dict[str, list[int]]:
        """Return the numbers of pieces for each kind of cut that at least one of the calls allows."""
        counts_of: dict[str, set[int]] = {}
        for each in members:
            if each in self.products:
                counts_of.setdefault(self.products[each].cut.name, set()).update(self.products[each].counts)
        return {name: sorted(counts) for name, counts in counts_of.items()}

    def _recompute(self, members: Sequence[relax.Var], kind: str, count: int) -> Any:
        """Emit successive calls again, in the form ``kind`` where a call has it; return the last result."""
        before = {each: self.values[each] for each in members if each in self.values}
        for each in members:
            self.values[each] = self._recompute_call(each, self.definitions[each], kind, count)
        result = self.values.pop(members[-1])
        self.values.update(before)
        return result

    def _recompute_call(self, variable: relax.Var, value: Any, kind: str, count: int) -> Any:
        """Emit a call in the form ``kind``, or as in the graph if it does not have that form."""
        split, pieces = self.splits.get(variable), self.products.get(variable)
        if kind == APART and split is not None:
            arguments = self._arguments(value)
            arguments[split.joint] = self._call(split.head, split.joint, arguments)
            return self._call(split.tail, split.tail[-1].var, arguments)
        if pieces is not None and pieces.cut.name == kind and count in pieces.counts:
            return self._in_pieces(pieces, count, value)
        return self.emit(self.rebuild(value))

    def _in_pieces(self, pieces: _Pieces, count: int, value: relax.Call) -> Any:
        """Emit the pieces of a kernel, their concatenation, and the epilogue."""
        cut, core = pieces.cut, pieces.core
        name = str(core.kernel.name_hint)
        shape = list(known_shape(core.joint))
        first, weights = (self.value(operand) for operand in core.operands)
        results, types = [], []
        for begin, end in cut.pieces(count):
            width = end - begin
            kernel = self.add_kernel(name, partial(cut.kernel, width), (core.kernel, width))
            shape[cut.result_axis] = width
            types.append(relax.TensorType(list(shape), dtype_of(core.joint)))
            part = self.emit(relax.op.strided_slice(weights, [cut.axis], [begin], [end]))
            results.append(self.emit(relax.call_tir(kernel, [first, part], types[-1])))
        return self._join_parts(self._concatenation(types, cut.result_axis), results, core, value)

    def _concatenation(self, types: Sequence[relax.TensorType], axis: int) -> tvm.ir.GlobalVar:
        """Return the kernel that concatenates tensors along an axis."""
        return self.add_kernel("concatenate", lambda: concatenation(types, axis), ("concatenate", str(types), axis))

    def _tensor_parallel(
        self, region: TensorParallelRegion, count: int, value: relax.Call, in_pairs: bool = False
    ) -> Any:
        """Emit the parts of a region, each with its part of all weights, and the sum of their results."""
        core, cutting = region.core, region.cuttings[count]
        results = []
        cut: dict[Any, Any] = {}
        for part in cutting.parts:
            env: dict[relax.Var, Any] = {}
            for member in cutting.members:
                ty = member.part_type(part, cutting.units)
                key = member.kernel, member.axis, member.units, len(part)
                kernel = self.add_kernel(str(member.kernel.name_hint), partial(member.cut.of, len(part)), key)
                intervals = member.intervals_of(part)
                env[member.variable] = self._part_call(kernel, member.arguments, intervals, ty, env, cut)
            results.append(env[core.joint])
        while in_pairs and len(results) > 2:
            add = self._addition(core.joint.ty, 2)
            pairs = [results[k : k + 2] for k in range(0, len(results), 2)]
            results = [
                self.emit(relax.call_tir(add, pair, core.joint.ty)) if len(pair) == 2 else pair[0] for pair in pairs
            ]
        return self._join_parts(self._addition(core.joint.ty, len(results)), results, core, value)

    def _addition(self, ty: relax.TensorType, count: int) -> tvm.ir.GlobalVar:
        """Return the kernel that adds tensors of one type."""
        return self.add_kernel("add", lambda: addition([ty] * count), ("add", str(ty), count))

    def _by_rows(self, members: Sequence[relax.Var], parts: Sequence[Sequence[PartCall]]) -> Any:
        """Emit the calls that are cut for each part of the rows, the others as in the graph, and the concatenation."""
        cut_calls = {call.variable for call in parts[0]}
        before = {each: self.values[each] for each in members if each in self.values}
        for each in members:
            if each not in cut_calls:
                self.values[each] = self.emit(self.rebuild(self.definitions[each]))
        results = []
        cut: dict[Any, Any] = {}
        for part in parts:
            env: dict[relax.Var, Any] = {}
            for call in part:
                key = call.called.variable, call.rows, call.available
                kernel = self.add_kernel(
                    str(call.called.variable.name_hint), partial(call.window.kernel, call.available), key
                )
                env[call.variable] = self._part_call(kernel, call.called.arguments, call.available, call.type, env, cut)
            results.append(env[part[-1].variable])
        self.values.update(before)
        join = self._concatenation([part[-1].type for part in parts], parts[0][-1].rows.axis)
        return self.emit(relax.call_tir(join, results, members[-1].ty))

    def _part_call(
        self,
        kernel: tvm.ir.GlobalVar,
        arguments: Sequence[Any],
        intervals: Sequence[Interval | None],
        ty: Any,
        env: dict[relax.Var, Any],
        cut: dict[Any, Any],
    ) -> Any:
        """Emit a kernel's call for one part: arguments come from ``env``, else they are cut, each interval once."""
        operands = []
        for argument, interval in zip(arguments, intervals, strict=True):
            if isinstance(argument, relax.Var) and argument in env:
                operands.append(env[argument])
                continue
            if (argument, interval) not in cut:
                cut[argument, interval] = self._part(argument, interval)
            operands.append(cut[argument, interval])
        return self.emit(relax.call_tir(kernel, operands, ty))

    def _part(self, argument: Any, part: Interval | None) -> Any:
        """Emit a part of an operand; a kernel cuts activations."""
        whole = self.value(argument)
        if part is None:
            return whole
        if self._is_weights(argument):
            return self.emit(relax.op.strided_slice(whole, [part.axis], [part.begin], [part.end]))
        kernel = self.add_kernel("strided_slice", lambda: part_of(argument.ty, *part), (str(argument.ty), part))
        return self.emit(relax.call_tir(kernel, [whole], part_type(argument.ty, part)))

    def _arguments(self, call: relax.Call) -> dict[Any, Any]:
        """Return the values of a fused function's parameters in a call."""
        return dict(zip(self.mod[call.op].params, (self.value(a) for a in call.args), strict=True))

    def _join_parts(self, join: tvm.ir.GlobalVar, parts: Sequence[Any], core: Core, value: relax.Call) -> Any:
        """Emit the kernel that joins the parts of a heavy kernel, and the epilogue."""
        if not core.epilogue:
            return self.emit(relax.call_tir(join, parts, core.joint.ty))
        inner = [relax.Var(f"piece{k}", part.ty) for k, part in enumerate(parts)]
        joined = relax.VarBinding(core.joint, with_type(relax.call_tir(join, inner, core.joint.ty), core.joint.ty))
        arguments = self._arguments(value) | dict(zip(inner, parts, strict=True))
        return self._call([joined, *core.epilogue], core.epilogue[-1].var, arguments)

    def _call(self, bindings: Sequence[relax.VarBinding], result: relax.Var, values: dict[Any, Any]) -> Any:
        """Emit bindings of a fused function: the call of their kernel, or of a new function that fuses several."""
        if len(bindings) == 1:
            call = bindings[0].value
            arguments = relax.Tuple([values.get(a, a) for a in call.args[1].fields])
            return self.emit(relax.Call(call.op, [call.args[0], arguments, *call.args[2:]], call.attrs, call.ty_args))
        bound = {binding.var for binding in bindings}
        used = dict.fromkeys(v for b in bindings for v in relax.analysis.free_vars(b.value) if v not in bound)
        params = [v for v in used if v in values]
        function = fuse(bindings, result, params)
        key = tvm_ffi.structural_hash(function, map_free_vars=True)
        if key not in self.functions:
            kernels = [str(b.value.args[0].name_hint) for b in bindings]
            self.functions[key] = self.add_function("_".join(["fused", *kernels]), function)
        return self.emit(relax.Call(self.functions[key], [values[v] for v in params]))


def _cut(function: relax.Function, needs: dict[Any, set[Any]], late: set[Any], heavy: Any) -> _Split | None:
    """Split a fused function: the head needs nothing late. Return None if the tail reads more than one of its tensors."""
    bindings = kernel_calls(function)
    if bindings is None:
        return None
    early = [b for b in bindings if not needs[b.var] & late and (b.var.same_as(heavy) or heavy in needs[b.var])]
    joint = early[-1].var
    head = [b for b in bindings if b.var.same_as(joint) or b.var in needs[joint]]
    inside = {b.var for b in head}
    tail = [b for b in bindings if b.var not in inside]
    read_by_tail = {v for b in tail for v in relax.analysis.free_vars(b.value) if v in inside}
    return _Split(tuple(head), tuple(tail), joint) if tail and read_by_tail == {joint} else None


def _union(sets: Iterable[int]) -> int:
    return reduce(or_, sets, 0)
