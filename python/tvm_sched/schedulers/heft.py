"""HEFT and PEFT: list scheduling with insertion, aware of buses and links."""

from __future__ import annotations

from functools import partial

from tvm_sched_runtime.problem import Problem, Scenario, Workload
from tvm_sched_runtime.schedule import Schedule

from ..registry import NoOptions
from .common import native_methods
from .common.variant_search import over_variants
from .scheduler_registry import register


@register("heft")
def heft(problem: Problem, workload: Workload, options: NoOptions) -> Schedule:
    """HEFT: operators by upward rank, each where it ends first, in gaps between others where one is long enough.

    Topcuoglu, Hariri and Wu, *Performance-effective and low-complexity task scheduling for heterogeneous computing* (IEEE
    TPDS 13, 2002). Ranks use mean times, as in the paper. In addition, loads of parameters and copies take turns on buses
    and links, also in gaps, and direct host access is tried as well as loading. O(tensors read x devices x gaps). Among
    variants it chooses those with the fastest schedule, one class of similar groups after the other.

    Raises
    ------
    InfeasibleError
        The schedule needs too much memory, which HEFT ignores, and no repair with the same devices succeeds.
    """
    return over_variants(workload.scenario(problem), partial(_list_schedule, "heft"))


@register("peft")
def peft(problem: Problem, workload: Workload, options: NoOptions) -> Schedule:
    """PEFT: HEFT with a look ahead, the optimistic time from an operator on a device to the end of the run.

    Arabnejad and Barbosa, *List scheduling algorithm for heterogeneous systems by an optimistic cost table* (IEEE TPDS 25,
    2014). Buses, links and direct host access as in `heft`.

    Raises
    ------
    InfeasibleError
        As `heft`.
    """
    return over_variants(workload.scenario(problem), partial(_list_schedule, "peft"))


def _list_schedule(method: native_methods.ListMethod, scenario: Scenario) -> Schedule:
    return native_methods.fit_into_memory(native_methods.list_order(scenario, method)).to_schedule()
