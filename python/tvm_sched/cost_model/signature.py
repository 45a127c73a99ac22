"""Signatures: one line of text for equal kernel calls, which share a measurement; it can be parsed into an operator.

``onednn.matmul_bias|2049000|a float32[1,1024];p float32[1024,1000];p float32[1000]|float32[1,1000]``: kind,
floating-point operations, inputs (a for activations and inputs, p for parameters), outputs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import Operator, OpGraph, Tensor

from .features import dtype_bits

_TENSOR = re.compile(r"(?:([ap]) )?([a-z]\w*)\[((?:\d+(?:,\d+)*)?)\]")


def signature(graph: OpGraph, operator: Operator) -> str:
    """Return the signature of one operator of a graph."""
    tensors = [graph.tensors[graph.index.tensor_id[name]] for name in (*operator.inputs, *operator.outputs)]
    texts = [f"{tensor.dtype or 'uint8'}[{','.join(map(str, _shape(tensor)))}]" for tensor in tensors]
    count = len(operator.inputs)
    read = [f"{'p' if t.kind == 'parameter' else 'a'} {text}" for t, text in zip(tensors[:count], texts, strict=False)]
    return f"{operator.kind}|{operator.flops}|{';'.join(read)}|{';'.join(texts[count:])}"


def signatures(graph: OpGraph) -> list[str]:
    """Return the signature of each operator."""
    return [signature(graph, operator) for operator in graph.operators]


def call_signature(graph: OpGraph) -> str:
    """Return the signature of a call of the model: an operator ``call`` that reads its inputs and writes its outputs."""
    inputs = tuple(tensor.name for tensor in graph.tensors if tensor.kind == "input")
    return signature(graph, Operator("call", "call", inputs, graph.outputs))


def graph_of(texts: Sequence[str]) -> OpGraph:
    """Return a graph with one unconnected operator for each signature.

    Raises
    ------
    InputError
        A text is not a signature.
    """
    operators, tensors = [], []
    for position, text in enumerate(texts):
        parts = text.split("|")
        if len(parts) != 4 or not parts[1].isdigit():
            raise InputError(f"{text!r} is not the signature of an operator: KIND|FLOPS|INPUTS|OUTPUTS")
        read = [_tensor(each, f"{position}.i{k}") for k, each in enumerate(filter(None, parts[2].split(";")))]
        written = [
            _tensor(each, f"{position}.o{k}", "activation") for k, each in enumerate(filter(None, parts[3].split(";")))
        ]
        tensors += [*read, *written]
        inputs, outputs = (tuple(tensor.name for tensor in each) for each in (read, written))
        operators.append(Operator(f"operator{position}", parts[0], inputs, outputs, int(parts[1])))
    return OpGraph("signatures", tuple(operators), tuple(tensors))


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tensor.shape if tensor.dtype else (tensor.size,)


def _tensor(text: str, name: str, kind: str = "") -> Tensor:
    match = _TENSOR.fullmatch(text)
    if match is None:
        raise InputError(f"{text!r} is not a tensor of a signature, such as 'a float32[1,1024]'")
    shape = tuple(int(size) for size in match.group(3).split(",") if size)
    size = (math.prod(shape) * int(dtype_bits(match.group(2))) + 7) // 8
    where = kind or ("parameter" if match.group(1) == "p" else "input")
    return Tensor(name, size, where, shape, match.group(2))  # type: ignore[arg-type]
