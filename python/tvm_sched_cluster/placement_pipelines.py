"""Convert a model into a service, and a placement of the service into a pipeline plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tvm_sched.errors import InputError
from tvm_sched.pipeline import PipelinePlan
from tvm_sched.pipeline.stage_pricing import price
from tvm_sched.problem import Bus, Device, Link, OpGraph, Problem, Topology
from tvm_sched.problem.cpu_presets import cpu_topology

from .problem.cluster import Cluster
from .problem.placement_pricing import circuit_bandwidth, circuit_head_ns
from .problem.service import Service, ServiceOperator
from .problem.service_placement import ServicePlacement

HOST_BANDWIDTH = 12e9
"""Assumed bytes a second between a GPU and its host's memory (PCIe 3.0 x16), which cluster files do not state."""


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
) -> Service:
    """Make a service of a model: an operator for each of its segments.

    The memory of an operator holds the parameters that the segment reads and the activations that it makes. Parameters that
    two segments read count in both.

    Parameters
    ----------
    throughput, latency : float
        Inputs a second, at least; seconds from input to output, at most.

    Raises
    ------
    GraphError, InputError
        As `Service`.
    """
    index = graph.index
    operators = []
    for segment in segments(graph):
        own = [index.operator_id[o] for o in segment.operators]
        held = {t for o in own for t in index.inputs[o] if graph.tensors[t].kind == "parameter"}
        held |= {t for o in own for t in index.outputs[o]}
        flops = float(sum(graph.operators[o].flops for o in own))
        operators.append(ServiceOperator(segment.name, flops, sum(index.size[t] for t in held), segment.output))
    return Service(
        name or graph.name,
        tuple(operators),
        throughput,
        latency,
        model=graph.name,
        model_file=model_file,
        input_shapes=dict(input_shapes or {}),
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
    devices = tuple(
        Device(
            name=f"stage{s}",
            memory=kind.memory,
            memory_bandwidth=kind.memory_bandwidth,
            peak_flops={"float32": kind.flops},
            bus=f"bus{s}",
            model=kind.model or kind.name,
        )
        for s, kind in enumerate(kinds)
    )
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
