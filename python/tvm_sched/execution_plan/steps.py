"""Steps of a plan: kernels and transfers of a schedule, the steps that each waits for, and an order without deadlock."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import accumulate

from tvm_sched_runtime.errors import ScheduleError
from tvm_sched_runtime.problem import HOST, Problem
from tvm_sched_runtime.schedule import Schedule, ScheduleIndex, resolved

from .room import wait_for_room

RESULTS = "results"
"""Queue of the copies of outputs to host memory; they do not count in the model's time."""


@dataclass
class Step:
    """A step before it gets its position in the plan; waits are steps, buffers are keys (`BufferKey`)."""

    kind: str
    name: str
    queue: str
    start_ns: int
    end_ns: int
    duration_ns: int
    lanes: tuple[str, ...] = ()
    size: int = 0
    event: str = ""
    operator: int = -1
    optional: bool = False  # it moves a parameter that may be resident
    evict: bool = False  # it moves a parameter that does not stay
    device: int = HOST  # of a kernel
    inputs: list[BufferKey] = field(default_factory=list)
    outputs: list[BufferKey] = field(default_factory=list)
    waits: list[Step] = field(default_factory=list)
    after: list[Step] = field(default_factory=list)  # steps before it in its own queue, or in a channel it shares
    index: int = -1


@dataclass(frozen=True)
class BufferKey:
    """A tensor somewhere: in the memory of ``device``, or in the host's (`HOST`)."""

    tensor: int
    device: int


