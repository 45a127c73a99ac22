"""OrderLaunches: the order in which the kernels of a device start."""

from __future__ import annotations

import tvm

from ...schedule.verify import verify
from ..attributes import get_problem, get_schedule


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.OrderLaunches")
class OrderLaunches:
    """Keep the launch order that the scheduler chose, and check that the schedule is feasible.

    A pass that reorders takes the place of this one. Reads ``tvm_sched.problem`` and ``tvm_sched.schedule``.

    Raises
    ------
    tvm_sched.errors.ScheduleError
        The schedule breaks a rule of ``docs/model.md``.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        verify(get_problem(mod), get_schedule(mod))
        return mod
