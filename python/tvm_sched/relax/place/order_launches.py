"""OrderLaunches: the order in which the kernels of a device start."""

from __future__ import annotations

import tvm

from ...streams import BEST, choose_launch_order
from ..ir.attributes import SCHEDULE, get_problem, get_schedule, leave


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.OrderLaunches")
class OrderLaunches:
    """Order the launches of each device.

    Reads ``tvm_sched.problem``, reads and writes ``tvm_sched.schedule``.

    Parameters
    ----------
    method : str
        As in `tvm_sched.streams.order_launches`: ``"depth-first"``, ``"breadth-first"``, ``"critical-path"`` or
        ``"opara"``; or ``"best"``: where a device has several streams, the best by prediction, the scheduler's order among
        it (`tvm_sched.streams.best_launch_order`).

    Raises
    ------
    InputError
        There is no such method, or one is named and the schedule has stages, which say what starts together.
    tvm_sched.errors.ScheduleError
        In the requested order the schedule breaks a rule of ``docs/model.md``, such as a device's memory.
    """

    def __init__(self, method: str = BEST) -> None:
        self.method = method

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        problem, schedule = get_problem(mod), get_schedule(mod)
        chosen = choose_launch_order(problem, schedule, self.method)
        return mod if chosen is schedule else leave(mod, SCHEDULE, chosen)
