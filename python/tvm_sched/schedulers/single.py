"""The scheduler `single`, the baseline of the papers: one device loads everything, then runs."""

from __future__ import annotations

import msgspec

from tvm_sched_runtime.errors import InfeasibleError
from tvm_sched_runtime.problem import FORBIDDEN, Problem, Scenario, Workload
from tvm_sched_runtime.schedule import Schedule, ScheduleIndex

from .common.one_device import device_names
from .scheduler_registry import register


class SingleOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `single`.

    Parameters
    ----------
    device : str
        Device to use; empty chooses the fastest on which everything fits.
    """

    device: str = ""


@register("single", options=SingleOptions)
def single(problem: Problem, workload: Workload, options: SingleOptions) -> Schedule:
    """The fastest one device: load everything, then run the operators one after another.

    The model of execution has no barriers. But a device keeps its launch order, so loading the first operator's tensors last
    makes all operators wait for all loads. O(operators + tensors) for each device.

    Raises
    ------
    InfeasibleError
        No device can run all operators within its memory; the message gives the least shortfall.
    InputError
        The device does not exist.
    """
    scenario = workload.scenario(problem)
    names = device_names(scenario, "single", options.device)
    best: tuple[int, int, ScheduleIndex] | None = None
    refusals: list[tuple[int, str]] = []
    for d, name in enumerate(names):
        if options.device and name != options.device:
            continue
        if (scenario.costs.operator_ns[:, d] == FORBIDDEN).any():
            refusals.append((FORBIDDEN, f"{name!r} cannot run every operator"))
            continue
        index = on_device(scenario, d)
        latency, short = index.times.latency_ns, int(index.peak_memory[d]) - scenario.topology.devices[d].memory
        if short > 0:
            refusals.append((short, f"{name!r} is short of {short} bytes of memory"))
        elif best is None or latency < best[0]:
            best = (latency, d, index)
    if best is None:
        raise InfeasibleError(f"no single device can run the model: {min(refusals)[1]}")
    return best[2].to_schedule()


@register("sequential", options=SingleOptions)
def sequential(problem: Problem, workload: Workload, options: SingleOptions) -> Schedule:
    """One operator after another on one device: the name that HIOS and IOS give to `single`."""
    return single(problem, workload, options)


def on_device(scenario: Scenario, device: int) -> ScheduleIndex:
    """Return the schedule of everything on one device, loads first."""
    index = scenario.graph.index
    order = list(index.order)
    # Only an operator that reads host tensors can delay the others; one without would start at once.
    first = next((o for o in order if index.host_inputs[o] and not index.predecessors[o]), None)
    if first is not None:
        order.remove(first)
        order.insert(0, first)
    loads: list[int] = []
    if not scenario.reads_host_in_place(device):
        read_last = index.host_inputs[order[0]] if order else ()
        others = dict.fromkeys(t for o in order for t in index.host_inputs[o] if t not in read_last)
        loads = [*others, *read_last]
    return ScheduleIndex.on_one_device(scenario, device, order, loads)
