"""SplitByDominators: split the graph into the submodels that a scheduler solves one after another."""

from __future__ import annotations

import json

import tvm

from tvm_sched_runtime.problem import Device, Problem, Topology

from ...cost_model import roofline
from ...schedulers.common.submodels import split
from ..ir.attributes import PROBLEM, SUBMODELS, get_problem
from ..problem.operator_graph import get_graph


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.SplitByDominators")
class SplitByDominators:
    """Split the operator graph at the dominators of its output (SortingHat, Section 3.1).

    Leaves the attribute ``tvm_sched.submodels``: a JSON object with ``options`` (the parameters of this pass, which
    `Place` hands to schedulers that split) and ``submodels`` (lists of operators' names). The ends of the longest path are
    the main source and sink. Its latencies are those of ``tvm_sched.problem``, or of a stand-in device if there is no
    problem yet; a scheduler splits by the latencies of its problem.

    Parameters
    ----------
    dominators : int
        Dominators in a submodel, 1 in the paper; 0: as many as fit into ``operators``.
    operators : int
        Largest number of operators in a submodel, as in the scheduler `sortinghat`; the paper has no limit.

    Examples
    --------
    >>> from tvm_sched.relax.passes import SplitByDominators
    >>> SplitByDominators()(placed).attrs["tvm_sched.submodels"]
    '{"options": {"dominators": 1, "operators": 48}, "submodels": [["onednn.matmul_tanh"]]}'
    """

    def __init__(self, dominators: int = 1, operators: int = 48) -> None:
        self.dominators = dominators
        self.operators = operators

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        if mod.attrs and PROBLEM in mod.attrs:
            problem = get_problem(mod)
        else:
            graph = get_graph(mod)
            device = Device("stand-in", memory=1 << 62, memory_bandwidth=1e11, peak_flops={"float32": 1e12}, kind="cpu")
            topology = Topology("stand-in", (device,))
            problem = Problem(graph, topology, roofline(graph, topology))
        names = [operator.name for operator in problem.graph.operators]
        groups = split(problem, self.dominators, self.operators)
        left = {
            "options": {"dominators": self.dominators, "operators": self.operators},
            "submodels": [[names[o] for o in group] for group in groups],
        }
        return mod.with_attr(SUBMODELS, json.dumps(left))
