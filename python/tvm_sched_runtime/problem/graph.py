"""The operator graph: operators and the tensors between them, with an index of integers for algorithms."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import msgspec

from ..checks import require_name, require_unique
from ..errors import GraphError
from .demand import Demand

MOST_BYTES = 1 << 53
"""Largest size of a tensor: JSON's numbers are exact up to it, and sums over a thousand tensors fit into 64 bits."""
MOST_FLOPS = (1 << 63) - 1

_DTYPE = re.compile(
    r"bool|u?int(1|2|4|8|16|32|64)|float(16|32|64)|bfloat16|tf32|float(4|6|8)_e\w+|complex(64|128)", flags=re.ASCII
)

TensorKind = Literal["activation", "input", "parameter"]


class Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor of the graph.

    Examples
    --------
    >>> Tensor("w", size=8000, kind="parameter", shape=(50, 40), dtype="float32").kind
    'parameter'
    """

    name: str
    """Unique in the graph."""
    size: int
    """Bytes."""
    kind: TensorKind = "activation"
    """An operator computes an activation; inputs and parameters are in host memory when a run begins."""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    """Shape and data type, for people and kernels; schedulers use ``size`` only. Data types have TVM's names, such as
    ``float32``. ``tf32`` tells a cost model that products of float32 use TF32."""

    def __post_init__(self) -> None:
        require_name("a tensor", self.name, GraphError)
        if self.size < 0:
            raise GraphError(f"tensor {self.name!r} has size {self.size}; a size is 0 or more bytes")
        if self.size > MOST_BYTES:
            raise GraphError(f"tensor {self.name!r} has size {self.size}; at most {MOST_BYTES} bytes are allowed")
        if any(extent < 0 for extent in self.shape) or math.prod(self.shape) > MOST_BYTES:
            raise GraphError(
                f"tensor {self.name!r} has the shape {list(self.shape)}; extents are 0 or more, and at most {MOST_BYTES} "
                "elements are allowed"
            )
        if self.dtype and not _DTYPE.fullmatch(self.dtype):
            raise GraphError(f"tensor {self.name!r} has dtype {self.dtype!r}; allowed are such as float32, int64, bool")


class Operator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An operator: one kernel call.

    Examples
    --------
    >>> Operator("join", kind="add", inputs=("a", "b"), outputs=("y",), flops=1000).outputs
    ('y',)
    """

    name: str
    """Unique in the graph."""
    kind: str = ""
    """The computation, such as ``"conv2d_add_relu"``, for cost models and people."""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    """Names of tensors; an input may occur twice."""
    flops: int = 0
    """Floating-point operations."""
    read_bytes: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    """Bytes read of inputs that are read in part, such as the table of a lookup. Inputs that it does not name are read
    whole."""
    demand: Demand | msgspec.UnsetType = msgspec.UNSET
    """Resources that its kernels take on a GPU."""

    def __post_init__(self) -> None:
        require_name("an operator", self.name, GraphError)
        for tensor, size in (self.read_bytes or {}).items():
            if tensor not in self.inputs:
                raise GraphError(f"operator {self.name!r}: read_bytes names {tensor!r}, which is not one of its inputs")
            if size < 0:
                raise GraphError(f"operator {self.name!r} reads {size} bytes of {tensor!r}; 0 or more are allowed")
        if not 0 <= self.flops <= MOST_FLOPS:
            raise GraphError(
                f"operator {self.name!r} has {self.flops} floating-point operations; 0 to {MOST_FLOPS} are allowed"
            )


