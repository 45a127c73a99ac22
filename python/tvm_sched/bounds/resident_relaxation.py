"""Relaxations for one run: without the resident parameters, and without the latency of loads that may be joined."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import numpy as np

from tvm_sched_runtime.problem import FORBIDDEN, Operator, OpGraph, Problem, Scenario
from tvm_sched_runtime.problem.variants import Variants


def of_run(scenario: Scenario) -> Problem:
    """Return the problem whose bounds hold for the scenario: `without_resident`, and with `loads_at_once`."""
    return loads_at_once(without_resident(scenario.problem, scenario.resident))


def loads_at_once(problem: Problem) -> Problem:
    """Return the problem in which host tensors move without latency if parameters are joinable; else the problem itself.

    Direct reads keep their times, but for problems with variants, whose relaxed problems have no times of direct reads.
    Proof that its bounds hold for all ways to join parameters: Lemma 1 of ``docs/proofs/joined.md``.
    """
    if not problem.joinable:
        return problem
    costs = problem.costs
    if not problem.variants:
        reads = problem.host_reads_ns
        costs = costs.replace(host_read_ns=np.where(reads > 0, reads, FORBIDDEN))  # without bytes: no time
    return Problem.derive(problem.graph, problem.topology.loading_at_once, costs, problem.variants)


def without_resident(problem: Problem, resident: Collection[str]) -> Problem:
    """Return the problem in which no operator reads resident parameters; the problem itself if none are resident.

    Proof that its bounds hold for warm runs: Lemma 1 of ``docs/proofs/resident_parameters.md``.
    """
    if not resident:
        return problem

    def reduced(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
        return tuple(without_inputs(resident, operator) for operator in operators)

    graph, known = problem.graph, problem.variants
    variants = None
    if known is not None:
        replace = msgspec.structs.replace
        groups = [
            replace(
                group,
                alternatives=tuple(replace(each, operators=reduced(each.operators)) for each in group.alternatives),
            )
            for group in known.groups
        ]
        variants = Variants(groups, known.costs)
    read = OpGraph(graph.name, reduced(graph.operators), graph.tensors, graph.outputs)
    return Problem.derive(read, problem.topology, problem.costs, variants, problem.joinable)


def without_inputs(gone: Collection[str], operator: Operator) -> Operator:
    """Return the operator without some inputs."""
    parts = operator.read_bytes and {name: size for name, size in operator.read_bytes.items() if name not in gone}
    inputs = tuple(name for name in operator.inputs if name not in gone)
    return msgspec.structs.replace(operator, inputs=inputs, read_bytes=parts)
