"""The bounded queue before a model: priorities, time-outs, batches, and threads that run them."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tvm_sched_runtime.errors import InputError

from .datatypes import Array
from .failures import Busy, Failed, Late, RequestError
from .recent_runs import SHORT_SECONDS, RecentRuns
from .request_context import Recorder, RequestContext, RunRecord
from .served_model import ServedModel

LOG = logging.getLogger("tvm_sched.serve")


@dataclass(frozen=True)
class QueueOptions:
    """How requests of a model wait and run.

    Parameters
    ----------
    instances : int
        Runs that proceed at once.
    places : int
        Requests that may wait.
    timeout : float
        Seconds until a request fails, waiting and running included, if it does not ask for less.
    batch_delay : float or None
        Seconds that a request may wait for others to join it; None joins none.
    """

    instances: int = 1
    places: int = 256
    timeout: float = 60.0
    batch_delay: float | None = None


@dataclass
class Statistics:
    """Counts and summed nanoseconds since the model was loaded, as the protocol's statistics extension has them."""

    successes: int = 0
    failures: int = 0
    success_ns: int = 0
    failure_ns: int = 0
    queue_ns: int = 0
    input_ns: int = 0
    compute_ns: int = 0
    output_ns: int = 0
    last_inference_ms: int = 0
    executions: int = 0
    batches: dict[int, list[int]] = field(default_factory=dict)
    """For each number of rows: executions and nanoseconds of joining, computing and splitting."""


class Timing(NamedTuple):
    """Nanoseconds of one request."""

    queue_ns: int
    input_ns: int
    compute_ns: int
    output_ns: int


Observer = Callable[[int, float, "Timing | None"], None]
"""Called at the end of each request with its status, its seconds, and their parts if it was answered."""
CANCELLED = 499
"""Status of a request whose client went."""


@dataclass(eq=False, slots=True)
class Waiting:
    """A request in the queue, or in a run."""

    arrays: Sequence[Array]
    rows: int
    result: asyncio.Future[tuple[list[Array], Timing]]
    since_ns: int
    queued: bool = True
    context: RequestContext | None = None

    def fits(self, other: Waiting) -> bool:
        """Return whether rows of both requests may stand in one batch."""
        pairs = zip(self.arrays, other.arrays, strict=True)
        return all(one.shape[1:] == another.shape[1:] for one, another in pairs)


