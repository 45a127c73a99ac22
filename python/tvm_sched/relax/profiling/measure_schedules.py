"""MeasureSchedules: find the fastest use of this machine's cores by measurement."""

from __future__ import annotations

from typing import Any

import tvm

from ..ir.attributes import PROBLEM, SCHEDULE, leave


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
    streams, launch_order : str, optional
        As in `tvm_sched.streams.choose_streams` and `choose_launch_order`. With ``"best"`` the streams of each method are
        measured, too; a method that is named is taken, on one device with all cores, by the measured times of kernels.
    """

    def __init__(
        self,
        seconds: float | None = None,
        progress: Any = None,
        streams: str | None = None,
        launch_order: str | None = None,
    ) -> None:
        self.seconds = seconds
        self.progress = progress
        self.streams = streams
        self.launch_order = launch_order

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        from .measured_choice import choose_fastest

        problem, schedule = choose_fastest(mod, self.seconds, self.progress, self.streams, self.launch_order)
        return leave(leave(mod, PROBLEM, problem), SCHEDULE, schedule)
