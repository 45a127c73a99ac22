"""AllocateStreams: the stream of each operator on its device."""

from __future__ import annotations

import msgspec
import tvm

from ..attributes import SCHEDULE, get_schedule


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.AllocateStreams")
class AllocateStreams:
    """Put every operator of a device on its stream 0.

    A device runs one operator at a time for now, so a second stream would change nothing; a pass that knows better
    takes the place of this one. Reads and writes ``tvm_sched.schedule``.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        schedule = get_schedule(mod)
        placements = tuple(msgspec.structs.replace(placement, stream=0) for placement in schedule.placements)
        changed = msgspec.structs.replace(schedule, placements=placements)
        return mod.with_attr(SCHEDULE, changed.to_json().decode())
