"""Run batches through the stages of a plan: a thread for each stage and hop, with bounded queues between them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import numpy as np

from ..errors import ExecutionError, InputError, TvmSchedError
from ..problem import HOST, Problem
from ..runtime import to_numpy, to_tensor
from ..schedule import Timeline
from ..schedule.timeline import Event
from .pipeline_plan import PipelinePlan
from .pipeline_simulator import PipelineRun
from .wiring import Wiring, wire

Values = dict[str, Any]

_PERIOD_SECONDS = 0.05
"""Least time of the slowest stage or hop of an emulated pipeline, so that waking threads takes little beside it."""
_PATIENCE = 0.05


@dataclass(frozen=True)
class StageProgram:
    """Computation of a stage."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    """Names of tensors."""
    run: Callable[[Sequence[Any]], Sequence[Any]]
    """From the inputs to the outputs, in their order; called from ``instances`` threads."""
    instances: int = 1
    """Batches at once: on a GPU one arrives and one leaves while another is computed."""


@dataclass(frozen=True)
class BatchResult:
    """Result of a batch."""

    batch: int
    outputs: list[np.ndarray[Any, Any]] | None
    """In the model's order; None if the batch failed or ran for its times only."""
    error: TvmSchedError | None = None
    """Why it failed; the message names batch, stage and device, and the operator if it is known."""

    def value(self) -> list[np.ndarray[Any, Any]]:
        """Return the outputs; raise the batch's error if it failed, or an error if it ran for its times only."""
        if self.error is not None:
            raise self.error
        if self.outputs is None:
            raise ExecutionError(
                f"batch {self.batch} ran for its times only (times_only), so that there are no outputs; run it without"
            )
        return self.outputs


@dataclass(frozen=True)
class _Item:
    """A batch between stages: its values or its error."""

    batch: int
    values: Values
    error: ExecutionError | None = None


_END = None
"""Follows the last batch through all queues."""


class PipelineExecutor:
    """Executor of a plan: stages work at once on different batches, transfers overlap kernels, batches stay in order.

    Parameters
    ----------
    problem, plan
        A plan of the problem that `verify` accepts.
    programs : sequence of StageProgram
        One for each stage.
    emulated : bool
        Hops take the plan's time on their channels. Otherwise stages share memory, and tensors are handed over.
    scale : float, optional
        Factor by which emulated hops are slower than the plan's time, see `emulation_scale`; stages must be as slow.
    times_only : bool
        The programs compute no values, so batches have no outputs.
    """

    def __init__(
        self,
        problem: Problem,
        plan: PipelinePlan,
        programs: Sequence[StageProgram],
        emulated: bool = False,
        scale: float = 1.0,
        times_only: bool = False,
    ) -> None:
        self.problem, self.wiring, self.programs = problem, wire(problem, plan), list(programs)
        self.inputs = tuple(tensor.name for tensor in problem.graph.tensors if tensor.kind == "input")
        self.outputs = problem.graph.outputs
        self.returned = tuple(name for name in self.inputs if name in self.outputs)
        self.emulated, self.scale, self.times_only = emulated, scale if emulated else 1.0, times_only
        if len(self.programs) != len(self.wiring.devices):
            raise InputError(f"{len(self.programs)} programs for {len(self.wiring.devices)} stages")
        if not any(hop.target == len(self.programs) for hop in self.wiring.hops):
            raise InputError("the model returns nothing that a stage makes, so there is nothing to run")
        parameters = {tensor.name for tensor in problem.graph.tensors if tensor.kind == "parameter"}
        if handed := parameters.intersection(self.outputs):
            raise InputError(f"the model returns its parameter {min(handed)!r}, which no stage of a pipeline sends")

    def stream(self, batches: Iterable[Any]) -> Generator[BatchResult]:
        """Run batches as they come; yield their results in order.

        Parameters
        ----------
        batches : iterable
            The model's inputs of each batch: a mapping by name, a sequence in the model's order, or a single array.

        Raises
        ------
        Exception
            An error of the iterable, after the results of the earlier batches.
        """
        # Closed at once on Ctrl-C, even between two results, so that no thread outlives the run.
        with closing(_Run(self, batches).results()) as results:
            yield from results

    def run(self, batches: Iterable[Any]) -> list[BatchResult]:
        """Run batches and return all results."""
        with closing(self.stream(batches)) as results:
            return list(results)

    def trace(self, batches: Iterable[Any]) -> tuple[list[BatchResult], PipelineRun]:
        """Run batches; return their results, and when each stage and hop worked, in nanoseconds of the plan's time."""
        run = _Run(self, batches)
        with closing(run.results()) as finished:
            results = list(finished)
        source = "emulated" if self.emulated else "measured"
        timeline = Timeline(source, self.problem.digest, tuple(run.events()), max(run.done, default=0))  # type: ignore[arg-type]
        return results, PipelineRun(timeline, tuple(run.done))

    def named(self, batch: Any) -> Values:
        """Return the model's inputs by name.

        Raises
        ------
        InputError
            Inputs are missing or unknown.
        """
        if not isinstance(batch, Mapping):
            parts = list(batch) if isinstance(batch, (list, tuple)) else [batch]
            batch = dict(zip(self.inputs, parts, strict=False)) if len(parts) == len(self.inputs) else {}
        if sorted(batch) != sorted(self.inputs):
            raise InputError(f"a batch has the inputs {', '.join(self.inputs)}; found {', '.join(batch) or 'others'}")
        return dict(batch)

    def copies(self, values: Values) -> Values:
        """Return copies of the inputs that are also outputs, since the caller may change both.

        Raises
        ------
        InputError
            Such an input is not an array.
        """
        return {name: np.array(to_numpy(to_tensor(values[name]))) for name in self.returned}

    def results(self, values: Values) -> list[np.ndarray[Any, Any]]:
        """Return the model's outputs; one that it returns several times is copied."""
        taken: set[str] = set()
        outputs = []
        for name in self.outputs:
            outputs.append(np.array(values[name]) if name in taken else np.asarray(values[name]))
            taken.add(name)
        return outputs


