"""The operator graphs that IOS and HIOS schedule, as IOS's program exports them, and the stages that IOS published.

Operators are those of Ding et al., *IOS: inter-operator scheduler for CNN acceleration* (MLSys 2021): a convolution with its
activation, a pooling, a sum or concatenation, and ReLU with a separable convolution are one operator each. An operator
launches a kernel for each of its layers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from pathlib import Path

import msgspec
import numpy as np

from tvm_sched.cost_model import get_cost_model
from tvm_sched_runtime.errors import FormatError
from tvm_sched_runtime.files import UNREADABLE, why_unreadable
from tvm_sched_runtime.problem import (
    Concurrency,
    Costs,
    Demand,
    KernelResources,
    Operator,
    OpGraph,
    Problem,
    Tensor,
    Topology,
)
from tvm_sched_runtime.schedule import Placement, Schedule

FLOAT32 = 4
CELL_TENSORS = 4
"""A cell of NASNet ends in a concatenation of this many tensors or more."""
Shape = tuple[int, int, int]


class Layer(msgspec.Struct):
    """A node of the file; ``nodes`` are the layers of one operator, in turn.

    ``inputs`` are channels [begin, end) of nodes: the outer list concatenates, the inner one adds.
    """

    type: str
    name: str
    output_shape: Shape
    inputs: list[list[tuple[str, int, int]]] = []
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    groups: int = 1
    pool_type: str = ""
    nodes: list[Layer] = []

    @property
    def layers(self) -> list[Layer]:
        """The layers that are computed, one kernel each."""
        return self.nodes or [self]

    def reads(self) -> Iterator[tuple[str, int, int]]:
        """Yield node, first channel and end of all that the operator reads."""
        for term in self.layers[0].inputs:
            yield from term

    def shape_from(self, shape: Shape) -> Shape:
        """Return the output's shape for inputs of ``shape``, whose channels are those of all terms."""
        channels, height, width = shape
        if self.pool_type.startswith("global"):
            return channels, 1, 1
        sizes = [
            (size + 2 * p - k) // s + 1
            for size, k, s, p in zip((height, width), self.kernel, self.stride, self.padding, strict=True)
        ]
        return (self.output_shape[0] if self.type == "conv" else channels, *sizes)  # type: ignore[return-value]


class Block(msgspec.Struct):
    """A block of the file: its operators, and the stages of a published schedule, each a list of groups."""

    inner_nodes: list[Layer]
    exit_node: Layer
    stages: list[list[list[str]]] | None = None


class Network(msgspec.Struct):
    """A network as IOS's program exports it."""

    name: str
    input: Layer
    blocks: list[Block]

    @property
    def operators(self) -> list[Layer]:
        """All operators, in topological order."""
        return [node for block in self.blocks for node in (*block.inner_nodes, block.exit_node)]

    def shapes(self, size: int | None = None) -> dict[str, Shape]:
        """Return the shape of each layer's output for images of ``size`` by ``size``; None: as in the file."""
        channels, height, width = self.input.output_shape
        known = {self.input.name: (channels, size or height, size or width)}
        for operator in self.operators:
            for layer in operator.layers:
                read = sum(term[0][2] - term[0][1] for term in layer.inputs)
                _, height, width = known[layer.inputs[0][0][0]]
                known[layer.name] = layer.shape_from((read, height, width))
            known[operator.name] = known[operator.layers[-1].name]
        return known

    def graph(self, size: int | None = None) -> OpGraph:
        """Return the operator graph for images of ``size`` by ``size``; see `graph_of`."""
        return graph_of(self, self.operators, size)

    def kernels(self, size: int | None = None) -> OpGraph:
        """Return the graph of kernels: one for each layer of each operator."""
        layers = []
        for operator in self.operators:
            *first, last = operator.layers
            layers += [*first, msgspec.structs.replace(last, name=operator.name)]
        return graph_of(self, layers, size)

    def cells(self) -> tuple[tuple[str, ...], ...]:
        """Return the operators of each part that IOS schedules by itself: the blocks of the file, NASNet's cells.

        IOS's model of NASNet names the cells, which the file does not hold. They are consecutive, and each but the stem and
        the classifier ends where `CELL_TENSORS` tensors or more are concatenated.
        """
        parts = [[*block.inner_nodes, block.exit_node] for block in self.blocks]
        if len(parts) == 1:
            ends = [
                i + 1 for i, node in enumerate(parts[0]) if node.type == "identity" and len(node.inputs) >= CELL_TENSORS
            ]
            parts = [parts[0][a:b] for a, b in pairwise([0, 1, *ends, len(parts[0])])]
        return tuple(tuple(node.name for node in part) for part in parts if part)

    def schedule(self, problem: Problem) -> Schedule:
        """Return the published stages as a schedule of one device."""
        device = problem.topology.devices[0].name
        placements: list[Placement] = []
        number = 0
        for stage in (stage for block in self.blocks for stage in block.stages or []):
            together = sum(map(len, stage)) > 1
            number += together
            for stream, group in enumerate(stage):
                placements += [Placement(name, device, stream, stage=number * together) for name in group]
        return Schedule(problem.digest, tuple(placements), scheduler="IOS, published")


