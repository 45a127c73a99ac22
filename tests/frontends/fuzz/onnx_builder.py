"""A random ONNX graph under construction: its values, with shapes, bounds and exactness."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

OPSET = 18
LARGEST = 4096
"""Most elements of a tensor."""

Draw = Callable[[Any], Any]


@dataclass(frozen=True)
class Value:
    """A tensor of the graph."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    exact: bool = True
    """Whether every correct implementation computes the same bits. Rounding and comparisons need such values, since they
    turn a difference in the last bit into a large one."""
    bound: float = 4.0
    """Largest magnitude of an element; operators that grow fast need small ones."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype="int64"))


@dataclass
class GraphBuilder:
    """Collects nodes, inputs and initializers; ``seed`` determines their numbers."""

    seed: int
    nodes: list[Any] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    initializers: dict[str, npt.NDArray[np.generic]] = field(default_factory=dict)
    values: list[Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def numbers(self, dtype: str, shape: Sequence[int]) -> npt.NDArray[np.generic]:
        """Return random numbers of a type, in magnitude up to 4; bytes use their whole range."""
        shape = tuple(shape)
        if dtype == "bool":
            return self.random.random(shape) < 0.5
        if dtype.startswith("float"):
            return np.clip(self.random.standard_normal(shape), -4, 4).astype(dtype)
        if dtype in ("uint8", "int8"):
            info = np.iinfo(dtype)
            return self.random.integers(info.min, info.max, shape, dtype, endpoint=True)
        return self.random.integers(-4, 5, shape).astype(dtype)

    def add_input(self, dtype: str, shape: Sequence[int]) -> Value:
        """Add an input."""
        value = Value(f"x{len(self.inputs)}", dtype, tuple(shape), bound=255.0 if dtype.endswith("int8") else 4.0)
        self.inputs.append(value)
        self.values.append(value)
        return value

    def constant(self, array: npt.ArrayLike, dtype: str | None = None) -> Value:
        """Add an initializer, which later nodes can read, too."""
        values = np.asarray(array, dtype)
        value = Value(f"c{len(self.initializers)}", values.dtype.name, values.shape)
        self.initializers[value.name] = values
        return value

    def weight(self, shape: Sequence[int], dtype: str = "float32") -> Value:
        """Add an initializer with random numbers."""
        return self.constant(self.numbers(dtype, shape))

    def pick(self, draw: Draw, fits: Callable[[Value], bool]) -> Value | None:
        """Draw one of the values that fit; hypothesis prefers later ones."""
        from hypothesis import strategies as st

        candidates = [value for value in reversed(self.values) if fits(value)]
        return draw(st.sampled_from(candidates)) if candidates else None

    def add(
        self,
        operator: str,
        inputs: Sequence[Value | None],
        *,
        exact: bool = False,
        bound: float = 4.0,
        outputs: int = 1,
        **attributes: Any,
    ) -> list[Value]:
        """Add a node unless its results are too large; returns its outputs."""
        names = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        node = helper.make_node(
            operator, [value.name if value else "" for value in inputs], names, f"n{len(self.nodes)}", **attributes
        )
        types = _infer(node, [value for value in inputs if value], self.initializers)
        results = []
        for name in names:
            tensor = types[name].tensor_type
            shape = tuple(d.dim_value for d in tensor.shape.dim)
            results.append(Value(name, helper.tensor_dtype_to_np_dtype(tensor.elem_type).name, shape, exact, bound))
        if any(value.size > LARGEST or len(value.shape) > 5 for value in results):
            return []
        self.nodes.append(node)
        self.values += results
        return results

    def model(self, outputs: Sequence[Value]) -> onnx.ModelProto:
        """Return the graph as a model with these outputs."""
        graph = helper.make_graph(
            self.nodes,
            "random",
            [_info(value) for value in self.inputs],
            [_info(value) for value in outputs],
            [numpy_helper.from_array(array, name) for name, array in self.initializers.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)

    def feeds(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return values of the inputs."""
        random = GraphBuilder(self.seed + 1)
        return {value.name: np.asarray(random.numbers(value.dtype, value.shape)) for value in self.inputs}


def _info(value: Value) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(
        value.name, helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype)), value.shape
    )


def _infer(node: Any, inputs: Sequence[Value], initializers: dict[str, Any]) -> dict[str, Any]:
    """Return the types of a node's outputs by ONNX's own inference."""
    schema = onnx.defs.get_schema(node.op_type, OPSET, "")
    types = {value.name: _info(value).type for value in inputs}
    known = {v.name: numpy_helper.from_array(initializers[v.name], v.name) for v in inputs if v.name in initializers}
    return dict(
        onnx.shape_inference.infer_node_outputs(
            schema, node, types, known, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8
        )
    )
