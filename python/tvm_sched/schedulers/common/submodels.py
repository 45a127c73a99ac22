"""Split a graph at the dominators of its output (SortingHat, Section 3.1) into submodels that are scheduled in turn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import rustworkx as rx

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import FORBIDDEN, Problem, Scenario, as_scenario

from .greedy import priorities


def dominator_chain(scenario: Scenario, members: Sequence[int] | None = None) -> list[int]:
    """Return the operators on every path from the main source to the main sink, in order.

    The main source and sink are the ends of the longest path in time; operators of other sources and sinks follow their
    neighbours (`submodel_of`). With ``members``, only these operators, which share no edge with others, are considered.
    """
    index = scenario.graph.index
    order = index.order if members is None else members
    if not order:
        return []
    rank = priorities(scenario)
    source = max(order, key=lambda o: (rank[o], -o))
    sink = source
    while index.successors[sink]:
        sink = max(index.successors[sink], key=lambda o: (rank[o], -o))
    graph = rx.PyDiGraph()
    graph.add_nodes_from(range(len(index.inputs)))
    graph.add_edges_from_no_data([(p, o) for o, before in enumerate(index.predecessors) for p in before])
    immediate = rx.immediate_dominators(graph, source)
    chain = [sink]
    while chain[-1] != source:
        chain.append(immediate[chain[-1]])
    return chain[::-1]


def submodel_of(scenario: Scenario, chain: list[int]) -> list[int]:
    """Return the region of each operator: the position of the first dominator that it precedes or is.

    Operators that the main source does not reach (weights, masks) are as late as their readers allow; operators that do not
    reach the main sink (other outputs) are as early as their inputs allow. No region is before a predecessor's.
    """
    index = scenario.graph.index
    last = len(chain) - 1
    position = {o: i for i, o in enumerate(chain)}
    reached: set[int] = {chain[0]} if chain else set()
    for o in index.order:
        if any(p in reached for p in index.predecessors[o]):
            reached.add(o)
    latest: dict[int, int] = {}
    leads: set[int] = set()
    for o in reversed(index.order):
        ahead = [latest[s] for s in index.successors[o]]
        latest[o] = position.get(o, min(ahead, default=last))
        if o in position or any(s in leads for s in index.successors[o]):
            leads.add(o)
    region = [0] * len(index.inputs)
    for o in index.order:
        before = max((region[p] for p in index.predecessors[o]), default=0)
        region[o] = max(before, latest[o]) if o in leads or o not in reached else before
    return region


def submodels_of(scenario: Scenario, dominators: int, operators: int, weights: Sequence[float] = ()) -> list[list[int]]:
    """Return the submodels to solve: those of the workload, else those of `split`."""
    own = scenario.submodel_operators
    return split(scenario, dominators, operators, weights) if own is None else own


def split(
    problem: Problem | Scenario, dominators: int = 0, operators: int = 24, weights: Sequence[float] = ()
) -> list[list[int]]:
    """Divide the operators into submodels in topological order; every operator is in one, after its predecessors.

    Several models are split separately, and their submodels joined (SortingHat, Section 6), at most one of each model. The
    order is by the share of its model's load and run time before each submodel, so that all models end together. Submodels
    of models that follow each other (prefill and decode) are not joined.

    Parameters
    ----------
    problem : Problem or Scenario
        In a run; a `Problem` is a cold run.
    dominators : int
        Dominators in a submodel, as in SortingHat (its default is 1); the model's input node, with which the first submodel
        begins, does not count. 0 joins regions up to ``operators``: in a chain every operator is a dominator, and a
        submodel of one operator leaves nothing to decide.
    operators : int
        Largest number of operators of a submodel; a larger region is cut into consecutive pieces of its topological order.
    weights : sequence of float
        Progress of each of several models: weight 2 schedules submodels twice as fast as weight 1. None: all equal.

    Raises
    ------
    InputError
        A weight is missing or not above 0, or models with weights follow each other.
    """
    scenario = as_scenario(problem)
    models = scenario.graph.operators_of_models
    if scenario.graph.models_in_turn:
        if weights:
            raise InputError("weights are for models that run at once; these follow each other: leave weights out")
        return [group for members in models for group in _split_model(scenario, members, dominators, operators)]
    if weights and (len(weights) != len(models) or not all(0 < weight < math.inf for weight in weights)):
        raise InputError(f"weights are {list(weights)}; a number above 0 for each of {len(models)} models is allowed")
    most = max(operators // len(models), 1)
    parts = [_split_model(scenario, members, dominators, most) for members in models]
    return parts[0] if len(parts) == 1 else _merge_submodels(scenario, parts, weights or [1.0] * len(parts))


def _split_model(scenario: Scenario, members: Sequence[int], dominators: int, operators: int) -> list[list[int]]:
    """Return the submodels of one model."""
    chain = dominator_chain(scenario, members)
    region = submodel_of(scenario, chain)
    regions: list[list[int]] = [[] for _ in range(max(len(chain), 1))]
    mine = set(members)
    for o in _depth_first_order(scenario):
        if o in mine:
            regions[region[o]].append(o)
    groups: list[list[int]] = []
    count = 0
    for number, each in enumerate(regions):
        joins = count < dominators if dominators else bool(groups) and len(groups[-1]) + len(each) <= operators
        if groups and joins:
            groups[-1] += each
            count += 1
        else:
            groups.append(list(each))
            count = 1 if number else 0  # the input node of the model ends no submodel (Figure 6)
    return [group[i : i + operators] for group in groups for i in range(0, len(group), operators)]


def _merge_submodels(
    scenario: Scenario, models: Sequence[list[list[int]]], weights: Sequence[float]
) -> list[list[int]]:
    """Join the submodels of several models by the share of the model's time before each."""
    effort = _load_and_run_ns(scenario)
    waiting: list[tuple[float, int, list[int]]] = []
    for m, groups in enumerate(models):
        ends = list(accumulate(sum(effort[o] for o in group) for group in groups))
        before = [0, *ends[:-1]] if ends else []
        waiting += [(at / max(ends[-1], 1) / weights[m], m, group) for at, group in zip(before, groups, strict=True)]
    joined: list[list[int]] = []
    there: set[int] = set()
    for _, m, group in sorted(waiting, key=lambda each: each[:2]):
        if not joined or m in there:
            joined.append([])
            there.clear()
        joined[-1] += group
        there.add(m)
    return joined


def _load_and_run_ns(scenario: Scenario) -> list[int]:
    """Return for each operator the least time (ns) to run it and to load the tensors that it reads first."""
    index, devices = scenario.graph.index, range(len(scenario.topology.devices))
    fastest = np.minimum(scenario.costs.operator_ns, scenario.costs.direct_ns).min(axis=1, initial=FORBIDDEN).tolist()
    seen: set[int] = set()
    for o in index.order:
        new = [t for t in index.host_inputs[o] if t not in seen]
        seen.update(new)
        fastest[o] += sum(min(scenario.load_ns(t, d) for d in devices) for t in new)
    return fastest


def _depth_first_order(scenario: Scenario) -> list[int]:
    """Return a topological order that finishes a branch before the next, so that pieces cut few tensors."""
    index = scenario.graph.index
    waiting = [len(before) for before in index.predecessors]
    stack = [o for o in reversed(index.order) if waiting[o] == 0]
    order: list[int] = []
    while stack:
        o = stack.pop()
        order.append(o)
        for s in reversed(index.successors[o]):
            waiting[s] -= 1
            if waiting[s] == 0:
                stack.append(s)
    return order
