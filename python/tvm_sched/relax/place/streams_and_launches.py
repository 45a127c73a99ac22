"""AllocateStreams and OrderLaunches: the stream of each operator, and the order in which a device's kernels start."""

from __future__ import annotations

from collections.abc import Callable

import tvm

from tvm_sched_runtime.problem import Problem
from tvm_sched_runtime.schedule import Schedule, resolved, with_choice

from ...streams import BEST, choose_launch_order, choose_streams
from ..ir.attributes import SCHEDULE, get_problem, get_schedule, leave


class _Rescheduling:
    """Replace the module's schedule by the one that ``choose`` makes of it with a method."""

    choose: Callable[[Problem, Schedule, str], Schedule]

    def __init__(self, method: str = BEST) -> None:
        self.method = method

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        problem, schedule = get_problem(mod), get_schedule(mod)
        plain, inner = resolved(problem, schedule)
        chosen = self.choose(plain, inner, self.method)
        return mod if chosen is inner else leave(mod, SCHEDULE, with_choice(problem, chosen, {}, schedule.joined))


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.AllocateStreams")
class AllocateStreams(_Rescheduling):
    """Give each operator a stream of its device.

    Reads ``tvm_sched.problem``, reads and writes ``tvm_sched.schedule``.

    Parameters
    ----------
    method : str
        As in `tvm_sched.streams.allocate_streams`: ``"one"``, ``"opara"``, ``"nimble"``, ``"wavefront"`` or ``"fewest"``.
        ``"best"`` takes the best of these and of the scheduler's streams by prediction (`tvm_sched.streams.best_streams`).

    Raises
    ------
    InputError
        Unknown method; or one is named and the schedule has stages, which fix the streams.
    tvm_sched_runtime.errors.ScheduleError
        With these streams the schedule breaks a rule of ``docs/model.md``, such as a device's memory.

    Examples
    --------
    >>> from tvm_sched.relax import get_schedule
    >>> from tvm_sched.relax.passes import AllocateStreams
    >>> [placement.stream for placement in get_schedule(AllocateStreams("best")(placed)).placements]
    [0]
    """

    choose = staticmethod(choose_streams)


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.OrderLaunches")
class OrderLaunches(_Rescheduling):
    """Order the launches of each device.

    Reads ``tvm_sched.problem``, reads and writes ``tvm_sched.schedule``.

    Parameters
    ----------
    method : str
        As in `tvm_sched.streams.order_launches`: ``"depth-first"``, ``"breadth-first"``, ``"critical-path"``,
        ``"opara"`` or ``"opara-program"``. If a device has several streams, ``"best"`` takes the best of these and of the
        scheduler's order by prediction (`tvm_sched.streams.best_launch_order`).

    Errors are those of `AllocateStreams`; stages fix the launch order, too.

    Examples
    --------
    >>> from tvm_sched.relax import get_schedule
    >>> from tvm_sched.relax.passes import OrderLaunches
    >>> [placement.operator for placement in get_schedule(OrderLaunches("best")(placed)).placements]
    ['onednn.matmul_tanh']
    """

    choose = staticmethod(choose_launch_order)
