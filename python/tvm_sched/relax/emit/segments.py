"""Segments of a model in which data decide sizes or what runs.

A size ends the segment that computes it: what follows is a template, whose sizes the segments before it compute. Branches
and loops that data decide (`tvm_frontends.flow_calls`) run between segments, and their bodies are segments, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_frontends.flow_calls import BODIES, CALL, CARRIED, NO_LIMIT, is_flow, result_values
from tvm_frontends.shapes import DeclaredInput
from tvm_sched_runtime.errors import InputError

from ..ir.attributes import COMPILE_TARGET, NAME, TAIL
from ..ir.runtime_calls import is_copy
from ..lower.dynamic_tail import ENTRY
from ..lower.split_tail import Renamer
from .any_shape import AnyShape, Template, lower_open
from .operand_sizes import tensors


@dataclass(frozen=True)
class Size:
    """A size that data decide: an element of an int64 tensor, or a dimension of a tensor."""

    tensor: relax.Var
    element: int = 0
    dimension: int | None = None

    def place(self) -> dict[str, int]:
        """Return which number it is, as plans write it."""
        return {"element": self.element} if self.dimension is None else {"dimension": self.dimension}


@dataclass(frozen=True)
class Segment:
    """A part of the model, as a model of its own: ``takes`` says what each of its inputs is."""

    placed: tvm.IRModule
    """With problem and schedule in its attributes."""
    template: Template | None
    """None: it has one set of sizes."""
    takes: tuple[relax.Var | Size, ...]
    results: tuple[relax.Var, ...]


@dataclass(frozen=True)
class Block:
    """Parts that run in order, and then the values that they give."""

    parts: tuple[Part, ...]
    results: tuple[relax.Var, ...]


@dataclass(frozen=True)
class Branch:
    """Runs the first block if the condition is true, else the second; their results become ``results``."""

    condition: relax.Var
    blocks: tuple[Block, Block]
    results: tuple[relax.Var, ...]


@dataclass(frozen=True)
class Loop:
    """Runs the block until its trips are done or a condition is false."""

    trips: int | None
    most: relax.Var | None
    """As ``trips``, known when it runs."""
    going: relax.Var | None
    """Whether there is a first iteration; None: there is."""
    again: relax.Var | None
    """Of the block: whether there is another one; None: there is."""
    iteration: relax.Var
    start: tuple[relax.Var, ...]
    carried: tuple[relax.Var, ...]
    """What the block finds of ``start``, or of its first results in the iteration before."""
    block: Block
    collected: tuple[relax.Var, ...]
    """Each the results of the block behind the first ones and ``again``, of all iterations, along a new axis."""
    finals: Mapping[relax.Var, relax.Var]
    """Results that are what is carried in the end."""

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The body."""
        return (self.block,)


Part = Segment | Branch | Loop


@dataclass(frozen=True)
class Segments:
    """What follows the first, static segment of a model."""

    arguments: tuple[relax.Var, ...]
    """The results of the first segment, which is the model's ``main``."""
    parts: tuple[Part, ...]
    results: Any
    """The model's result: arguments and results of the parts, in nested tuples."""

    def segments(self) -> list[Segment]:
        """Return the segments, also those of branches and loops, in order."""
        return list(_segments(self.parts))


def _segments(parts: Sequence[Part]) -> Iterator[Segment]:
    for part in parts:
        if isinstance(part, Segment):
            yield part
        else:
            for block in part.blocks:
                yield from _segments(block.parts)


def make_segments(
    mod: tvm.IRModule,
    schedule_open: Callable[[AnyShape], Template],
    schedule: Callable[[tvm.IRModule], tvm.IRModule],
) -> Segments:
    """Lower and schedule what `SplitTail` moved out of ``main``.

    Parameters
    ----------
    schedule_open, schedule : callable
        Schedules a segment for every size, or one of which all sizes are known.

    Raises
    ------
    InputError
        Kernels for every size do not suffice, as for `lower_any_shape`.
    """
    tail: tvm.IRModule = mod.attrs[TAIL]
    function = tail[ENTRY]
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    result = _tree(function.body.body)
    kernels = tvm.IRModule({v: f for v, f in tail.functions_items() if isinstance(f, tirx.PrimFunc)})
    cutter = _Cutter(mod, schedule_open, schedule, relax.BlockBuilder(kernels))
    last = relax.analysis.free_vars(function.body.body)
    parts = cutter.parts(bindings, mod.attrs.get(BODIES, {}), last, {})
    return Segments(tuple(function.params), parts, result)


