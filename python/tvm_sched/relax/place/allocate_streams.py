"""AllocateStreams: the stream of each operator on its device."""

from __future__ import annotations

import tvm

from ...streams import BEST, choose_streams
from ..ir.attributes import SCHEDULE, get_problem, get_schedule, leave


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.AllocateStreams")
class AllocateStreams:
    """Give each operator a stream of its device.

    Reads ``tvm_sched.problem``, reads and writes ``tvm_sched.schedule``.

    Parameters
    ----------
    method : str
        As in `tvm_sched.streams.allocate_streams`: ``"one"``, ``"opara"``, ``"nimble"``, ``"wavefront"`` or ``"fewest"``;
        or ``"best"``: the best by prediction, the scheduler's streams among it (`tvm_sched.streams.best_streams`).

    Raises
    ------
    InputError
        There is no such method, or one is named and the schedule has stages, which have their streams.
    tvm_sched.errors.ScheduleError
        With these streams the schedule breaks a rule of ``docs/model.md``, such as a device's memory.
    """

    def __init__(self, method: str = BEST) -> None:
        self.method = method

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        problem, schedule = get_problem(mod), get_schedule(mod)
        chosen = choose_streams(problem, schedule, self.method)
        return mod if chosen is schedule else leave(mod, SCHEDULE, chosen)
