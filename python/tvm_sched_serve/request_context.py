"""What a request is called and when it passed from one part of the server to the next, for answers, logs and traces."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

_ID = re.compile(r"[!-~]{1,128}")
_PARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_PREFIX = f"{os.getpid():x}{os.urandom(4).hex()}"
_NUMBERS = itertools.count(1)


@dataclass(slots=True, eq=False)
class RequestContext:
    """One request from its arrival to its answer. Times are nanoseconds of `time.perf_counter_ns`; 0 is "not yet".

    The protocol makes it, the queue fills in model and times, and the protocol hands it to the `Recorder` at the end.
    """

    id: str
    protocol: str
    """``http`` or ``grpc``."""
    parent: str = ""
    """The client's span in W3C's format ``traceparent``, or "" if it sent none."""
    arrived_ns: int = 0
    model: str = ""
    version: str = ""
    queued_ns: int = 0
    """When the request came into the queue."""
    run_ns: int = 0
    """When its run began; of a text: when its prompt was accepted."""
    joined_ns: int = 0
    """When its batch was put together."""
    computed_ns: int = 0
    """When the run ended; of a text: when its first token came."""
    split_ns: int = 0
    """When its part of the batch was taken; of a text: when its last token came."""
    tokens: int = 0
    status: int = 0
    ended_ns: int = 0

    @classmethod
    def of(cls, given_id: str, parent: str, protocol: str) -> RequestContext:
        """Return the context of a request that arrives now; names that are not allowed are replaced by our own."""
        name = given_id if _ID.fullmatch(given_id) else f"{_PREFIX}-{next(_NUMBERS):x}"
        return cls(name, protocol, parent if _PARENT.fullmatch(parent) else "", time.perf_counter_ns())

    def rename(self, given_id: str) -> None:
        """Take the id that the request itself carries, if it is allowed."""
        if _ID.fullmatch(given_id):
            self.id = given_id

    def phases(self) -> list[tuple[str, int, int]]:
        """Return name, begin and end of each part that the request has behind it."""
        names: tuple[str, ...] = ("receive", "queue", "first token", "further tokens", "answer")
        times = [self.arrived_ns, self.queued_ns, self.run_ns, self.computed_ns, self.split_ns, self.ended_ns]
        if not self.tokens:
            names = ("receive", "queue", "join", "compute", "split", "answer")
            times.insert(3, self.joined_ns)
        passed = [(name, begin) for name, begin in zip(names, times, strict=False) if begin]
        ends = [begin for _, begin in passed[1:]] + [self.ended_ns]
        return [(name, begin, end) for (name, begin), end in zip(passed, ends, strict=True)]


@dataclass(frozen=True)
class RunRecord:
    """A run of a model, or a step of a language model."""

    model: str
    version: str
    thread: str
    begin_ns: int
    end_ns: int
    requests: Sequence[str]
    """Ids of the requests that it computed."""
    timeline: dict[str, Any] | None
    """`ScheduledModule.timeline`."""


class Watcher(Protocol):
    """Is told of requests and runs."""

    timelines: bool
    """Whether runs should record the executor's timeline."""

    def request(self, context: RequestContext) -> None:
        """Note a request that ended; called in the event loop's thread."""

    def run(self, record: RunRecord) -> None:
        """Note a run; called in the thread that ran it."""


class Recorder:
    """Tells requests and runs to all who watch; without one it costs nothing."""

    def __init__(self) -> None:
        self._watchers: tuple[Watcher, ...] = ()

    @property
    def watched(self) -> bool:
        """Whether somebody watches."""
        return bool(self._watchers)

    @property
    def timelines(self) -> bool:
        """Whether somebody wants the executor's timelines."""
        return any(watcher.timelines for watcher in self._watchers)

    def add(self, watcher: Watcher) -> None:
        """Tell a watcher of what ends from now on."""
        self._watchers += (watcher,)

    def remove(self, watcher: Watcher) -> None:
        """Tell a watcher nothing more."""
        self._watchers = tuple(each for each in self._watchers if each is not watcher)

    def request(self, context: RequestContext, status: int) -> None:
        """Note that a request ended with a status of HTTP."""
        if self._watchers:
            context.status, context.ended_ns = status, time.perf_counter_ns()
            for watcher in self._watchers:
                watcher.request(context)

    def run(self, record: RunRecord) -> None:
        """Note a run."""
        for watcher in self._watchers:
            watcher.run(record)