class OpGraph(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """A directed acyclic graph of operators.

    Operators may be in any order. ``outputs`` are the tensors that the model returns: activations, or inputs and parameters
    passed through. ``models`` names the models of a merged graph (`merge_graphs`); names of their operators begin with the
    model's name and a slash. Empty: one model. A model may read tensors of an earlier one (`generation_problem`).

    Raises
    ------
    GraphError
        A name occurs twice, a tensor is unknown, an activation has no or two producers, there is a cycle (the message names
        its operators), or a model reads a tensor of a later one.

    Examples
    --------
    >>> pair = OpGraph(
    ...     "two",
    ...     operators=(Operator("g", inputs=("y",), outputs=("z",)), Operator("f", inputs=("x",), outputs=("y",))),
    ...     tensors=(Tensor("x", 4, "input"), Tensor("y", 4), Tensor("z", 4)),
    ...     outputs=("z",),
    ... )
    >>> pair.index.order
    [1, 0]
    """

    name: str
    operators: tuple[Operator, ...]
    tensors: tuple[Tensor, ...]
    outputs: tuple[str, ...] = ()
    models: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_unique("operator name", [operator.name for operator in self.operators], GraphError)
        require_unique("tensor name", [tensor.name for tensor in self.tensors], GraphError)
        known = {tensor.name: tensor.kind for tensor in self.tensors}
        size_of = {tensor.name: tensor.size for tensor in self.tensors}
        made_by: dict[str, str] = {}
        for operator in self.operators:
            for name in (*operator.inputs, *operator.outputs):
                if name not in known:
                    raise GraphError(f"operator {operator.name!r} names tensor {name!r}, which the graph does not list")
            for name in operator.outputs:
                if known[name] != "activation":
                    raise GraphError(f"operator {operator.name!r} writes {name!r}, which is of kind {known[name]!r}")
                if name in made_by:
                    raise GraphError(f"tensor {name!r} is made by {made_by[name]!r} and again by {operator.name!r}")
                made_by[name] = operator.name
            for name, read in (operator.read_bytes or {}).items():
                if read > size_of[name]:
                    raise GraphError(
                        f"operator {operator.name!r} reads {read} bytes of {name!r}, which has {size_of[name]}"
                    )
        for name, kind in known.items():
            if kind == "activation" and name not in made_by:
                raise GraphError(f"tensor {name!r} is an activation, but no operator makes it")
        for name in self.outputs:
            if name not in known:
                raise GraphError(f"output {name!r} is not a tensor of the graph")
        require_unique("model name", self.models, GraphError)
        _ = self.index.order  # finds cycles
        _ = self.models_in_turn  # finds operators of no model, and models in a wrong order

    def without_demands(self) -> OpGraph:
        """Return the graph without the demands of its operators."""
        if not any(operator.demand for operator in self.operators):
            return self
        bare = tuple(msgspec.structs.replace(operator, demand=msgspec.UNSET) for operator in self.operators)
        return msgspec.structs.replace(self, operators=bare)

    @cached_property
    def operators_of_models(self) -> list[list[int]]:
        """Positions of the operators of each of ``models``; of all operators if the graph is one model."""
        if not self.models:
            return [list(range(len(self.operators)))]
        members: dict[str, list[int]] = {model: [] for model in self.models}
        for o, operator in enumerate(self.operators):
            model_name = self.model_of(operator.name)
            if model_name not in members:
                raise GraphError(f"operator {operator.name!r} belongs to none of the models {', '.join(self.models)}")
            members[model_name].append(o)
        return list(members.values())

    @cached_property
    def models_in_turn(self) -> bool:
        """Whether some of ``models`` read tensors of others, so that they run one after another."""
        position = {o: m for m, members in enumerate(self.operators_of_models) for o in members}
        in_turn = False
        for o, before in enumerate(self.index.predecessors):
            for p in before:
                if position[p] > position[o]:
                    raise GraphError(
                        f"operator {self.operators[o].name!r} reads what {self.operators[p].name!r} makes, which is of a "
                        f"later model; models stand in the order in which they follow each other"
                    )
                in_turn = in_turn or position[p] < position[o]
        return in_turn

    def model_of(self, name: str) -> str:
        """Return which of ``models`` an operator or tensor belongs to, by its name; empty: none."""
        return max((model for model in self.models if name.startswith(f"{model}/")), key=len, default="")

    @cached_property
    def index(self) -> GraphIndex:
        """The graph in integers, computed once."""
        return GraphIndex.of(self)

    def with_inputs_in_place(self, in_place: bool = True) -> OpGraph:
        """The same graph with an index in which operators do not read graph inputs, or do.

        On machines that map storage these are in memory when a run begins, and nothing has to bring them
        (``docs/model.md``, "Storage").
        """
        if (self.index.inputs_in_place if "index" in self.__dict__ else False) == in_place:
            return self
        copy = msgspec.structs.replace(self)
        if in_place:
            copy.__dict__["index"] = GraphIndex.of(self, inputs_in_place=True)
        return copy


@dataclass(frozen=True)
class GraphIndex:
    """The graph with operators and tensors as positions in ``OpGraph.operators`` and ``OpGraph.tensors``.

    Examples
    --------
    >>> index = problem.graph.index
    >>> index.operator_id["join"], index.predecessors[index.operator_id["join"]]
    (2, [0, 1])
    >>> [problem.graph.operators[o].name for o in index.order]
    ['left', 'right', 'join']
    """

    operator_id: dict[str, int]
    tensor_id: dict[str, int]
    size: list[int]
    inputs: list[tuple[int, ...]]
    outputs: list[tuple[int, ...]]
    """Distinct tensors that operator ``o`` reads and writes."""
    producer: list[int]
    """Operator that computes tensor ``t``, -1 for inputs and parameters."""
    consumers: list[list[int]]
    """Operators that read tensor ``t``, in order."""
    host_inputs: list[tuple[int, ...]]
    """Graph inputs and parameters among ``inputs[o]``: they are in host memory at the start."""
    host_bytes: list[tuple[int, ...]]
    """Bytes that operator ``o`` reads of each of ``host_inputs[o]``."""
    predecessors: list[list[int]]
    successors: list[list[int]]
    """Operators next to operator ``o``, ascending, distinct."""
    order: list[int]
    """A topological order; among free operators the one listed first comes first."""
    graph_outputs: tuple[int, ...]
    """Distinct tensors that the model returns."""
    inputs_in_place: bool = False
    """Whether graph inputs are left out of ``inputs``."""

    @staticmethod
    def of(graph: OpGraph, inputs_in_place: bool = False) -> GraphIndex:
        """Number a graph; with ``inputs_in_place``, without the reads of graph inputs.

        Raises
        ------
        GraphError
            The graph has a cycle.
        """
        tensor_id = {tensor.name: t for t, tensor in enumerate(graph.tensors)}
        in_place = {tensor.name for tensor in graph.tensors if inputs_in_place and tensor.kind == "input"}
        inputs = [
            tuple(dict.fromkeys(tensor_id[n] for n in operator.inputs if n not in in_place))
            for operator in graph.operators
        ]
        outputs = [tuple(tensor_id[n] for n in operator.outputs) for operator in graph.operators]
        producer = [-1] * len(graph.tensors)
        consumers: list[list[int]] = [[] for _ in graph.tensors]
        for o, written in enumerate(outputs):
            for t in written:
                producer[t] = o
        predecessors: list[list[int]] = []
        successors: list[list[int]] = [[] for _ in graph.operators]
        for o, read in enumerate(inputs):
            before = sorted({producer[t] for t in read if producer[t] >= 0})
            predecessors.append(before)
            for p in before:
                successors[p].append(o)
            for t in read:
                consumers[t].append(o)
        host_inputs = [tuple(t for t in read if producer[t] < 0) for read in inputs]
        host_bytes = [
            tuple((operator.read_bytes or {}).get(graph.tensors[t].name, graph.tensors[t].size) for t in read)
            for operator, read in zip(graph.operators, host_inputs, strict=True)
        ]
        return GraphIndex(
            operator_id={operator.name: o for o, operator in enumerate(graph.operators)},
            tensor_id=tensor_id,
            size=[tensor.size for tensor in graph.tensors],
            inputs=inputs,
            outputs=outputs,
            producer=producer,
            consumers=consumers,
            host_inputs=host_inputs,
            host_bytes=host_bytes,
            predecessors=predecessors,
            successors=successors,
            order=_topological_order(graph, predecessors, successors),
            graph_outputs=tuple(dict.fromkeys(tensor_id[n] for n in graph.outputs)),
            inputs_in_place=inputs_in_place,
        )


def neighbours(count: int, edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return, for each of ``count`` nodes, the nodes to which its edges lead."""
    rows: list[list[int]] = [[] for _ in range(count)]
    for u, v in edges:
        rows[u].append(v)
    return rows


def _topological_order(graph: OpGraph, predecessors: list[list[int]], successors: list[list[int]]) -> list[int]:
    import heapq

    waiting = [len(before) for before in predecessors]
    free = [o for o, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    while free:
        o = heapq.heappop(free)
        order.append(o)
        for s in successors[o]:
            waiting[s] -= 1
            if waiting[s] == 0:
                heapq.heappush(free, s)
    if len(order) < len(graph.operators):
        raise GraphError(f"the graph has a cycle: {' -> '.join(_cycle(graph, predecessors, waiting))}")
    return order


def _cycle(graph: OpGraph, predecessors: list[list[int]], waiting: list[int]) -> list[str]:
    """Walk backwards among operators that never became free: each has such a predecessor, so the walk must close."""
    at = next(o for o, count in enumerate(waiting) if count > 0)
    walk: list[int] = []
    while at not in walk:
        walk.append(at)
        at = next(p for p in predecessors[at] if waiting[p] > 0)
    loop = walk[walk.index(at) :][::-1]
    return [graph.operators[o].name for o in (*loop, loop[0])]