class StepMaker:
    """Builder of a schedule's steps; `steps` is ready after `make`.

    Parameters
    ----------
    problem, schedule
        Each of joined parameters has a step of its own, with a part of their time; readers wait for the last, too.
    barriers : bool
        Whether the operators of a stage start together, after all earlier ones, as in the model. Without barriers each
        starts when its inputs have arrived, its stream is free, and the device has room for it.
    """

    def __init__(self, problem: Problem, schedule: Schedule, barriers: bool = True) -> None:
        self.sizes = problem.graph.index.size
        number = problem.graph.index.tensor_id
        self.joined = {number[names[0]]: [number[name] for name in names] for names in schedule.joined}
        problem, schedule = resolved(problem, schedule)
        self.problem = problem
        self.barriers = barriers
        self.schedule = schedule
        self.at = ScheduleIndex.of(problem, schedule)
        self.times = self.at.times
        self.arrival: dict[BufferKey, Step] = {}
        self.whole: dict[BufferKey, Step] = {}  # the last of joined parameters, by the first
        self.host_reads: list[Step] = []
        self.kernels: list[Step] = []
        self.transfers: list[Step] = []
        self.stages = _stages(self.at)

    def make(self) -> list[Step]:
        """Return all steps but the copies of results, in the plan's order."""
        self._make_kernels()
        self._make_transfers()
        self._connect_devices()
        self._connect_channels()
        self._connect_tensors()
        if not self.barriers and self.stages:
            wait_for_room(self.problem, self.at, self.kernels)
        self._connect_host_reads()
        return order_steps([*self.kernels, *self.transfers])

    def _make_kernels(self) -> None:
        graph, devices = self.problem.graph, self.problem.topology.devices
        index = graph.index
        apart = overlapping_devices(self.problem, self.at)
        for position, (o, d) in enumerate(zip(self.at.operator, self.at.device, strict=True)):
            moved = sum(index.size[t] for t in (*index.inputs[o], *index.outputs[o]))
            start, end = int(self.times.start_ns[position]), int(self.times.end_ns[position])
            stream = self.schedule.placements[position].stream
            lane = f"{devices[d].name}/{stream}"
            queue = lane if d in apart and stream else devices[d].name
            step = Step(
                "kernel", graph.operators[o].name, queue, start, end, end - start, (lane,), moved, "kernel", o, device=d
            )
            self.kernels.append(step)
            for t in index.outputs[o]:
                self.arrival[BufferKey(t, d)] = step

        for members in self.stages:
            self._share_stage(members)

    def _share_stage(self, members: list[int]) -> None:
        """Give each stream the stage's time, and its operators shares in proportion to their times alone."""
        streams: dict[str, list[Step]] = {}
        for step in (self.kernels[position] for position in members):
            streams.setdefault(step.queue, []).append(step)
        for steps in streams.values():
            whole = steps[0].duration_ns
            alone = [int(self.problem.costs.operator_ns[step.operator, step.device]) for step in steps]
            ends = [whole * done // sum(alone) for done in accumulate(alone)]
            for step, begin, end in zip(steps, [0, *ends], ends, strict=False):
                step.duration_ns = end - begin

    def _make_transfers(self) -> None:
        graph, channels = self.problem.graph, self.problem.topology.channels
        gone = {t for t, _ in self.at.evicted}  # every run brings them
        for j, (kind, item) in enumerate(zip(self.at.transfer_kind, self.at.transfer_item, strict=True)):
            source, target = self.at.transfer_source[j], self.at.transfer_device[j]
            route = self.problem.route(source, target)
            lanes = tuple(channels[c] for c in route.channels)
            start, end = int(self.times.transfer_start_ns[j]), int(self.times.transfer_end_ns[j])
            queue = f"channel {lanes[0] if lanes else f'from {source} to {target}'}"
            if kind == ScheduleIndex.HOST_READ:
                size, name = self.problem.host_bytes(item), graph.operators[item].name
                self.host_reads.append(
                    Step("host_read", name, queue, start, end, end - start, lanes, size, "host_read", operator=item)
                )
                self.transfers.append(self.host_reads[-1])
                continue
            in_file, step_kind, event = self.in_file(item), "copy", "load" if kind == ScheduleIndex.LOAD else "copy"
            if in_file:  # in memory that all devices share, where kernels read it in place
                step_kind = "read" if kind == ScheduleIndex.LOAD else "host_read"
            members = self.joined.get(item, [item])
            total = max(graph.index.size[item], 1)
            ends = [start + (end - start) * done // total for done in accumulate(self.sizes[t] for t in members[:-1])]
            for t, begin, stop in zip(members, [start, *ends], [*ends, end], strict=True):
                name, size = graph.tensors[t].name, self.sizes[t]
                step = Step(step_kind, name, queue, begin, stop, stop - begin, lanes, size, event)
                self.transfers.append(step)
                step.evict = (item, target) in self.at.evicted
                step.optional = graph.tensors[t].kind == "parameter" and item not in gone
                self.arrival[BufferKey(t, target)] = self.whole[BufferKey(item, target)] = step
                if not in_file:
                    step.outputs = [BufferKey(t, target)]
                if step_kind != "host_read":
                    step.inputs = [self.location(t, source)]
                if in_file and source != HOST:
                    step.waits.append(self._arrival(BufferKey(t, source), step))

    def in_file(self, tensor: int) -> bool:
        """Return whether a tensor is read from storage into the memory where kernels use it."""
        return self.problem.topology.maps_storage and self.problem.graph.tensors[tensor].kind == "parameter"

    def location(self, tensor: int, device: int, direct: bool = False) -> BufferKey:
        """Return where a reader on ``device`` finds a tensor."""
        host, mapped = self.problem.graph.index.producer[tensor] < 0, self.problem.topology.maps_storage
        if host and (device == HOST or direct or mapped or self.problem.reads_host_in_place(device)):
            return BufferKey(tensor, HOST)
        return BufferKey(tensor, device)

    def _connect_devices(self) -> None:
        """Order the kernels of each queue; with barriers, also each stage after all earlier kernels of its device."""
        staged = {self.at.device[members[0]] for members in self.stages if self.barriers}
        stage_of = {position: s for s, members in enumerate(self.stages) for position in members}
        last: dict[str, Step] = {}
        before: dict[int, list[Step]] = {}  # on devices with stages: steps before the current stage
        at_hand: dict[int, list[Step]] = {}  # steps of the current stage
        number: dict[int, int] = {}
        for position, step in enumerate(self.kernels):
            d = step.device
            if d in staged:
                stage = stage_of.get(position, -1 - position)
                if number.get(d) != stage:
                    before[d], at_hand[d], number[d] = at_hand.get(d, []), [], stage
                step.after += before[d]
                at_hand[d].append(step)
            if step.queue in last:
                step.after.append(last[step.queue])
            last[step.queue] = step

    def _connect_channels(self) -> None:
        """Order the transfers of each lane, also if a warm run leaves out some between them.

        So a lane's list holds the last transfer of every run, and the optional ones after it.
        """
        lanes: dict[str, list[Step]] = {}
        for step in self.transfers:
            for lane in step.lanes:
                before = lanes.get(lane, [])
                # Its queue keeps the order, but the kernel of a host read, in another queue, needs the same waits.
                apart = step.kind == "host_read"
                step.after += [o for o in before[:-1] if apart or o.queue != step.queue] + before[-1:]
                lanes[lane] = [*before, step] if step.optional else [step]

    def _connect_tensors(self) -> None:
        """Let kernels and copies wait for the arrival of their inputs."""
        index = self.problem.graph.index
        for position, step in enumerate(self.kernels):
            for t in index.inputs[step.operator]:
                key = self.location(t, self.at.device[position], self.at.direct[position])
                if self.in_file(t) and not self.at.direct[position]:
                    key = BufferKey(t, self.at.device[position])
                if key.device != HOST:
                    step.waits += self._arrivals(key, step)
        for step in self.transfers:
            for key in step.inputs:
                if key.device != HOST:
                    step.waits += self._arrivals(key, step)
        # Operators of a stage start together, so each waits for the inputs of all.
        for members in self.stages if self.barriers else ():
            steps = [self.kernels[position] for position in members]
            within = {id(step) for step in steps}
            needed = [other for step in steps for other in step.waits if id(other) not in within]
            for step in steps:
                step.waits += needed

    def _arrivals(self, key: BufferKey, reader: Step) -> list[Step]:
        """Return the step that brings a tensor, and the last one of the parameters that are joined to it."""
        step = self._arrival(key, reader)
        return [step] if self.whole.get(key, step) is step else [step, self.whole[key]]

    def _arrival(self, key: BufferKey, reader: Step) -> Step:
        step = self.arrival.get(key)
        if step is None:
            tensor = self.problem.graph.tensors[key.tensor].name
            device = self.problem.topology.devices[key.device].name
            raise ScheduleError(
                f"{reader.kind} {reader.name!r} reads tensor {tensor!r} on {device!r}, where it never arrives"
            )
        return step

    def _connect_host_reads(self) -> None:
        """Start a kernel with direct host access and its time on the bus together.

        A step waits for ends only, so neither can wait for the other; both wait for the same steps.
        """
        kernel_of = {step.operator: step for step in self.kernels}
        for read in self.host_reads:
            kernel = kernel_of[read.operator]
            kernel_waits = [*kernel.waits, *read.after]
            read.waits = [*kernel.waits, *kernel.after]
            kernel.waits = kernel_waits


def overlapping_devices(problem: Problem, at: ScheduleIndex) -> set[int]:
    """Return the devices whose streams run in parallel by the rules of ``docs/model.md``."""
    together = problem.costs.concurrency
    if together is None:
        return set()
    streams: dict[int, set[int]] = {}
    for d, stream in zip(at.device, at.stream, strict=True):
        streams.setdefault(d, set()).add(stream)
    only_stages = {d for d, threads in enumerate(together.threads) if threads}
    staged = {d for d, stage in zip(at.device, at.stage, strict=True) if stage}
    return {d for d, used in streams.items() if len(used) > 1 and (d in staged or d not in only_stages)}


def _stages(at: ScheduleIndex) -> list[list[int]]:
    """Return the placements of each stage, in launch order."""
    stages: dict[tuple[int, int], list[int]] = {}
    for position, (d, stage) in enumerate(zip(at.device, at.stage, strict=True)):
        if stage:
            stages.setdefault((d, stage), []).append(position)
    return list(stages.values())


def order_steps(steps: list[Step]) -> list[Step]:
    """Sort steps topologically; among free ones the earlier in time comes first."""
    waiting: dict[int, int] = {}
    followers: dict[int, list[Step]] = {id(step): [] for step in steps}
    number = {id(step): k for k, step in enumerate(steps)}
    for step in steps:
        before = {id(other) for other in (*step.waits, *step.after)}
        waiting[id(step)] = len(before)
        for other in before:
            followers[other].append(step)
    free = [(step.start_ns, step.end_ns, number[id(step)], step) for step in steps if waiting[id(step)] == 0]
    heapq.heapify(free)
    ordered: list[Step] = []
    while free:
        step = heapq.heappop(free)[3]
        step.index = len(ordered)
        ordered.append(step)
        for follower in followers[id(step)]:
            waiting[id(follower)] -= 1
            if waiting[id(follower)] == 0:
                heapq.heappush(free, (follower.start_ns, follower.end_ns, number[id(follower)], follower))
    if len(ordered) < len(steps):
        raise ScheduleError("the schedule's orders form a cycle of waits")
    return ordered


def plan_waits(steps: list[Step]) -> list[list[int]]:
    """Return the steps that each step waits for in the plan's order, without waits that its queue or other waits imply.

    A step implies all steps that ended before it began. Steps that a warm run leaves out imply nothing.
    """
    before: list[dict[str, int]] = []  # of each step: the last step of each queue that had ended when it began
    queue_end: dict[str, dict[str, int]] = {}
    result = []
    for step in steps:
        known = dict(queue_end.get(step.queue, {}))
        others = {other.index: other for other in (*step.waits, *step.after) if other.queue != step.queue}
        kept = []
        for index in sorted(others, reverse=True):
            other = others[index]
            if not other.optional and known.get(other.queue, -1) >= index:
                continue
            kept.append(index)
            if not other.optional:
                _merge_progress(known, before[index])
                known[other.queue] = max(known.get(other.queue, -1), index)
        before.append(known)
        if not step.optional:
            queue_end[step.queue] = {**known, step.queue: step.index}
        result.append(sorted(kept))
    return result


def _merge_progress(known: dict[str, int], more: dict[str, int]) -> None:
    for queue, index in more.items():
        if known.get(queue, -1) < index:
            known[queue] = index
