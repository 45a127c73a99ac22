"""Make a separate `Problem` of a stage, from which its module is compiled."""

from __future__ import annotations

import msgspec
import numpy as np

from tvm_sched_runtime.pipeline.pipeline_plan import PipelinePlan
from tvm_sched_runtime.problem import FORBIDDEN, Costs, OpGraph, Problem, Topology


def stage_problem(problem: Problem, plan: PipelinePlan, s: int, apart: bool = False) -> Problem:
    """Return the problem of one stage, with the operators in the plan's launch order.

    Parameters
    ----------
    apart : bool
        Whether the device has a memory of its own, and the stage itself copies its inputs and outputs from and to host
        memory; the topology is then that one device with its bus. Otherwise all devices share host memory, since the
        pipeline copies inputs and outputs.
    """
    index, graph = problem.graph.index, problem.graph
    operators = [index.operator_id[name] for name in plan.stages[s].operators]
    inside = set(operators)
    written = [t for o in operators for t in index.outputs[o]]
    read = [t for o in operators for t in index.inputs[o]]
    tensors = []
    for t in dict.fromkeys([*read, *written]):
        tensor = graph.tensors[t]
        foreign = tensor.kind == "activation" and index.producer[t] not in inside
        tensors.append(msgspec.structs.replace(tensor, kind="input") if foreign else tensor)
    sent = [t for t in written if t in index.graph_outputs or any(o not in inside for o in index.consumers[t])]
    columns = [problem.topology.device_id[plan.stages[s].device]] if apart else slice(None)
    costs = problem.costs.operator_ns[operators][:, columns]
    return Problem(
        OpGraph(
            f"{graph.name} stage {s}",
            tuple(graph.operators[o] for o in operators),
            tuple(tensors),
            tuple(graph.tensors[t].name for t in sent),
        ),
        _alone(problem.topology, plan.stages[s].device) if apart else _shared(problem.topology),
        Costs(costs, np.full_like(costs, FORBIDDEN), problem.costs.source),
    )


def _shared(topology: Topology) -> Topology:
    """Return the same devices in host memory."""
    devices = tuple(msgspec.structs.replace(device, bus="") for device in topology.devices)
    return msgspec.structs.replace(topology, devices=devices, buses=(), links=(), switches=())


def _alone(topology: Topology, name: str) -> Topology:
    """Return the topology of one device with its bus."""
    device = topology.devices[topology.device_id[name]]
    buses = tuple(bus for bus in topology.buses if bus.name == device.bus)
    return msgspec.structs.replace(topology, devices=(device,), buses=buses, links=(), switches=())
