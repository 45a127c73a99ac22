"""Costs of pipeline stages on the devices of a problem, in integer nanoseconds (``docs/model.md``, Pipelines)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from ..problem import FORBIDDEN, HOST, Problem
from .pipeline_plan import Stage

Assignment = Sequence[tuple[int, Sequence[int]]]
"""Device and operators, in launch order, of each stage."""


def price(problem: Problem, assignment: Assignment) -> list[Stage]:
    """Return the stages with their costs.

    Raises
    ------
    ProblemError
        There is no route between two devices for a tensor.
    """
    stage_of = {o: s for s, (_, operators) in enumerate(assignment) for o in operators}
    return [price_stage(problem, assignment, stage_of, s) for s in range(len(assignment))]


def output_ns(problem: Problem, t: int, source: int, targets: Sequence[int]) -> int:
    """Return the time to send a tensor to devices, and to host memory if the model returns it, by the slowest route.

    Equation (3) counts a tensor once, however many stages read it.
    """
    times = [problem.copy_ns(t, source, target) for target in targets]
    route = problem.topology.route(source, HOST)
    if t in problem.graph.index.graph_outputs and route is not None:
        times.append(route.nanoseconds(problem.graph.index.size[t]))
    return max(times, default=0)


def stream_ns(problem: Problem, device: int, size: int) -> int:
    """Return the time to stream parameters from host memory, without the latency of single copies."""
    route = problem.topology.route(HOST, device)
    return 0 if route is None else -int(-(size * 1e9 / route.bandwidth) // 1)


def price_stage(problem: Problem, assignment: Assignment, stage_of: dict[int, int], s: int) -> Stage:
    """Return one stage with its costs; ``stage_of`` is each operator's stage. Raises as `price` does."""
    index, (device, operators) = problem.graph.index, assignment[s]
    read = dict.fromkeys(t for o in operators for t in index.inputs[o])
    inputs, parameters = 0, 0
    for t in read:
        maker = stage_of.get(index.producer[t])
        if is_parameter(problem, t):
            parameters += index.size[t]
        elif index.producer[t] < 0:
            inputs += problem.load_ns(t, device)
        elif maker is not None and maker != s:
            inputs += problem.copy_ns(t, assignment[maker][0], device)
    outputs = sum(
        output_ns(problem, t, device, [assignment[r][0] for r in readers_elsewhere(problem, stage_of, t, s)])
        for o in operators
        for t in index.outputs[o]
    )
    peak = peak_bytes(problem, operators)
    over = max(parameters + peak - problem.topology.devices[device].memory, 0)
    work = sum(int(problem.costs.operator_ns[o, device]) for o in operators if _finite(problem, o, device))
    return Stage(
        device=problem.topology.devices[device].name,
        operators=tuple(problem.graph.operators[o].name for o in operators),
        input_ns=inputs,
        work_ns=work,
        overflow_ns=stream_ns(problem, device, min(over, parameters)),
        output_ns=outputs,
        parameter_bytes=parameters,
        peak_bytes=peak,
    )


def is_parameter(problem: Problem, t: int) -> bool:
    """Return whether a tensor is a parameter, which stays on the devices that use it."""
    return problem.graph.tensors[t].kind == "parameter"


def readers_elsewhere(problem: Problem, stage_of: dict[int, int], t: int, s: int) -> list[int]:
    """Return the stages other than ``s`` that read a tensor, ascending."""
    return sorted({stage_of[o] for o in problem.graph.index.consumers[t] if stage_of.get(o, s) != s})


def _finite(problem: Problem, o: int, device: int) -> bool:
    return bool(problem.costs.operator_ns[o, device] != FORBIDDEN)


class Activation(NamedTuple):
    """A tensor that a stage holds while its operators run; operators are positions in the stage's order."""

    size: float
    """Bytes."""
    producer: int
    """-1: the stage has it before it starts."""
    readers: tuple[int, ...]
    """Distinct readers in the stage; one or more if it has no producer here."""
    kept: bool
    """Whether the stage keeps what it makes to its end, because another stage or the model's caller gets it."""


def activations_of(problem: Problem, operators: Sequence[int]) -> list[Activation]:
    """Return the tensors that a stage holds, except parameters."""
    index = problem.graph.index
    position = {o: i for i, o in enumerate(operators)}
    found = []
    for t in dict.fromkeys(t for o in operators for t in (*index.inputs[o], *index.outputs[o])):
        if not is_parameter(problem, t):
            here = tuple(position[o] for o in index.consumers[t] if o in position)
            written = position.get(index.producer[t], -1)
            kept = written >= 0 and (t in index.graph_outputs or len(here) < len(index.consumers[t]))
            found.append(Activation(index.size[t], written, here, kept))
    return found


def peak_bytes(problem: Problem, operators: Sequence[int]) -> int:
    """Return the peak of the bytes of a stage's activations.

    A stage has all its inputs before it starts, and keeps a tensor until its last reader, or to the end if another stage
    or the model's caller gets it.
    """
    change = [0] * (len(operators) + 1)
    for size, producer, readers, kept in activations_of(problem, operators):
        last = len(operators) - 1 if kept else max([*readers, producer])
        change[max(producer, 0)] += int(size)
        change[last + 1] -= int(size)
    return max(accumulate(change), default=0)
