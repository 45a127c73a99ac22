"""Objective of a submodel: the earliest end of the whole run that its decisions still allow."""

from __future__ import annotations

from ortools.sat.python import cp_model

from ...problem import HOST
from .variables import Submodel, Variables


def earliest_end_of_run(model: cp_model.CpModel, submodel: Submodel, v: Variables) -> cp_model.IntVar:
    """Minimise a lower estimate of the run's latency, then the use of buses and devices.

    The estimate is the largest of: each operator's end and the shortest way from it to the end of the run; the buses' free
    times plus the bytes that later submodels need, evened out over the buses; the same of devices and work. Without the
    latter two a submodel would spend buses freely that the next ones need.
    """
    estimate = model.new_int_var(0, submodel.horizon + max(submodel.tail.values(), default=0), "estimate")
    for o, end in v.end.items():
        model.add(estimate >= end + submodel.tail[o])
    frees = []
    for channels, ahead in ((_buses(submodel), submodel.bus_ahead),):
        last = [_last(model, submodel, v.on_channel.get(c, []), submodel.state.channel_free[c]) for c in channels]
        frees += last
        if last:
            model.add(len(last) * estimate >= sum(last) + ahead)
    devices = range(len(submodel.state.device_free))
    last = [_last(model, submodel, v.on_device.get(d, []), submodel.state.device_free[d]) for d in devices]
    model.add(len(last) * estimate >= sum(last) + submodel.work_ahead)
    frees += last
    model.minimize(estimate * (4 * len(frees) + 1) + sum(frees))
    return estimate


def _buses(submodel: Submodel) -> list[int]:
    topology = submodel.problem.topology
    routes = (topology.route(HOST, d) for d in range(len(topology.devices)))
    return sorted({c for route in routes if route is not None for c in route.channels})


def _last(
    model: cp_model.CpModel, submodel: Submodel, intervals: list[cp_model.IntervalVar], free: int
) -> cp_model.IntVar:
    """When the last of some optional intervals ends."""
    last = model.new_int_var(submodel.free(free), submodel.horizon, "")
    for interval in intervals:
        model.add(last >= interval.end_expr()).only_enforce_if(interval.presence_literals())
    return last
