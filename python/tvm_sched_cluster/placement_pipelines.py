"""Convert a model into a service, and a placement of the service into a pipeline plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tvm_sched.cost_model import costs
from tvm_sched.cost_model.device_properties import known_gpu
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.pipeline import PipelinePlan
from tvm_sched_runtime.pipeline.stage_pricing import price
from tvm_sched_runtime.problem import FORBIDDEN, Bus, Device, Link, OpGraph, Problem, Topology
from tvm_sched_runtime.problem.cpu_presets import cpu_topology

from .problem.cluster import Cluster, GpuKind
from .problem.placement_pricing import circuit_bandwidth, circuit_head_ns
from .problem.service import Service, ServiceOperator
from .problem.service_placement import ServicePlacement

HOST_BANDWIDTH = 12e9
"""Assumed bytes a second between a GPU and its host's memory (PCIe 3.0 x16), which cluster files do not state."""
LAUNCH_OVERHEAD = 5e-6
"""Assumed seconds of a kernel besides its work, as in the presets of topologies."""


class Segment(NamedTuple):
    """A part of a model between two points at which a single activation is passed on."""

    name: str
    """Name of its first operator."""
    operators: tuple[str, ...]
    """In topological order."""
    output: int
    """Bytes of the activation that goes on to the next segment; 0 for the last."""


def segments(graph: OpGraph) -> tuple[Segment, ...]:
    """Cut a model at every point where a single activation is passed on.

    The segments form a chain, and any run of them can be a stage. Operators stand in the graph's topological order. A
    model's inputs and parameters do not count as activations.
    """
    index = graph.index
    position = {o: p for p, o in enumerate(index.order)}
    last_read = {t: max((position[o] for o in readers), default=-1) for t, readers in enumerate(index.consumers)}
    chain: list[Segment] = []
    open_now: set[int] = set()
    members: list[str] = []
    for p, o in enumerate(index.order):
        members.append(graph.operators[o].name)
        open_now = {t for t in (*open_now, *index.outputs[o]) if last_read[t] > p}
        if len(open_now) == 1 or p + 1 == len(index.order):
            chain.append(Segment(members[0], tuple(members), sum(index.size[t] for t in open_now)))
            members = []
    return tuple(chain)


def service_of_graph(
    graph: OpGraph,
    throughput: float,
    latency: float,
    name: str = "",
    model_file: str = "",
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    kinds: Sequence[GpuKind] = (),
    cost_model: str = "",
) -> Service:
    """Make a service of a model: an operator for each of its segments.

    The memory of an operator holds the parameters that the segment reads and the activations that it makes. Parameters that
    two segments read count in both.

    Parameters
    ----------
    throughput, latency : float
        Inputs a second, at least; seconds from input to output, at most.
    kinds : sequence of GpuKind
        Kinds of GPU on which the time of each segment is predicted: the sum of its kernels.
    cost_model : str
        Predicts these times; a name or file as for `tvm_sched.cost_model.get_cost_model`. Default: `default_cost_model`.

    Raises
    ------
    GraphError, InputError
        As `Service` and the cost model, or by the cost model an operator cannot run on one of the kinds.
    """
    index = graph.index
    times = _times(graph, kinds, cost_model)
    operators = []
    for segment in segments(graph):
        own = [index.operator_id[o] for o in segment.operators]
        held = {t for o in own for t in index.inputs[o] if graph.tensors[t].kind == "parameter"}
        held |= {t for o in own for t in index.outputs[o]}
        flops = float(sum(graph.operators[o].flops for o in own))
        seconds = {kind: sum(ns[o] for o in own) / 1e9 for kind, ns in times.items()}
        operators.append(
            ServiceOperator(segment.name, flops, sum(index.size[t] for t in held), segment.output, seconds)
        )
    return Service(
        name or graph.name,
        tuple(operators),
        throughput,
        latency,
        model=graph.name,
        model_file=model_file,
        input_shapes=dict(input_shapes or {}),
    )