@dataclass
class _Cutter:
    """Cuts bindings into segments, and puts the control flow between them.

    A segment has the level of the segments that compute what it reads, and one more for each size, branch or loop in
    between.
    """

    mod: tvm.IRModule
    schedule_open: Callable[[AnyShape], Template]
    schedule: Callable[[tvm.IRModule], tvm.IRModule]
    kernels: relax.BlockBuilder

    def parts(
        self,
        bindings: Sequence[relax.Binding],
        bodies: Mapping[str, Mapping[str, tvm.IRModule]],
        last: Sequence[relax.Var],
        outer: Mapping[tirx.Var, Size],
    ) -> tuple[Part, ...]:
        """Cut the bindings of a scope; ``last`` are its results, and ``outer`` the sizes that are known around it."""
        scope = _Scope(outer)
        for binding in bindings:
            scope.add(binding)
        parts: list[Part] = []
        for number in sorted({*scope.own, *scope.flow}):
            if number in scope.own:
                parts.append(self.segment(scope, number, last))
            for binding, operands in scope.flow.get(number, ()):
                own = bodies[str(binding.value.args[1].value)]
                parts.append(
                    self.loop(scope, binding, operands, own["body"])
                    if "body" in own
                    else self.branch(scope, binding, operands, own)
                )
        return tuple(parts)

    def segment(self, scope: _Scope, number: int, last: Sequence[relax.Var]) -> Segment:
        """Make the segment of a level."""
        bindings = scope.own[number]
        own = [binding.var for binding in bindings]
        later = {*last, *scope.read_after(number)}
        results = tuple(variable for variable in own if variable in later and isinstance(variable.ty, relax.TensorType))
        free = dict.fromkeys(_free(bindings))
        taken = [each for each in free if each not in own and each not in scope.sizes]
        if others := [each.name for each in taken if not isinstance(each.ty, relax.TensorType)]:
            raise InputError(f"an operator behind {others[0]} reads a value that is no tensor")
        used = {each for each in free if each in scope.sizes}
        used = used.union(*map(_symbols, bindings), *(_symbols_of_type(each.ty) for each in taken))
        known = {symbol: size for symbol, size in scope.sizes.items() if symbol in used}
        model = self.model(bindings, taken, list(known), results)
        if not used:
            return Segment(self.schedule(model), None, tuple(taken), results)
        lengths = [
            DeclaredInput(variable.name, tuple(map(_dimension, variable.ty.shape.values)), str(variable.ty.dtype))
            for variable in model["main"].params
        ]
        template = self.schedule_open(lower_open(model, tuple(lengths), {}))
        return Segment(template.placed, template, (*known.values(), *taken), results)

    def branch(
        self,
        scope: _Scope,
        binding: relax.Binding,
        operands: Sequence[relax.Expr],
        bodies: Mapping[str, tvm.IRModule],
    ) -> Branch:
        """Make an if: of its results those that something reads."""
        condition, *given = operands
        found = scope.results[binding.var]
        then, other = (
            self.block(bodies[which], *self.inlined(bodies[which], given), list(found), scope.sizes)
            for which in ("then", "else")
        )
        return Branch(condition, (then, other), tuple(found.values()))

    def loop(self, scope: _Scope, binding: relax.Binding, operands: Sequence[relax.Expr], body: tvm.IRModule) -> Loop:
        """Make a loop; the results after the carried ones are those that something reads."""
        most, going, *given = operands
        changing = [list(map(int, axes)) for axes in body.attrs[CARRIED]]
        count, found = len(changing), scope.results[binding.var]
        iteration, sizes, carried = relax.Var("iteration", relax.TensorType([], "int64")), dict(scope.sizes), []
        for k, (value, axes) in enumerate(zip(given, changing, strict=False)):
            dims = [
                tirx.Var(f"each{k}_{axis}", "int64") if axis in axes else size
                for axis, size in enumerate(value.ty.shape.values)
            ]
            carried.append(relax.Var(f"carried{k}", relax.TensorType(dims, value.ty.dtype)))
            sizes |= {dims[axis]: Size(carried[-1], dimension=axis) for axis in axes}
        bindings, values = self.inlined(body, [iteration, *carried, *given[count:]])
        always = isinstance(values[0], tvm.ir.GenericConst) and bool(values[0].value.numpy().all())
        parts = [position for position in found if position >= count]
        positions = [*range(1, count + 1), *([] if always else [0]), *(position + 1 for position in parts)]
        block = self.block(body, bindings, values, positions, sizes)
        return Loop(
            0 if _number(going) == 0 else _number(most),
            most if isinstance(most, relax.Var) else None,
            going if isinstance(going, relax.Var) else None,
            None if always else block.results[count],
            iteration,
            tuple(given[:count]),
            tuple(carried),
            block,
            tuple(found[position] for position in parts),
            {found[k]: carried[k] for k in found if k < count},
        )

    def block(
        self,
        mod: tvm.IRModule,
        bindings: list[relax.Binding],
        values: Sequence[relax.Expr],
        positions: Sequence[int],
        sizes: Mapping[tirx.Var, Size],
    ) -> Block:
        """Cut a body, which gives of its ``values`` those at these positions."""
        results = []
        for value in (values[position] for position in positions):
            if not isinstance(value, relax.Var):
                bindings.append(relax.VarBinding(relax.Var("result", value.ty), value))
            results.append(value if isinstance(value, relax.Var) else bindings[-1].var)
        bodies = mod.attrs[BODIES] if mod.attrs and BODIES in mod.attrs else {}
        return Block(self.parts(bindings, bodies, results, sizes), tuple(results))

    def inlined(self, mod: tvm.IRModule, given: Sequence[relax.Var]) -> tuple[list[relax.Binding], list[relax.Expr]]:
        """Return the bindings and results of a body, in terms of the variables and sizes around it."""
        mod = relax.transform.ToNonDataflow()(mod)
        function = mod["main"]
        sizes: dict[tirx.Var, Any] = {}
        for param, value in zip(function.params, given, strict=True):
            pairs = zip(param.ty.shape.values, value.ty.shape.values, strict=True)
            sizes |= {own: size for own, size in pairs if isinstance(own, tirx.Var)}
        function = function.bind_symbolic_vars(sizes) if sizes else function
        kernels = {
            v: self.kernels.add_func(f, v.name_hint) for v, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)
        }
        renamed = Renamer({**dict(zip(function.params, given, strict=True)), **kernels}).visit_expr(function.body)
        bindings = [binding for block in renamed.blocks for binding in block.bindings]
        return bindings, result_values(renamed)

    def model(
        self,
        bindings: Sequence[relax.Binding],
        taken: Sequence[relax.Var],
        sizes: Sequence[tirx.Var],
        results: tuple[relax.Var, ...],
    ) -> tvm.IRModule:
        """Make a model of a segment: its inputs are a tensor without content for each size, then ``taken``."""
        lengths = [relax.Var(f"{symbol.name}{k}", relax.TensorType([symbol], "bool")) for k, symbol in enumerate(sizes)]
        body = relax.SeqExpr([relax.BindingBlock(bindings)], relax.Tuple(results))
        function = relax.Function([*lengths, *taken], body, relax.TupleType([each.ty for each in results]), True)
        function = function.with_attrs({"num_input": len(lengths) + len(taken), "global_symbol": "main"})
        builder = relax.BlockBuilder(self.kernels.get())
        builder.add_func(function, "main")
        model = relax.transform.DeadCodeElimination(["main"])(builder.finalize())
        model = relax.transform.ConvertToDataflow(1)(model)
        return model.with_attrs(
            {name: self.mod.attrs[name] for name in (NAME, COMPILE_TARGET) if name in self.mod.attrs}
        )


