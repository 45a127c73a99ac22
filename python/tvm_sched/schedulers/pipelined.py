"""The scheduler `pipelined`: one device computes while it loads, and evicts parameters early if memory is short."""

from __future__ import annotations

import msgspec

from tvm_sched_runtime.errors import InfeasibleError
from tvm_sched_runtime.problem import FORBIDDEN, Problem, Scenario, Workload
from tvm_sched_runtime.schedule import Schedule, ScheduleIndex

from .common.native_methods import shortfalls
from .scheduler_registry import register


class PipelinedOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `pipelined`.

    Parameters
    ----------
    evict : bool
        Whether parameters may leave a device that cannot hold all of them, each after its last reader.
    """

    evict: bool = True


@register("pipelined", options=PipelinedOptions)
def pipelined(problem: Problem, workload: Workload, options: PipelinedOptions) -> Schedule:
    """The fastest one device, each operator as soon as its own parameters are there.

    Loads follow the order of use, as in PipeSwitch (Bai et al., OSDI 2020). If the device's memory is too small, parameters
    are evicted after their last use. So a model larger than the memory can run, unless loads run too far ahead of the
    kernels: a load waits only for its bus. O(operators + tensors) for each device.

    Raises
    ------
    InfeasibleError
        No device can run all operators within its memory; the message gives the least shortfall.
    """
    scenario = workload.scenario(problem)
    best: ScheduleIndex | None = None
    refusals: list[tuple[int, str]] = []
    for d, device in enumerate(scenario.topology.devices):
        if (scenario.costs.operator_ns[:, d] == FORBIDDEN).any():
            refusals.append((FORBIDDEN, f"{device.name!r} cannot run every operator"))
            continue
        index = in_order_of_use(scenario, d)
        if options.evict:
            index = with_eviction(index)
        short = shortfalls(index)[d]
        if short > 0:
            refusals.append((short, f"{device.name!r} is short of {short} bytes of memory"))
        elif best is None or index.times.latency_ns < best.times.latency_ns:
            best = index
    if best is None:
        raise InfeasibleError(f"no single device can run the model: {min(refusals)[1]}")
    return best.to_schedule()


def in_order_of_use(scenario: Scenario, device: int) -> ScheduleIndex:
    """Return the schedule of everything on one device, each tensor loaded in the order of its first reader."""
    index = scenario.graph.index
    order = list(index.order)
    loads: list[int] = []
    if not scenario.reads_host_in_place(device):
        loads = list(dict.fromkeys(t for o in order for t in index.host_inputs[o]))
    return ScheduleIndex.on_one_device(scenario, device, order, loads)


def with_eviction(index: ScheduleIndex) -> ScheduleIndex:
    """Return the schedule with parameters evicted from the devices that are too small for it, and from no others.

    Times stay as they are, and memory can still be short: see `shortfalls`. Evicted parameters are loaded again in every
    run, so a device with room for all keeps them.
    """
    short, graph = shortfalls(index), index.scenario.graph
    tensors, kept = graph.tensors, set(graph.index.graph_outputs)
    evicted = {
        (t, d)
        for kind, t, d in zip(index.transfer_kind, index.transfer_item, index.transfer_device, strict=True)
        if kind != ScheduleIndex.HOST_READ and short[d] > 0 and tensors[t].kind == "parameter" and t not in kept
    }
    return index.with_evicted(evicted)
