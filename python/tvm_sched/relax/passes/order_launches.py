"""OrderLaunches: the order in which the kernels of a device start."""

from __future__ import annotations

import tvm

from ...schedule.verifier import verify
from ...streams import order_launches
from ..attributes import SCHEDULE, get_problem, get_schedule, leave


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.OrderLaunches")
class OrderLaunches:
    """Order the launches, and check that the schedule is feasible.

    Reads ``tvm_sched.problem``, reads and writes ``tvm_sched.schedule``.

    Parameters
    ----------
    method : str, optional
        As in `tvm_sched.streams.order_launches`; default: the order that the scheduler chose.

    Raises
    ------
    tvm_sched.errors.ScheduleError
        The schedule breaks a rule of ``docs/model.md``.
    """

    def __init__(self, method: str | None = None) -> None:
        self.method = method

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        problem, schedule = get_problem(mod), get_schedule(mod)
        if self.method is not None:
            schedule = order_launches(problem, schedule, self.method)
            mod = leave(mod, SCHEDULE, schedule)
        verify(problem, schedule)
        return mod
