"""IOS: stages on one device by dynamic programming, after Ding et al. (MLSys 2021)."""

from __future__ import annotations

import msgspec

from tvm_sched_runtime.checks import require_at_least
from tvm_sched_runtime.errors import InfeasibleError, TooLargeError
from tvm_sched_runtime.problem import FORBIDDEN, Problem, Workload
from tvm_sched_runtime.schedule import Schedule

from .common import native_methods
from .scheduler_registry import register


class IosOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `ios`.

    Parameters
    ----------
    groups : int
        Largest number of groups in a stage, which run in parallel (the paper's ``s``).
    group_size : int
        Largest number of operators in a group, which run one after another (the paper's ``r``).
    block : int
        Largest number of operators of a block; larger blocks are cut. 0: none is cut.
    states : int
        Largest number of states of a block; more are refused before the search begins.
    """

    groups: int = 8
    group_size: int = 3
    block: int = 0
    states: int = 200_000

    def __post_init__(self) -> None:
        require_at_least(self, groups=1, group_size=1, block=0, states=1)


@register("ios", options=IosOptions)
def ios(problem: Problem, workload: Workload, options: IosOptions) -> Schedule:
    """IOS: the best stages of one device, block by block, by dynamic programming with the paper's pruning.

    Section 4 of the paper. Blocks are the workload's submodels, such as the cells of a network. Without submodels
    a block ends at an operator that is before or after all others. The device is the fastest that can run all operators.
    States are sets of operators that contain the predecessors of their members. Their number is exponential in the width of
    a block, and it is counted first. Merging operators into a larger one is left out, since it needs other kernels.
    Without concurrency in the costs there is nothing to choose.

    The schedule's notes say under ``"profiled"`` how many stages were priced, and the sum of their times: the paper's method
    measures each of them.

    Raises
    ------
    InfeasibleError
        No device runs all operators, or the schedule needs too much memory, which IOS ignores.
    TooLargeError
        A block has more states than ``states``.
    """
    scenario = workload.scenario(problem)
    total = scenario.costs.operator_ns.astype(float).sum(axis=0)
    able = (scenario.costs.operator_ns != FORBIDDEN).all(axis=0)
    if not able.any():
        raise InfeasibleError(
            "no single device can run all operators with their tensors on it, and IOS uses one device"
        )
    device = min((d for d in range(len(able)) if able[d]), key=lambda d: total[d])
    from tvm_sched_runtime.schedule.native_problem import IosLimits  # loads the library

    limits = IosLimits(groups=options.groups, group_size=options.group_size, block=options.block, states=options.states)
    result = native_methods.ios(scenario, device, limits)
    if isinstance(result, native_methods.TooManyStates):
        raise TooLargeError(
            f"a block of {result.operators} operators has more than {options.states} states, about 2^{result.log2_states}, "
            "or more than the 64 operators that one can hold, and would take very long; cut it with the option block (10 "
            "is what HIOS compares with), or raise the option states"
        )
    index, profiled = result
    schedule = native_methods.fit_into_memory(index).to_schedule()
    return schedule.replace(notes={**schedule.notes, "profiled": profiled._asdict()})