def emulation_scale(wiring: Wiring) -> float:
    """Return the factor by which emulated stages and hops are slowed down, so that the threads' own time is small."""
    slowest = max((*wiring.work_ns, *(hop.duration_ns for hop in wiring.hops)), default=0)
    return max(1.0, _PERIOD_SECONDS * 1e9 / max(slowest, 1))


@dataclass
class _Lane:
    """A hop at run time: sent items, arrived items, and room for further batches."""

    sent: SimpleQueue[_Item | None]
    arrived: SimpleQueue[_Item | None]
    room: threading.Semaphore


@dataclass
class _Run:
    """One stream of batches."""

    executor: PipelineExecutor
    batches: Iterable[Any]
    done: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        wiring = self.executor.wiring
        self.stopped = threading.Event()
        self.failure: BaseException | None = None
        self.fed: deque[Values] = deque()
        self.lanes = []
        for hop in wiring.hops:
            # A source with several batches at once needs room for all of them.
            instances = 1 if hop.source == HOST else self.executor.programs[hop.source].instances
            arrived: SimpleQueue[_Item | None] = SimpleQueue()
            sent = SimpleQueue[_Item | None]() if self.executor.emulated and hop.duration_ns else arrived
            self.lanes.append(_Lane(sent, arrived, threading.Semaphore(hop.room + instances - 1)))
        self.channels = {c: threading.Lock() for hop in wiring.hops for c in hop.channels}
        self.spans: list[tuple[str, int, int, int, int]] = []  # kind, stage or hop, batch, start, end
        self.begin = 0

    def results(self) -> Generator[BatchResult]:
        wiring, last = self.executor.wiring, len(self.executor.programs)
        threads = [threading.Thread(target=self._feed, name="pipeline input", daemon=True)]
        for s, device in enumerate(wiring.devices):
            threads.append(threading.Thread(target=self._stage, args=(s,), name=f"stage {s} {device}", daemon=True))
        for h, lane in enumerate(self.lanes):
            if lane.sent is not lane.arrived:
                threads.append(threading.Thread(target=self._hop, args=(h,), name=f"hop {h}", daemon=True))
        self.begin = time.perf_counter_ns()
        try:
            for thread in threads:
                thread.start()
            yield from self._collect([self.lanes[h] for h in wiring.entering(last)])
        finally:
            self.stopped.set()
            for lane in self.lanes:
                lane.sent.put(_END)
                lane.arrived.put(_END)
            for thread in threads[1:]:
                if thread.ident is not None:  # Ctrl-C may strike while they are started
                    thread.join()
        threads[0].join()
        if self.failure is not None:
            raise self.failure

    def events(self) -> Iterator[Event]:
        wiring, channels = self.executor.wiring, self.executor.problem.topology.channels
        for kind, position, batch, start, end in self.spans:
            if kind == "stage":
                name, lane = wiring.stage_event(position, batch), f"{wiring.devices[position]}/0"
                yield Event("kernel", name, (lane,), start, end)
            else:
                hop = wiring.hops[position]
                lanes = tuple(channels[c] for c in hop.channels)
                yield Event("copy", wiring.hop_event(position, batch), lanes, start, end, hop.bytes)

    def _now(self) -> int:
        return int((time.perf_counter_ns() - self.begin) / self.executor.scale)

    def _acquire(self, positions: Sequence[int]) -> bool:
        """Wait for room in hops; return False if the run is stopped first."""
        for h in positions:
            while not self.lanes[h].room.acquire(timeout=_PATIENCE):
                if self.stopped.is_set():
                    return False
        return not self.stopped.is_set()

    def _send(self, positions: Sequence[int], item: _Item | None) -> None:
        for h in positions:
            self.lanes[h].sent.put(item)

    def _feed(self) -> None:
        """Give every batch to the hops from host memory."""
        positions = self.executor.wiring.leaving(HOST)
        try:
            for number, batch in enumerate(self.batches):
                if not self._acquire(positions):
                    return
                error = None
                values: Values = {}
                returned: Values = {}
                try:
                    values = self.executor.named(batch)
                    returned = self.executor.copies(values)
                except InputError as wrong:
                    error = ExecutionError(f"batch {number}: {wrong}")
                self.fed.append(returned)
                self._send(positions, _Item(number, values, error))
        except BaseException as error:  # of the caller's iterable; `results` raises it
            self.failure = error
        finally:
            self._send(positions, _END)

    def _stage(self, s: int) -> None:
        """Compute batch after batch, or several at once; their results leave in order."""
        leaving, instances = self.executor.wiring.leaving(s), self.executor.programs[s].instances
        if instances == 1:
            for items in self._taken(s):
                self._send(leaving, self._compute(s, items))
        else:
            with ThreadPoolExecutor(instances + 1, f"stage {s}") as pool:
                begun: SimpleQueue[Future[_Item] | None] = SimpleQueue()
                sender = pool.submit(self._send_in_order, leaving, begun)
                for items in self._taken(s):
                    begun.put(pool.submit(self._compute, s, items))
                begun.put(_END)
                sender.result()
        self._send(leaving, _END)

    def _taken(self, s: int) -> Iterator[list[_Item]]:
        """Yield each batch when all of it has arrived and there is room for its results."""
        wiring = self.executor.wiring
        entering, leaving = wiring.entering(s), wiring.leaving(s)
        while True:
            items = [self.lanes[h].arrived.get() for h in entering]
            arrived = [item for item in items if item is not None]
            if len(arrived) < len(items) or not self._acquire(leaving):
                return
            for h in entering:
                self.lanes[h].room.release()
            yield arrived

    def _send_in_order(self, leaving: Sequence[int], begun: SimpleQueue[Future[_Item] | None]) -> None:
        while (computed := begun.get()) is not _END:
            self._send(leaving, computed.result())

    def _compute(self, s: int, items: Sequence[_Item]) -> _Item:
        batch = items[0].batch
        error = next((item.error for item in items if item.error is not None), None)
        if error is not None:
            return _Item(batch, {}, error)
        program = self.executor.programs[s]
        values = {name: value for item in items for name, value in item.values.items()}
        start = self._now()
        try:
            outputs = program.run([values[name] for name in program.inputs])
        except Exception as failed:
            device = self.executor.wiring.devices[s]
            return _Item(batch, {}, ExecutionError(f"batch {batch}, stage {s} on {device}: {failed}"))
        self.spans.append(("stage", s, batch, start, self._now()))
        return _Item(batch, dict(zip(program.outputs, outputs, strict=True)))

    def _hop(self, h: int) -> None:
        """Emulate transfers: each occupies its channels for the plan's time."""
        hop, lane = self.executor.wiring.hops[h], self.lanes[h]
        seconds = hop.duration_ns * self.executor.scale / 1e9
        while (item := lane.sent.get()) is not _END and not self.stopped.is_set():
            with ExitStack() as held:
                for channel in sorted(hop.channels):
                    held.enter_context(self.channels[channel])
                start = self._now()
                self.stopped.wait(seconds)
                self.spans.append(("hop", h, item.batch, start, self._now()))
            lane.arrived.put(item)
        lane.arrived.put(_END)

    def _collect(self, lanes: Sequence[_Lane]) -> Iterator[BatchResult]:
        while True:
            items = [lane.arrived.get() for lane in lanes]
            arrived = [item for item in items if item is not None]
            if len(arrived) < len(items):
                return
            for lane in lanes:
                lane.room.release()
            self.done.append(self._now())
            inputs = self.fed.popleft()
            error = next((item.error for item in arrived if item.error is not None), None)
            values = {**inputs, **{name: value for item in arrived for name, value in item.values.items()}}
            nothing = error is not None or self.executor.times_only
            outputs = None if nothing else self.executor.results(values)
            yield BatchResult(arrived[0].batch, outputs, error)
