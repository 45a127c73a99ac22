"""What an ONNX file says of sizes that its inputs leave open: its weights, its metadata, and the configuration beside it."""

from __future__ import annotations

import json
import re
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..constants import Values
from ..errors import ModelError
from ..shape_examples import IMAGE, Hints
from ..shapes import StaticShapes

if TYPE_CHECKING:
    import onnx

SECONDS = 3.0
"""Longest time for trying proposals."""

_SAME_SHAPE = ("Cast", "Identity", "QuantizeLinear", "DequantizeLinear")
_ARITHMETIC = ("Add", "Sub", "Mul", "Div")
_DIVISIBLE = 32
"""Pictures of most networks are halved five times."""


def size_hints(model: onnx.ModelProto, where: str) -> Hints:
    """Return the sizes of open dimensions that follow from the weights, and those that metadata name."""
    graph = model.graph
    weights = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    found: dict[tuple[str, int], int] = {}
    for item in graph.input:
        rank = len(item.type.tensor_type.shape.dim)
        waiting, seen = [item.name], set[str]()
        while waiting and rank:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            for node in readers.get(name, ()):
                for axis, size in _of_reader(node, name, rank, weights).items():
                    found.setdefault((item.name, axis), size)
                if node.op_type in _SAME_SHAPE or _is_scaling(node, weights):
                    waiting.append(node.output[0])
    return Hints(found, _image_of(model, where))


def _is_scaling(node: onnx.NodeProto, weights: Mapping[str, tuple[int, ...]]) -> bool:
    return node.op_type in _ARITHMETIC and any(name in weights for name in node.input)


def _of_reader(node: onnx.NodeProto, name: str, rank: int, weights: Mapping[str, tuple[int, ...]]) -> dict[int, int]:
    """Return the sizes by axis that a node with constant weights wants of its input."""
    attributes = {item.name: item.i for item in node.attribute}
    first = node.input[0] == name
    second = weights.get(node.input[1]) if len(node.input) > 1 else None
    if first and second:
        if node.op_type in ("Conv", "ConvInteger") and len(second) == rank:
            return {1: second[1] * attributes.get("group", 1)}
        if node.op_type == "ConvTranspose":
            return {1: second[0]}
        if node.op_type in ("MatMul", "MatMulInteger") and len(second) > 1:
            return {rank - 1: second[-2]}
        if node.op_type == "Gemm" and not attributes.get("transA"):
            return {1: second[1 if attributes.get("transB") else 0]}
        if node.op_type in ("LSTM", "GRU", "RNN"):
            return {2: second[2]}
        if node.op_type in ("BatchNormalization", "InstanceNormalization"):
            return {1: second[0]}
    if node.op_type in _ARITHMETIC:
        other = next((weights[each] for each in node.input if each in weights), ())
        return {rank - len(other) + axis: size for axis, size in enumerate(other) if size > 1 and len(other) <= rank}
    return {}


def _image_of(model: onnx.ModelProto, where: str) -> dict[str, int]:
    """Return the size of pictures in the metadata (``imgsz`` of Ultralytics), or in a configuration beside the file."""
    for item in model.metadata_props:
        if item.key in ("imgsz", "image_size", "input_size") and (numbers := re.findall(r"\d+", item.value)):
            return {IMAGE: int(numbers[-1])}
    for name in ("preprocessor_config.json", "config.json"):
        try:
            config = json.loads(Path(where).with_name(name).read_text())
        except (OSError, ValueError):
            continue
        size = _size_of(config)
        if size:
            return {IMAGE: size}
    return {}


def _size_of(config: Any) -> int | None:
    """Return the size of pictures in a configuration of Hugging Face."""
    if not isinstance(config, Mapping):
        return None
    for key in ("crop_size", "size", "image_size"):
        value = config.get(key)
        value = value.get("height", value.get("shortest_edge")) if isinstance(value, Mapping) else value
        if isinstance(value, int) and value > 0:
            return value if key != "size" or value % _DIVISIBLE == 0 else None
    return None


def trial(
    prepare: Callable[[StaticShapes, Values], object],
) -> Callable[[StaticShapes, Values], bool | None]:
    """Return a function that says whether the model can be prepared with these shapes; None after `SECONDS`."""
    begin: list[float] = []

    def fits(shapes: StaticShapes, constants: Values) -> bool | None:
        begin.append(time.monotonic())
        if begin[-1] - begin[0] > SECONDS:
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                prepare(shapes, constants)
        except ModelError:
            return False
        return True

    return fits
