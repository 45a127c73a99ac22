"""Simulate batches that pass the stages of a plan, and the steady time between batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..errors import InputError
from ..problem import HOST, Problem
from ..schedule import Timeline
from ..schedule.timeline import Event
from .pipeline_plan import PipelinePlan
from .wiring import Wiring, wire


@dataclass(frozen=True)
class PipelineRun:
    """A run of several batches."""

    timeline: Timeline
    """A kernel for each stage and batch, a copy for each hop and batch that takes time."""
    done_ns: tuple[int, ...]
    """End of all work on each batch."""

    @property
    def steady_ns(self) -> float:
        """Mean time between the batches of the second half; the time of a single batch."""
        return steady(self.done_ns)


def steady(done: tuple[int, ...]) -> float:
    """Return the mean time between the batches of the second half."""
    half = len(done) // 2
    return float(done[-1]) if half == 0 else (done[-1] - done[half - 1]) / (len(done) - half)


def simulate(problem: Problem, plan: PipelinePlan, batches: int = 0, overlap: bool = True) -> PipelineRun:
    """Simulate a plan; hops on one channel are served in order of arrival.

    Parameters
    ----------
    batches : int
        Number of batches without a pause between them; 0: four for each stage plus four.
    overlap : bool
        Transfers run beside the kernels of other batches, as in the executor. Otherwise a stage gets, computes
        and sends in turn, as in the paper's Figure 1, and the time between batches is `PipelinePlan.cost_ns`.

    Raises
    ------
    InputError
        Less than 0 batches.
    """
    if batches < 0:
        raise InputError(f"batches is {batches}; 0 or more are allowed")
    wiring = wire(problem, plan)
    durations = wiring.work_ns if overlap else tuple(stage.cost_ns for stage in plan.stages)
    simulation = _Simulation(wiring, durations, overlap, batches or 4 * len(plan.stages) + 4)
    simulation.run()
    events = tuple(_events(problem, wiring, simulation))
    done = tuple(simulation.done)
    return PipelineRun(Timeline("simulated", problem.digest, events, max(done, default=0)), done)


@dataclass
class _Task:
    """A stage or a hop: it takes the batches one by one, in order."""

    resources: tuple[str, ...]
    duration: int
    spans: list[tuple[int, int]] = field(default_factory=list)

    def ended(self, batch: int, now: int) -> bool:
        return batch < len(self.spans) and self.spans[batch][1] <= now


class _Simulation:
    """Event simulation: start all tasks that can start, the longest waiting first; then go to the next end of a task."""

    def __init__(self, wiring: Wiring, durations: tuple[int, ...], overlap: bool, batches: int) -> None:
        self.wiring, self.batches = wiring, batches
        self.stages = [_Task((device,), ns) for device, ns in zip(wiring.devices, durations, strict=True)]
        self.hops = [
            _Task(tuple(f"channel {c}" for c in hop.channels) if overlap else (), hop.duration_ns if overlap else 0)
            for hop in wiring.hops
        ]
        self.entering = [wiring.entering(s) for s in range(len(self.stages))]
        self.leaving = [wiring.leaving(s) for s in range(len(self.stages))]
        self.busy: dict[str, int] = {}
        self.done = [0] * batches

    def run(self) -> None:
        tasks = [*self.hops, *self.stages]
        ready: dict[int, int] = {}
        now = 0
        while any(len(task.spans) < self.batches for task in tasks):
            started = True
            while started:
                for i, task in enumerate(tasks):
                    if len(task.spans) < self.batches and self._may_start(i, len(task.spans), now):
                        ready.setdefault(i, now)
                started = self._start_first(tasks, ready, now)
            later = [end for task in tasks for _, end in task.spans[-1:] if end > now]
            now = min(later, default=now)
        last = [task.spans for task in tasks]
        self.done = [max((spans[b][1] for spans in last), default=0) for b in range(self.batches)]

    def _start_first(self, tasks: list[_Task], ready: dict[int, int], now: int) -> bool:
        """Start the task that has waited longest and whose resources are free."""
        for i in sorted(ready, key=lambda i: (ready[i], len(tasks[i].spans), i)):
            task = tasks[i]
            if (task.spans and task.spans[-1][1] > now) or any(self.busy.get(r, 0) > now for r in task.resources):
                continue
            task.spans.append((now, now + task.duration))
            self.busy.update(dict.fromkeys(task.resources, now + task.duration))
            del ready[i]
            return True
        return False

    def _may_start(self, i: int, batch: int, now: int) -> bool:
        """Return whether a batch's inputs are there, and room for its results."""
        if i >= len(self.hops):
            s = i - len(self.hops)
            arrived = all(self.hops[h].ended(batch, now) for h in self.entering[s])
            return arrived and all(self._has_room(h, batch) for h in self.leaving[s])
        hop = self.wiring.hops[i]
        if hop.source == HOST:
            return self._has_room(i, batch)
        return self.stages[hop.source].ended(batch, now)

    def _has_room(self, h: int, batch: int) -> bool:
        """Return whether the target has begun the batch that makes room for this one; host memory always has room."""
        hop = self.wiring.hops[h]
        return hop.target == len(self.stages) or len(self.stages[hop.target].spans) > batch - hop.room


def _events(problem: Problem, wiring: Wiring, simulation: _Simulation) -> Iterator[Event]:
    for s, stage in enumerate(simulation.stages):
        for b, (start, end) in enumerate(stage.spans):
            yield Event("kernel", wiring.stage_event(s, b), (f"{wiring.devices[s]}/0",), start, end)
    channels = problem.topology.channels
    for h, (hop, task) in enumerate(zip(wiring.hops, simulation.hops, strict=True)):
        for b, (start, end) in enumerate(task.spans):
            if task.duration and hop.channels:
                lanes = tuple(channels[c] for c in hop.channels)
                yield Event("copy", wiring.hop_event(h, b), lanes, start, end, hop.bytes)