def load_network(path: str | os.PathLike[str]) -> Network:
    """Read a network that IOS's program exported, with or without stages.

    Raises
    ------
    FormatError
        The file is no such document, or an operator reads one that does not stand before it.
    """
    try:
        network = msgspec.json.decode(Path(path).read_bytes(), type=Network)
    except UNREADABLE as error:
        raise FormatError(f"{os.fspath(path)} is not a network of IOS: {why_unreadable(error)}") from None
    known = {network.input.name}
    for operator in network.operators:
        for name, _, _ in operator.reads():
            if name not in known:
                raise FormatError(
                    f"{os.fspath(path)}: operator {operator.name!r} reads {name!r}, which is not before it"
                )
        known.add(operator.name)
    return network


def graph_of(network: Network, nodes: Sequence[Layer], size: int | None) -> OpGraph:
    """Return a graph with an operator for each node, in float32 with batch 1.

    An output of which operators read parts, such as a merged convolution's, is a tensor for each part.
    """
    shapes = network.shapes(size)
    cuts = {name: {0, shape[0]} for name, shape in shapes.items()}
    for node in nodes:
        for name, begin, end in node.reads():
            cuts[name] |= {begin, end}
    last = nodes[-1].name
    tensors: list[Tensor] = []
    pieces: dict[str, list[tuple[int, int, str]]] = {}

    def add(name: str, kind: str) -> tuple[str, ...]:
        _, height, width = shapes[name]
        rows = [(begin, end, f"{name}[{begin}:{end}]") for begin, end in pairwise(sorted(cuts[name]))]
        pieces[name] = rows
        tensors.extend(
            Tensor(tensor, FLOAT32 * (end - begin) * height * width, kind, (1, end - begin, height, width))  # type: ignore[arg-type]
            for begin, end, tensor in rows
        )
        return tuple(tensor for _, _, tensor in rows)

    add(network.input.name, "input")
    operators = []
    for node in nodes:
        inputs = [
            tensor for name, begin, end in node.reads() for a, b, tensor in pieces[name] if begin <= a and b <= end
        ]
        flops = 0
        for layer in node.layers:
            flops += _flops(layer, shapes)
            if (weights := _weights(layer, shapes)) is not None:
                tensors.append(Tensor(f"w{layer.name}", FLOAT32 * prod(weights), "parameter", weights))
                inputs.append(f"w{layer.name}")
        outputs = add(node.name, "activation")
        demand = _demand(node, shapes) or msgspec.UNSET
        operators.append(Operator(node.name, _kind(node), tuple(inputs), outputs, flops, demand=demand))
    return OpGraph(network.name, tuple(operators), tuple(tensors), tuple(name for _, _, name in pieces[last]))


def _kind(node: Layer) -> str:
    kinds = {"conv": "conv2d", "pool": "pool2d", "identity": "concatenate"}
    return "_".join(kinds.get(layer.type, layer.type) for layer in node.layers)


def _channels(layer: Layer) -> int:
    return sum(term[0][2] - term[0][1] for term in layer.inputs)


def _weights(layer: Layer, shapes: dict[str, Shape]) -> tuple[int, ...] | None:
    if layer.type != "conv":
        return None
    return (shapes[layer.name][0], _channels(layer) // layer.groups, *layer.kernel)


def _flops(layer: Layer, shapes: dict[str, Shape]) -> int:
    out = prod(shapes[layer.name])
    sums = sum(len(term) - 1 for term in layer.inputs) * out
    if (weights := _weights(layer, shapes)) is not None:
        return 2 * out * prod(weights[1:]) + sums
    if layer.pool_type.startswith("global"):
        return prod(shapes[layer.inputs[0][0][0]])
    return sums + (out * prod(layer.kernel) if layer.type == "pool" else out * (layer.type == "relu"))


def _demand(node: Layer, shapes: dict[str, Shape]) -> Demand | None:
    """Return the launch of a convolution, by the rule of `hios_problems.convolutions`; None: estimated from the output."""
    if node.nodes or node.type != "conv" or node.groups > 1:
        return None
    channels, height, width = shapes[node.name]
    blocks = -(-height * width // 16) * -(-channels // 64)
    return Demand((KernelResources(blocks, 64, 92, 6528),), memory_bound=False, source="library")


def problem_of(network: Network, topology: Topology, model: str, size: int | None = None) -> Problem:
    """Return the problem of a network, with the costs of its kernels added up to operators.

    An operator takes the sum of its kernels' times, and uses the part of the device that they use on average over that time.
    """
    graph, kernels = network.graph(size), network.kernels(size)
    of_kernels = get_cost_model(model)(kernels, topology)
    together = of_kernels.concurrency
    assert together is not None
    operator = np.repeat(np.arange(len(graph.operators)), [len(node.layers) for node in network.operators])
    times = np.zeros((len(graph.operators), len(topology.devices)), dtype=np.int64)
    np.add.at(times, operator, of_kernels.operator_ns)
    used = np.zeros((*times.shape, together.utilisation.shape[2]))
    np.add.at(used, operator, together.utilisation * of_kernels.operator_ns[:, :, None])
    crowding = np.zeros(times.shape)
    if together.crowding.size:
        np.maximum.at(crowding, operator, together.crowding)
    concurrency = Concurrency(
        used / times[:, :, None],
        together.serial_share,
        excess=together.excess,
        crowding=crowding,
        factor=together.factor,
    )
    return Problem(graph, topology, Costs(times, source=of_kernels.source, concurrency=concurrency))
