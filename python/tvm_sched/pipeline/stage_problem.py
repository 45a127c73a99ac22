"""A stage as a Problem of its own: what its module is compiled from."""

from __future__ import annotations

import msgspec
import numpy as np

from ..problem import FORBIDDEN, Costs, OpGraph, Problem
from .plan import PipelinePlan


def stage_problem(problem: Problem, plan: PipelinePlan, s: int) -> Problem:
    """The problem of running one stage where its inputs are there already.

    Its devices share host memory, since the pipeline brings inputs to a stage and takes its outputs away. Operators
    stand in the plan's launch order, so that a schedule on one device keeps it.
    """
    index, graph = problem.graph.index, problem.graph
    operators = [index.operator_id[name] for name in plan.stages[s].operators]
    inside = set(operators)
    made = [t for o in operators for t in index.outputs[o]]
    read = [t for o in operators for t in index.inputs[o]]
    tensors = []
    for t in dict.fromkeys([*read, *made]):
        tensor = graph.tensors[t]
        foreign = tensor.kind == "activation" and index.producer[t] not in inside
        tensors.append(msgspec.structs.replace(tensor, kind="input") if foreign else tensor)
    sent = [t for t in made if t in index.graph_outputs or any(o not in inside for o in index.consumers[t])]
    topology = msgspec.structs.replace(
        problem.topology,
        devices=tuple(msgspec.structs.replace(device, bus="") for device in problem.topology.devices),
        buses=(),
        links=(),
        switches=(),
    )
    costs = problem.costs.operator_ns[operators]
    return Problem(
        OpGraph(
            f"{graph.name} stage {s}",
            tuple(graph.operators[o] for o in operators),
            tuple(tensors),
            tuple(graph.tensors[t].name for t in sent),
        ),
        topology,
        Costs(costs, np.full_like(costs, FORBIDDEN), problem.costs.source),
    )
