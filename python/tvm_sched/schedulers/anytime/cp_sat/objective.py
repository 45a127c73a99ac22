"""Objective of a submodel: the earliest end of the whole run that its decisions still allow."""

from __future__ import annotations

from ortools.sat.python import cp_model

from ....problem import HOST
from .constraints import arrivals
from .variables import Submodel, Variables


def earliest_end_of_run(model: cp_model.CpModel, submodel: Submodel, v: Variables) -> cp_model.IntVar:
    """Minimise a lower estimate of the run's latency, then the use of buses and devices.

    The estimate is the largest of: each operator's end and the shortest way from it to the end of the run; what follows
    events that stand behind the submodel (`After`) take; the buses' free
    times plus the bytes that later submodels need, evened out over the buses; the same of devices and work. Without the
    latter two a submodel would spend buses freely that the next ones need.
    """
    horizon = submodel.horizon + max(submodel.tail.values(), default=0)
    latest = horizon if submodel.latest is None else submodel.free(submodel.latest)
    estimate = model.new_int_var(0, latest, "estimate")
    for o, end in v.end.items():
        model.add(estimate >= end + submodel.tail[o])
    _count_what_follows(model, submodel, v, estimate)
    after, state = submodel.after, submodel.state
    buses = _buses(submodel)
    last = {
        c: _last(model, submodel, v.on_channel.get(c, []), state.channel_free[c])
        for c in sorted({*buses, *after.channel})
    }
    for c, ns in after.channel.items():
        model.add(estimate >= last[c] + ns)
    frees = [last[c] for c in buses]
    if frees:
        model.add(len(frees) * estimate >= sum(frees) + submodel.bus_ahead)
    devices = [_last(model, submodel, v.on_device.get(d, []), free) for d, free in enumerate(state.device_free)]
    for d, ns in after.device.items():
        model.add(estimate >= devices[d] + ns)
    model.add(len(devices) * estimate >= sum(devices) + submodel.work_ahead)
    frees += devices
    model.minimize(estimate * (4 * len(frees) + 1) + sum(frees))
    return estimate


def _count_what_follows(model: cp_model.CpModel, submodel: Submodel, v: Variables, estimate: cp_model.IntVar) -> None:
    """The run ends after what waits for tensors of the submodel, or for those that earlier ones left."""
    for (t, d), ns in submodel.after.needed.items():
        if (t, d) in submodel.state.at:
            model.add(estimate >= submodel.free(submodel.state.at[t, d]) + ns)
        else:
            for literal, end in arrivals(submodel, v, t, d):
                model.add(estimate >= end + ns).only_enforce_if(literal)


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
