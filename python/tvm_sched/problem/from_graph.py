"""Make the problem of an operator graph and a topology, with latencies from a cost model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .costs import Costs
from .graph import OpGraph
from .problem import Problem
from .topology import Topology
from .variants import Group, Variants, all_alternatives


def problem_of(
    graph: OpGraph, groups: Sequence[Group], topology: Topology, cost_model: Callable[[OpGraph, Topology], Costs]
) -> Problem:
    """The problem of a graph and its groups, with latencies by a cost model.

    Groups are left out where the costs have concurrency, and so are alternatives with an operator that can run on no device
    or fits into none.

    Raises
    ------
    ProblemError
        As `Problem`, for any other reason.
    """
    if not groups:
        return Problem(graph, topology, cost_model(graph, topology))
    every = all_alternatives(graph, groups)
    both = cost_model(every, topology)
    costs, variants = Variants.split(groups, len(graph.operators), both)
    if costs.concurrency is not None:
        return Problem(graph, topology, costs)
    together = Problem.derive(every, topology, both)
    fits = [together.fits(o) for o in range(len(graph.operators), len(every.operators))]
    return Problem(graph, topology, costs, variants.only(fits))
