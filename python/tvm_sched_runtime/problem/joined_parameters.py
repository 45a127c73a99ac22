"""Parameters that lie side by side in the file and travel together: a set of them is one tensor (``docs/model.md``)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..errors import ProblemError
from .graph import Operator, OpGraph


def join_parameters(graph: OpGraph, joined: Sequence[Sequence[str]], most: int) -> OpGraph:
    """Return the graph in which the first parameter of each set has the bytes of all, and its readers are those of all.

    The other parameters of a set stay in the graph, and no operator reads them; so operators and tensors keep their numbers.

    Raises
    ------
    ProblemError
        A set has fewer than two or more than ``most`` parameters (`Topology.most_joined`); a name is in two sets, is not a
        parameter, is a result of the graph, or belongs to another model than the first name of its set.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import Operator, OpGraph, Tensor
    >>> weights = Tensor("w", 4000, "parameter"), Tensor("b", 40, "parameter")
    >>> dense = OpGraph("dense", (Operator("f", inputs=("x", "w", "b"), outputs=("y",)),), (
    ...     Tensor("x", 4, "input"), *weights, Tensor("y", 4)))
    >>> both = join_parameters(dense, [("w", "b")], most=100)
    >>> both.operators[0].inputs, both.tensors[1].size
    (('x', 'w'), 4040)
    """
    size = {tensor.name: tensor.size for tensor in graph.tensors if tensor.kind == "parameter"}
    first: dict[str, str] = {}
    for members in joined:
        if not 2 <= len(members) <= most:
            raise ProblemError(
                f"a set of {len(members)} parameters is joined; here it may have 2 to {most}, one for each nanosecond "
                "of the least latency of a load"
            )
        for name in members:
            if name not in size or name in graph.outputs:
                raise ProblemError(f"{name!r} is joined; only parameters are, that the model does not return")
            if name in first:
                raise ProblemError(f"parameter {name!r} is joined twice; a parameter is in one set")
            if graph.model_of(name) != graph.model_of(members[0]):
                raise ProblemError(
                    f"parameters {members[0]!r} and {name!r} of two models are joined; files have one model"
                )
            first[name] = members[0]
    total = {members[0]: sum(size[name] for name in members) for members in joined}
    tensors = tuple(
        msgspec.structs.replace(tensor, size=total[tensor.name]) if tensor.name in total else tensor
        for tensor in graph.tensors
    )
    operators = tuple(_joined(operator, first, size, total) for operator in graph.operators)
    return msgspec.structs.replace(graph, operators=operators, tensors=tensors)


def _joined(operator: Operator, first: dict[str, str], size: dict[str, int], total: dict[str, int]) -> Operator:
    """Return the operator that reads the first of each set; directly it reads no more bytes than before."""
    if not any(name in first for name in operator.inputs):
        return operator
    known = operator.read_bytes or {}
    read: dict[str, int] = {name: known[name] for name in known if name not in first}
    for name in dict.fromkeys(operator.inputs):
        if name in first:
            read[first[name]] = read.get(first[name], 0) + known.get(name, size[name])
    parts = {name: bytes_ for name, bytes_ in read.items() if name in known or bytes_ < total.get(name, bytes_ + 1)}
    inputs = tuple(dict.fromkeys(first.get(name, name) for name in operator.inputs))
    return msgspec.structs.replace(operator, inputs=inputs, read_bytes=parts or msgspec.UNSET)
