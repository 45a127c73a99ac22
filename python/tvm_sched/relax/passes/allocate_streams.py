"""AllocateStreams: the stream of each operator on its device."""

from __future__ import annotations

import tvm

from ...streams import allocate_streams
from ..attributes import SCHEDULE, get_problem, get_schedule, leave


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.AllocateStreams")
class AllocateStreams:
    """Give each operator a stream of its device.

    Reads ``tvm_sched.problem``, reads and writes ``tvm_sched.schedule``.

    Parameters
    ----------
    method : str, optional
        As in `tvm_sched.streams.allocate_streams`: ``"one"``, ``"opara"``, ``"nimble"``, ``"wavefront"`` or ``"best"``;
        default: the streams that the scheduler chose. Streams overlap only where the problem's costs say how long
        operators take together, and schedules with stages keep their streams.
    """

    def __init__(self, method: str | None = None) -> None:
        self.method = method

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        schedule = get_schedule(mod)
        if self.method is None or any(placement.stage for placement in schedule.placements):
            return mod
        changed = allocate_streams(get_problem(mod), schedule, self.method)
        return leave(mod, SCHEDULE, changed)