class ExecutionQueue:
    """Requests to one version of a model.

    All methods are called in the event loop's thread; only `_execute` and, if runs take long, `_compute` and `_take` are
    called in others. A subclass may run requests elsewhere: it has `_start` and calls `_finish`.
    """

    def __init__(self, model: ServedModel, options: QueueOptions) -> None:
        self.model = model
        self.options = options
        self.statistics = Statistics()
        self.waiting = 0
        self.running = 0
        self._heap: list[tuple[int, int, Waiting]] = []
        self._lock = threading.Lock()
        """Of the heap and `waiting`, which threads that run take from."""
        self._numbers = itertools.count()
        self._threads = ThreadPoolExecutor(options.instances, f"tvm-sched-{model.name}")
        self._timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()
        self._seconds = 0.0
        self.observe: Observer = lambda status, seconds, timing: None
        self.recorder = Recorder()
        self.joins = options.batch_delay is not None and bool(model.largest_batch)
        self._recent = RecentRuns()

    @property
    def retried(self) -> int | None:
        """Return how often a request was sent again to another process; None if requests run in this one."""
        return None

    @property
    def runs_at_once(self) -> bool:
        """Whether a request would now run in the event loop's thread.

        It does where runs are so short that handing them to another thread costs more, an instance is free and none waits.
        """
        free = not self.waiting and self.running < self.options.instances
        return free and not self.joins and self._recent.short

    async def submit(
        self,
        arrays: Sequence[Array],
        priority: int = 0,
        timeout: float = 0.0,
        context: RequestContext | None = None,
    ) -> list[Array]:
        """Run the model on inputs in their order.

        Parameters
        ----------
        priority : int
            Lower numbers come first; 0 is the default, which is the middle.
        timeout : float
            Seconds; 0 is the queue's.
        context : RequestContext, optional
            Gets the times of the request.

        Raises
        ------
        RequestError
            The shapes fit no plan, there is no place, the time is over, or the run failed.
        """
        rows = self.model.check(arrays, self.joins)
        starts = not self.waiting and self.running < self.options.instances
        if self.waiting >= self.options.places and not starts:
            self.observe(Busy.status, 0.0, None)
            if self.options.places:
                text = f"the model's queue is full: {self.waiting} requests wait"
            else:
                text = f"all {self.options.instances} places are taken, and no request may wait"
            raise Busy(text, self.retry_after())
        loop = asyncio.get_running_loop()
        now = time.perf_counter_ns()
        each = Waiting(arrays, rows, loop.create_future(), now, context=context)
        if context is not None:
            context.queued_ns = now
        seconds = min(timeout, self.options.timeout) if timeout > 0 else self.options.timeout
        timer: asyncio.TimerHandle | None = None
        if self.runs_at_once:
            each.queued = False
            self.running += 1
            self._finish([each], rows, *self._compute([each], now))
        else:
            timer = loop.call_later(seconds, _expire, each, seconds)
            with self._lock:
                heapq.heappush(self._heap, (priority, next(self._numbers), each))
                self.waiting += 1
            self._idle.clear()
            self._dispatch()
        total = self.statistics
        try:
            outputs, timing = await each.result
        except (RequestError, asyncio.CancelledError) as error:
            total.failures += 1
            spent = time.perf_counter_ns() - now
            total.failure_ns += spent
            self.observe(error.status if isinstance(error, RequestError) else CANCELLED, 1e-9 * spent, None)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._leave(each)
        if context is not None:
            context.run_ns = now + timing.queue_ns
            context.joined_ns = context.run_ns + timing.input_ns
            context.computed_ns = context.joined_ns + timing.compute_ns
            context.split_ns = context.computed_ns + timing.output_ns
        total.successes += 1
        spent = time.perf_counter_ns() - now
        total.success_ns += spent
        total.queue_ns += timing.queue_ns
        total.input_ns += timing.input_ns
        total.compute_ns += timing.compute_ns
        total.output_ns += timing.output_ns
        total.last_inference_ms = time.time_ns() // 1_000_000
        self.observe(200, 1e-9 * spent, timing)
        return outputs

    def record_timelines(self, wanted: bool) -> None:
        """Let the executor record the timelines of further runs, or no more."""
        self.model.record_timelines(wanted)

    def retry_after(self) -> int:
        """Return the seconds after which a place should be free."""
        return max(1, min(60, math.ceil(self.waiting * self._seconds / self.options.instances)))

    async def drain(self) -> None:
        """Wait until nothing waits or runs, then end the threads."""
        await self._idle.wait()
        self._threads.shutdown(wait=False)

    def _leave(self, each: Waiting) -> None:
        """Give back the place of a request that waits no more."""
        with self._lock:
            if each.queued:
                each.queued = False
                self.waiting -= 1
                self._heap = [entry for entry in self._heap if entry[2].queued]
                heapq.heapify(self._heap)
        self._settle()

    def _settle(self) -> None:
        if not self.waiting and not self.running:
            self._idle.set()

    def _dispatch(self) -> None:
        """Start runs while an instance is free and a request waits."""
        while self._heap and self.running < self.options.instances:
            if self._should_wait():
                return
            batch = self._take()
            if batch:
                self.running += 1
                self._start(batch)
        self._settle()  # all that waited may have been late or cancelled

    def _should_wait(self) -> bool:
        """Return whether the batch may still grow; if so, set a timer."""
        if not self.joins or not self.options.batch_delay:
            return False
        first = self._heap[0][2]
        if sum(each.rows for _, _, each in self._heap if first.fits(each)) >= self.model.largest_batch:
            return False
        oldest = min(each.since_ns for _, _, each in self._heap)
        left = self.options.batch_delay - 1e-9 * (time.perf_counter_ns() - oldest)
        if left <= 0:
            return False
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(left, self._dispatch)
        return True

    def _take(self) -> list[Waiting]:
        """Take the first request, and those after it that fit into its batch."""
        batch: list[Waiting] = []
        others: list[tuple[int, int, Waiting]] = []
        rows = 0
        with self._lock:
            while self._heap:
                each = self._heap[0][2]
                if batch and not self.joins:
                    break
                if batch and not batch[0].fits(each):
                    others.append(heapq.heappop(self._heap))
                    continue
                if batch and rows + each.rows > self.model.largest_batch:
                    break
                heapq.heappop(self._heap)
                each.queued = False
                self.waiting -= 1
                if not each.result.done():
                    batch.append(each)
                    rows += each.rows
            for entry in others:
                heapq.heappush(self._heap, entry)
        return batch

    def _start(self, batch: list[Waiting]) -> None:
        """Run a batch; `_finish` is called at its end."""
        self._threads.submit(self._execute, batch, time.perf_counter_ns(), asyncio.get_running_loop())

    def _execute(self, batch: list[Waiting], begun_ns: int, loop: asyncio.AbstractEventLoop) -> None:
        """Run a batch in a thread of ours, and go on with what waits: the event loop need not hand it over."""
        while batch:
            found = self._compute(batch, begun_ns)
            following = [] if self.joins else self._take()  # the event loop knows how long a batch may grow
            rows = sum(each.rows for each in batch)
            loop.call_soon_threadsafe(self._finish, batch, rows, *found, bool(following))
            batch, begun_ns = following, time.perf_counter_ns()

    def _compute(self, batch: list[Waiting], begun_ns: int) -> tuple[list[list[Array]], list[int], RequestError | None]:
        """Run a batch here; return outputs, when each part of the run ended, and why it failed."""
        rows = sum(each.rows for each in batch)
        times = [begun_ns]
        results: list[list[Array]] = []
        failure: RequestError | None = None
        try:
            inputs = self.model.join([each.arrays for each in batch], rows) if self.joins else batch[0].arrays
            times.append(time.perf_counter_ns())
            if self.recorder.timelines:
                outputs, timeline = self.model.run_recorded(inputs)
            else:
                outputs, timeline = self.model.run(inputs), None
            times.append(time.perf_counter_ns())
            self._recent.note(self._seconds_alone(1e-9 * (times[2] - times[1])))
            self._record(batch, times, timeline)
            if self.joins:
                begin = 0
                for each in batch:
                    results.append([output[begin : begin + each.rows] for output in outputs])
                    begin += each.rows
            else:
                results = [outputs]
            times.append(time.perf_counter_ns())
        except InputError as error:
            failure = RequestError(str(error))
        except Exception as error:
            LOG.error("model %s version %s: %s%s", self.model.name, self.model.version, error, _ids(batch))
            failure = Failed("the run failed; the server's log says why")
        return results, times, failure

    def _seconds_alone(self, seconds: float) -> float:
        """Return the seconds of the last run without its wait for Python's lock, if they decide whether it was short.

        The executor knows them of the last run only, which is another thread's where runs proceed at once.
        """
        if seconds < SHORT_SECONDS or self.options.instances > 1:
            return seconds
        return min(seconds, self.model.module.latency())

    def _record(self, batch: list[Waiting], times: list[int], timeline: dict[str, Any] | None) -> None:
        if self.recorder.watched:
            ids = [each.context.id for each in batch if each.context is not None]
            name = threading.current_thread().name
            self.recorder.run(RunRecord(self.model.name, self.model.version, name, times[-2], times[-1], ids, timeline))

    def _finish(
        self,
        batch: list[Waiting],
        rows: int,
        results: list[list[Array]],
        times: list[int],
        failure: RequestError | None,
        goes_on: bool = False,
    ) -> None:
        """Answer the requests of a run; the thread that ran it may go on with another one."""
        self.running -= not goes_on
        if failure is None:
            spans = [after - before for before, after in itertools.pairwise(times)]
            self._seconds = 0.9 * self._seconds + 0.1e-9 * sum(spans) if self._seconds else 1e-9 * sum(spans)
            self.statistics.executions += 1
            counts = self.statistics.batches.setdefault(max(rows, 1), [0, 0, 0, 0])
            for place, more in enumerate((1, *spans)):
                counts[place] += more
        for position, each in enumerate(batch):
            if each.result.done():
                continue
            if failure is not None:
                each.result.set_exception(failure)
            else:
                each.result.set_result((results[position], Timing(times[0] - each.since_ns, *spans)))
        self._dispatch()


def _ids(batch: Sequence[Waiting]) -> str:
    """Return the ids of requests for a message."""
    ids = [each.context.id for each in batch if each.context is not None]
    return f" (requests {', '.join(ids)})" if ids else ""


def _expire(each: Waiting, seconds: float) -> None:
    if not each.result.done():
        state = "waiting" if each.queued else "running"
        each.result.set_exception(Late(f"the request was {state} after its {seconds:g} s"))