def _times(graph: OpGraph, kinds: Sequence[GpuKind], cost_model: str) -> dict[str, list[int]]:
    """Return the nanoseconds of each operator of a graph, by name of the kind of GPU."""
    if not kinds:
        return {}
    devices = tuple(_device(kind.name, kind, f"bus {kind.name}", LAUNCH_OVERHEAD) for kind in kinds)
    buses = tuple(Bus(device.bus, HOST_BANDWIDTH) for device in devices)
    predicted = costs(graph, Topology("kinds", devices, buses), cost_model)
    times = {kind.name: [int(ns) for ns in predicted.operator_ns[:, k]] for k, kind in enumerate(kinds)}
    for kind, column in times.items():
        if FORBIDDEN in column:
            name = graph.operators[column.index(FORBIDDEN)].name
            raise InputError(f"by the cost model {predicted.source!r}, operator {name!r} cannot run on {kind!r}")
    return times


def _device(name: str, kind: GpuKind, bus: str, launch_overhead: float = 0.0) -> Device:
    """Return a device of a topology; a known GPU's rates for other types than float32 are added."""
    known = known_gpu(kind.model or kind.name)
    return Device(
        name=name,
        memory=kind.memory,
        memory_bandwidth=kind.memory_bandwidth,
        peak_flops={**(known.rates if known else {}), "float32": kind.flops},
        launch_overhead=launch_overhead,
        bus=bus,
        model=kind.model or kind.name,
    )


def stage_topology(cluster: Cluster, placement: ServicePlacement, backend: str) -> Topology:
    """Return the topology for which a placement's pipeline is compiled: a device for each stage, joined by the circuits.

    Parameters
    ----------
    backend : {"cpu", "emulated", "cuda"}
        ``"cpu"``: logical devices of a machine's cores, of equal speed, to try a placement out.
    """
    if backend == "cpu":
        return cpu_topology(len(placement.stages))
    kinds = [cluster.kinds[cluster.gpus[cluster.gpu_id[stage.gpu]].kind] for stage in placement.stages]
    devices = tuple(_device(f"stage{s}", kind, f"bus{s}") for s, kind in enumerate(kinds))
    links = []
    for circuit in placement.circuits:
        ends = placement.stages[circuit.source].gpu, placement.stages[circuit.target].gpu
        links.append(
            Link(
                (devices[circuit.source].name, devices[circuit.target].name),
                float(circuit_bandwidth(cluster, *ends, circuit)),
                circuit_head_ns(cluster, *ends, circuit) / 1e9,
            )
        )
    buses = tuple(Bus(device.bus, HOST_BANDWIDTH) for device in devices)
    return Topology(f"{cluster.name} {placement.request}", devices, buses, tuple(links), source=cluster.source)


def plan_of_placement(problem: Problem, placement: ServicePlacement) -> PipelinePlan:
    """Return the pipeline plan of a placement: stage after stage on the devices of `stage_topology`, in their order.

    Raises
    ------
    InputError
        The placement's service was made of another model, or the problem has too few devices.
    """
    if len(problem.topology.devices) < len(placement.stages):
        raise InputError(
            f"request {placement.request!r} has {len(placement.stages)} stages; topology {problem.topology.name!r} has "
            f"{len(problem.topology.devices)} devices"
        )
    inside = {segment.name: segment.operators for segment in segments(problem.graph)}
    named = [name for stage in placement.stages for name in stage.operators]
    if named != list(inside):
        odd = next((name for name in named if name not in inside), None)
        raise InputError(
            f"service {placement.service!r} was made of another model than {problem.graph.name!r}"
            + (f": it has no segment {odd!r}" if odd else f", which has {len(inside)} segments instead of {len(named)}")
            + "; make it again with `tvm-sched cluster service`"
        )
    position = problem.graph.index.operator_id
    assignment = [
        (s, [position[o] for name in stage.operators for o in inside[name]]) for s, stage in enumerate(placement.stages)
    ]
    return PipelinePlan(
        problem.digest, tuple(price(problem, assignment)), placement.allocator, seconds=placement.seconds
    )
