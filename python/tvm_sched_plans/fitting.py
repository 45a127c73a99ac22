"""Find the longest context, the largest batch and the fewest GPUs with which a model fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec

from tvm_sched_runtime.problem import Bus, DecoderConfig, Device, Topology

from .places import gpus
from .runtimes import Case, PlanRequest, Runtime

MOST_GPUS = 64
"""Numbers of GPUs that are tried."""


def size_of(count: float) -> str:
    """Return a size as text, in the binary unit in which memory is sold."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"


def fits(runtime: Runtime, request: PlanRequest) -> bool:
    """Return whether the model fits on the GPUs in some configuration of the runtime."""
    return any(case.best() is not None for case in runtime.on_gpus(request))


def largest(runtime: Runtime, request: PlanRequest, field: str, most: int) -> int:
    """Return the largest ``context`` or ``batch`` of the workload that fits, up to ``most``; 0 if none fits."""
    least = 2 if field == "context" else 1

    def good(value: int) -> bool:
        changed = {
            field: value,
            "new_tokens": min(request.workload.new_tokens, value - 1)
            if field == "context"
            else request.workload.new_tokens,
        }
        return fits(runtime, replace(request, workload=msgspec.structs.replace(request.workload, **changed)))

    return _largest_feasible(good, least, most)


def _largest_feasible(good: Callable[[int], bool], least: int, most: int) -> int:
    """Return the last number for which ``good`` holds, if it holds up to there and not beyond; 0 if it never holds."""
    if not good(least):
        return 0
    low, high = least, least
    while high < most:
        high = min(2 * high, most)
        if not good(high):
            break
        low = high
    else:
        return most
    while high - low > max(1, low // 128):
        middle = (low + high) // 2
        low, high = (middle, high) if good(middle) else (low, middle)
    return low


def fewest_gpus(runtime: Runtime, request: PlanRequest) -> tuple[int, Device] | None:
    """Return how many GPUs like the machine's largest suffice, each on its own bus; None if `MOST_GPUS` do not suffice."""
    largest_one = max(gpus(request.topology), key=lambda device: device.memory)
    count = 1
    while count <= MOST_GPUS:
        if fits(runtime, replace(request, topology=_identical_devices(request.topology, largest_one, count))):
            return count, largest_one
        count += 1 if count < 8 else 4
    return None


def smallest_set(runtime: Runtime, request: PlanRequest) -> tuple[str, ...] | None:
    """Return the smallest set of the machine's GPUs that suffices, largest GPUs first; None if all do not suffice."""
    devices = sorted(gpus(request.topology), key=lambda device: -device.memory)
    for count in range(1, len(devices) + 1):
        names = {device.name for device in devices[:count]}
        if fits(runtime, replace(request, topology=_without(request.topology, names))):
            return tuple(device.name for device in gpus(request.topology) if device.name in names)
    return None


def _without(topology: Topology, names: set[str]) -> Topology:
    """Return the topology with these GPUs alone."""
    kept = tuple(device for device in topology.devices if device.kind == "cpu" or device.name in names)
    known = {device.name for device in kept}
    return msgspec.structs.replace(
        topology,
        devices=kept,
        links=tuple(link for link in topology.links if set(link.devices) <= known),
        switches=tuple(
            msgspec.structs.replace(switch, devices=tuple(n for n in switch.devices if n in known))
            for switch in topology.switches
        ),
    )


def _identical_devices(topology: Topology, device: Device, count: int) -> Topology:
    bus = next((bus for bus in topology.buses if bus.name == device.bus), Bus("bus", 25e9))
    buses = tuple(msgspec.structs.replace(bus, name=f"{bus.name}.{n}") for n in range(count))
    devices = tuple(msgspec.structs.replace(device, name=f"{device.name}.{n}", bus=buses[n].name) for n in range(count))
    cpus = tuple(each for each in topology.devices if each.kind == "cpu")
    return Topology(topology.name, (*devices, *cpus), buses, host_memory=topology.host_memory)


def what_fits(runtime: Runtime, request: PlanRequest, case: Case) -> str:
    """Why a model does not fit, and what would, in a sentence each."""
    chain = case.chain
    needed = [f"weights {size_of(int(chain.weight.sum()))}"]
    if chain.cache.any():
        needed.append(f"keys and values {size_of(int(chain.cache.sum()))}")
    needed.append(f"activations {size_of(int(chain.peak.max()))} on each device")
    have = sum(max(runtime.room(request, device), 0) for device in gpus(request.topology))
    sentences = [
        f"the model does not fit on {request.topology.name} for {runtime.name}: it needs {', '.join(needed)}; the GPUs have "
        f"{size_of(have)} in all to use"
    ]
    return ". ".join([*sentences, *advice(runtime, request)])


def advice(runtime: Runtime, request: PlanRequest) -> list[str]:
    """Return sentences on the workloads and GPUs that would fit."""
    sentences = []
    if isinstance(request.source, DecoderConfig):
        context = largest(runtime, request, "context", request.source.context or 1 << 17)
        sentences.append(
            f"the longest context that fits on the GPUs with batch {request.workload.batch} is {context}"
            if context
            else "no context fits"
        )
        batch = largest(runtime, request, "batch", 4096)
        sentences.append(
            f"the largest batch with context {request.workload.context} is {batch}"
            if batch
            else f"no batch fits with context {request.workload.context}"
        )
    few = smallest_set(runtime, request)
    if few is not None:
        sentences.append(f"{len(few)} of its GPUs suffice: {', '.join(few)}")
    elif (more := fewest_gpus(runtime, request)) is not None:
        sentences.append(f"{more[0]} GPUs like {more[1].name!r} ({size_of(more[1].memory)}) would do")
    else:
        sentences.append(f"not even {MOST_GPUS} GPUs like its largest one would do")
    return sentences