class _Scope:
    """Bindings by their level, and the sizes that are known among them."""

    def __init__(self, outer: Mapping[tirx.Var, Size]) -> None:
        self.sizes = dict(outer)
        self.own: dict[int, list[relax.Binding]] = {}
        self.flow: dict[int, list[tuple[relax.Binding, list[relax.Expr]]]] = {}
        """Calls of branches and loops, with their operands; they run behind the segment of the level."""
        self.results: dict[relax.Var, dict[int, relax.Var]] = {}
        """Results of such a call by position."""
        self._level: dict[Any, int] = {}  # of variables and sizes; what is known around the scope has none
        self._shapes: dict[relax.Var, relax.Var] = {}  # of tensors whose elements are sizes
        self._fields: dict[relax.Var, tuple[relax.Var, int]] = {}  # of calls of branches and loops

    def add(self, binding: relax.Binding) -> None:
        """Add a binding that follows the others."""
        value = binding.value
        if (tensor := _shape_source(value)) is not None:
            self._shapes[binding.var] = tensor
        elif isinstance(binding, relax.MatchCast) and value in self._shapes:
            tensor = self._shapes[value]
            for element, size in enumerate(binding.var.ty.values):
                if not isinstance(size, tirx.Var) or size in self.sizes:
                    raise InputError(f"size {size} that data decide has to equal another")
                self.sizes[size], self._level[size] = Size(tensor, element), self._level.get(tensor, 0) + 1
        elif is_flow(value):
            limits = 2 if str(value.args[0].global_symbol) == f"{CALL}loop" else 0  # these may remain numbers
            operands = [
                operand if k < limits and isinstance(operand, tvm.ir.GenericConst) else self._variable(operand)
                for k, operand in enumerate(value.args[2:])
            ]
            number = max((self._level.get(operand, 0) for operand in operands), default=0)
            self.flow.setdefault(number, []).append((binding, operands))
            self._level[binding.var], self.results[binding.var] = number + 1, {}
        elif (
            isinstance(value, relax.TupleGetItem)
            and value.tuple_value in self.results
            and not isinstance(binding, relax.MatchCast)
        ):
            self._fields[binding.var] = value.tuple_value, value.index
        elif isinstance(binding, relax.MatchCast) and (field := self._field(value)):
            call, position = field
            self.results[call][position] = binding.var
            self._level[binding.var] = self._level[call]
            for axis, size in enumerate(binding.var.ty.shape.values):
                if isinstance(size, tirx.Var) and size not in self.sizes:
                    self.sizes[size], self._level[size] = Size(binding.var, dimension=axis), self._level[call]
        else:
            if isinstance(value, relax.Call) and is_copy(value):  # results are copied where that is needed
                binding = relax.VarBinding(binding.var, value.args[1])
            self._own(binding)

    def _own(self, binding: relax.Binding) -> None:
        needed = [*relax.analysis.free_vars(binding.value), *_symbols(binding)]
        number = max([1, *(self._level.get(each, 0) for each in needed)])
        self._level[binding.var] = number
        self.own.setdefault(number, []).append(binding)

    def _variable(self, operand: relax.Expr) -> relax.Var:
        """Return a variable for an operand, which may be a constant."""
        if isinstance(operand, relax.Var):
            return operand
        self._own(relax.VarBinding(relax.Var("constant", operand.ty), operand))
        return self.own[1][-1].var

    def _field(self, value: relax.Expr) -> tuple[relax.Var, int] | None:
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self.results:
            return value.tuple_value, value.index
        return self._fields.get(value)

    def read_after(self, number: int) -> Iterator[relax.Var]:
        """Yield what is read behind the segment of a level."""
        for level, bindings in self.own.items():
            if level > number:
                yield from _free(bindings)
        for level, calls in self.flow.items():
            if level >= number:
                yield from (each for _, operands in calls for each in operands if isinstance(each, relax.Var))
        for symbol, size in self.sizes.items():
            if self._level.get(symbol, 0) > number:
                yield size.tensor


