"""Direct host access of products and convolutions on GPUs: their tiles read an operand more than once over the bus."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm

from ...execution_plan import KernelCall
from ...problem import FORBIDDEN, HOST, Costs, OpGraph, Topology
from ..lower.kernel_libraries import claimed_functions, kernel_document
from ..lower.kernel_libraries.nvidia.launches import operand_reads
from ..lower.kernel_libraries.nvidia.library import LIBRARY as NVIDIA
from .kernel_rates import CostModel


def with_rereads(cost_model: CostModel, mod: tvm.IRModule, calls: Sequence[KernelCall]) -> CostModel:
    """Wrap a cost model: kernels of cuBLASLt and cuDNN with direct host access wait for each reading of their operands.

    The bus carries the bytes of the operands as often as tiles of the result need them (`operand_reads`, an estimate of the
    tiles that the library will choose). The bus itself is occupied for one reading, as for every kernel. How often other
    kernels read their operands is not known: for these the price of direct host access is a lower bound.
    """
    reads: dict[str, tuple[int, int]] = {}
    claimed = claimed_functions(mod)
    for call in calls:
        if call.function in claimed:
            library, document = kernel_document(mod, call.function)
            if library == NVIDIA.name:
                reads[call.operator] = operand_reads(document)
    return lambda graph, topology: price_rereads(cost_model(graph, topology), graph, topology, reads)


def price_rereads(costs: Costs, graph: OpGraph, topology: Topology, reads: dict[str, tuple[int, int]]) -> Costs:
    """Raise the latencies with direct host access of operators whose first two inputs are read several times."""
    if not reads:
        return costs
    direct_ns = np.array(costs.direct_ns)
    size = {tensor.name: tensor.size for tensor in graph.tensors if tensor.kind in ("input", "parameter")}
    for o, operator in enumerate(graph.operators):
        times = reads.get(operator.name)
        if times is None:
            continue
        crossing = sum(size.get(name, 0) * count for name, count in zip(operator.inputs, times, strict=False))
        for d, device in enumerate(topology.devices):
            bus = topology.route(HOST, d)
            if device.kind != "cuda" or bus is None or direct_ns[o, d] == FORBIDDEN:
                continue
            longest = bus.nanoseconds(crossing) + round(device.launch_overhead * 1e9)
            direct_ns[o, d] = max(direct_ns[o, d], longest)
    return Costs(costs.operator_ns, direct_ns, concurrency=costs.concurrency, source=costs.source)
