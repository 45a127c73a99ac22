"""Helpers for tests, demonstrations and benchmarks: models with random weights of a sane scale."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx

_WEIGHTED = {"Conv": 1, "ConvTranspose": 1, "Gemm": 1, "MatMul": 1}
_BATCH_NORM_ROLES = {1: "scale", 2: "shift", 3: "shift", 4: "scale"}


def randomise_initializers(model: onnx.ModelProto, seed: int = 0) -> onnx.ModelProto:
    """Fill the floating-point weights of an ONNX model with seeded random values of a sane scale.

    The network structures that the package ``onnx`` ships have constant weights, often made by ``ConstantOfShape``
    nodes, so that all their outputs are equal. Here the weights of convolutions and matrix products get values of He's
    scale, scales and variances lie around 1, all others around 0; the nodes become initialisers. The same seed gives
    the same model.

    Returns
    -------
    onnx.ModelProto
        A changed copy.
    """
    from onnx import helper, numpy_helper

    model = copy.deepcopy(model)
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    shapes: dict[str, tuple[int, ...]] = {}
    replaced: set[str] = set()
    kept_nodes = []
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in constants and _is_float(node):
            shapes[node.output[0]] = tuple(int(n) for n in numpy_helper.to_array(constants[node.input[0]]))
            replaced.add(node.input[0])
        else:
            kept_nodes.append(node)
    for tensor in graph.initializer:
        if tensor.data_type == 1:
            shapes[tensor.name] = tuple(tensor.dims)
    roles = _roles(kept_nodes, shapes)
    rng = np.random.default_rng(seed)
    new = [
        numpy_helper.from_array(_values(rng, shapes[name], roles.get(name, "shift")), name) for name in sorted(shapes)
    ]
    dropped = {name for name in replaced if not any(name in node.input for node in kept_nodes)}
    untouched = [tensor for tensor in graph.initializer if tensor.name not in shapes and tensor.name not in dropped]
    inputs = [item for item in graph.input if item.name not in dropped]
    if model.ir_version < 4:  # there, initialisers stand among the inputs, too
        known = {item.name for item in inputs}
        inputs += [helper.make_tensor_value_info(t.name, 1, t.dims) for t in new if t.name not in known]
    for field, values in ((graph.node, kept_nodes), (graph.initializer, untouched + new), (graph.input, inputs)):
        del field[:]
        field.extend(values)
    return model


def _is_float(node: Any) -> bool:
    value = next((a.t for a in node.attribute if a.name == "value"), None)
    return value is None or value.data_type == 1


def _roles(nodes: list[Any], shapes: dict[str, tuple[int, ...]]) -> dict[str, str]:
    """Return the role of each weight for the node that reads it, also through nodes that only change its shape."""
    alias = {name: name for name in shapes}
    roles: dict[str, str] = {}
    sums = [node for node in nodes if node.op_type in ("Sum", "Add") and not any(name in shapes for name in node.input)]
    added = {name for node in sums for name in node.input}  # what residual sums add up must not grow with every one
    for node in nodes:
        if node.op_type in ("Unsqueeze", "Reshape", "Identity") and node.input[0] in alias:
            alias[node.output[0]] = alias[node.input[0]]
            continue
        for position, name in enumerate(node.input):
            if name not in alias:
                continue
            role = "shift"
            if _WEIGHTED.get(node.op_type) == position:
                transposed = any(a.name == "transB" and a.i for a in node.attribute)
                role = "weight" if node.op_type == "Conv" or transposed else "weight_kn"
            elif node.op_type == "BatchNormalization":
                role = _BATCH_NORM_ROLES[position]
                role = "small scale" if position == 1 and node.output[0] in added else role
            elif node.op_type in ("Mul", "Div"):
                role = "scale"
            roles[alias[name]] = role
    return roles


def _values(rng: np.random.Generator, shape: tuple[int, ...], role: str) -> Any:
    if role == "weight":
        fan_in = int(np.prod(shape[1:]))
    elif role == "weight_kn":
        fan_in = int(np.prod(shape[:-1]))
    elif role == "small scale":
        return rng.uniform(0.1, 0.4, shape).astype(np.float32)
    elif role == "scale":
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    else:
        return rng.normal(0, 0.1, shape).astype(np.float32)
    return (rng.standard_normal(shape) * np.sqrt(2 / max(fan_in, 1))).astype(np.float32)
