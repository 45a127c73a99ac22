"""Write ONNX models for a plan: with annotated nodes, or cut into parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm_sched_runtime.errors import InputError

from .operators import OperatorModel

ANNOTATION = "layer_ann"
"""Key of a node's metadata that ONNX Runtime reads."""
_MOST = (1 << 31) - 1


def annotated(source: OperatorModel, runs: Sequence[tuple[str, int, int]]) -> bytes:
    """Return the model with the kind of device of each node; ``runs`` are (device, first node, node after the last)."""
    model = _copy(source)
    for device, first, last in runs:
        for node in model.graph.node[first:last]:
            entry = (
                next((prop for prop in node.metadata_props if prop.key == ANNOTATION), None)
                or node.metadata_props.add()
            )
            entry.key, entry.value = ANNOTATION, f"tvm_sched.{device}"
    return _bytes(model, source)


def parts_of(source: OperatorModel, runs: Sequence[tuple[int, int]]) -> list[bytes]:
    """Return a model for each run of nodes.

    Its inputs are results of earlier runs; its outputs are the results that later runs or the caller read.
    """
    model = source.loaded
    nodes = list(model.graph.node)
    index = source.graph.index
    tensors = source.graph.tensors
    returned = {value.name for value in model.graph.output}
    known = {value.name: value for value in (*model.graph.input, *model.graph.value_info, *model.graph.output)}
    parts = []
    for first, last in runs:
        read = dict.fromkeys(t for o in range(first, last) for t in index.inputs[o])
        produced = {t for o in range(first, last) for t in index.outputs[o]}
        outside = [tensors[t].name for t in read if t not in produced and tensors[t].kind != "parameter"]
        weights = {tensors[t].name for t in read if tensors[t].kind == "parameter"}
        outputs = [
            tensors[t].name
            for t in sorted(produced)
            if tensors[t].name in returned or any(not first <= o < last for o in index.consumers[t])
        ]
        part = type(model)()
        part.CopyFrom(model)
        for field in ("node", "initializer", "input", "output", "value_info"):
            part.graph.ClearField(field)
        part.graph.node.extend(nodes[first:last])
        part.graph.initializer.extend(w for w in model.graph.initializer if w.name in weights)
        part.graph.input.extend(known[name] for name in outside)
        part.graph.output.extend(known[name] for name in outputs)
        parts.append(_bytes(part, source))
    return parts


def _copy(source: OperatorModel) -> Any:
    model = type(source.loaded)()
    model.CopyFrom(source.loaded)
    return model


def _bytes(model: Any, source: OperatorModel) -> bytes:
    size = model.ByteSize()
    if size > _MOST:
        raise InputError(
            f"{source.path}: a part of it has {size} bytes, more than an ONNX file holds; save the model with external "
            "data first"
        )
    return bytes(model.SerializeToString())