def has_flow(mod: tvm.IRModule) -> bool:
    """Whether data decide what runs in a module."""
    return BODIES in mod.attrs


def _number(value: relax.Expr) -> int | None:
    number = int(value.value.numpy().reshape(-1)[0]) if isinstance(value, tvm.ir.GenericConst) else NO_LIMIT
    return None if number == NO_LIMIT else max(number, 0)


def _tree(result: relax.Expr) -> Any:
    if isinstance(result, relax.Tuple):
        return tuple(map(_tree, result.fields))
    if not isinstance(result.ty, relax.TensorType):
        raise InputError("the model returns a tuple that an operator makes")
    return result


def _shape_source(value: relax.Expr) -> relax.Var | None:
    """Return the tensor whose elements a call makes a shape, before or behind TVM's decomposition."""
    name = getattr(getattr(value, "op", None), "name", "")
    if name == "relax.tensor_to_shape":
        return value.args[0]
    if name == "relax.call_pure_packed" and value.args[0].global_symbol == "vm.builtin.tensor_to_shape":
        return value.args[1]
    return None


def _free(bindings: Sequence[relax.Binding]) -> list[relax.Var]:
    return [variable for binding in bindings for variable in relax.analysis.free_vars(binding.value)]


def _symbols(binding: relax.Binding) -> set[tirx.Var]:
    """Return the symbols in a binding's shapes."""
    found: set[tirx.Var] = set()

    def note(size: Any) -> None:
        found.update(tirx.analysis.undefined_vars(size))

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.ShapeExpr):
            for size in expr.values:
                note(size)
        elif isinstance(expr, relax.Tuple):
            for field in expr.fields:
                if tvm.ir.is_prim_expr(field):
                    note(field)

    relax.analysis.post_order_visit(binding.value, visit)
    return found | _symbols_of_type(binding.var.ty)


def _symbols_of_type(ty: Any) -> set[tirx.Var]:
    sizes = [size for tensor in tensors(ty) for size in getattr(tensor.shape, "values", ())]
    return {symbol for size in sizes for symbol in tirx.analysis.undefined_vars(size)}


def _dimension(size: Any) -> Any:
    return int(size) if isinstance(size, tirx.IntImm) else size.name if isinstance(size, tirx.Var) else None
