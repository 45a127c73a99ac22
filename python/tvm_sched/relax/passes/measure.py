"""MeasureSchedules: the fastest use of this machine's cores, by measurement."""

from __future__ import annotations

from typing import Any

import tvm

from ..attributes import PROBLEM, SCHEDULE, leave


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.MeasureSchedules")
class MeasureSchedules:
    """Run the schedule and others for the same cores on this machine, and keep the fastest.

    Reads ``tvm_sched.problem`` and ``tvm_sched.schedule`` of a module that is lowered for CPUs; writes both, since the
    fastest may be for another number of logical devices, with latencies that were measured. See
    `tvm_sched.relax.profiling.measured_choice.choose_fastest`. The answer depends on the machine, and on what else it does.

    Parameters
    ----------
    seconds : float, optional
        For which two schedules are compared; default 1.
    progress : callable, optional
        Called with what is being done, how many parts are done, and how many there are.
    streams : bool
        Whether to measure the streams of each allocator, too.
    """

    def __init__(self, seconds: float | None = None, progress: Any = None, streams: bool = False) -> None:
        self.seconds = seconds
        self.progress = progress
        self.streams = streams

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        from ..profiling.measured_choice import choose_fastest

        problem, schedule = choose_fastest(mod, self.seconds, self.progress, self.streams)
        return leave(leave(mod, PROBLEM, problem), SCHEDULE, schedule)
