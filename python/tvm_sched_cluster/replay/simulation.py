"""The event simulation of a cluster: requests come and go, parts fail and are repaired, services move."""

from __future__ import annotations

import heapq
import itertools
import time as clock
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from tvm_sched.progress import Progress
from tvm_sched_runtime.checks import require_not_negative, require_positive
from tvm_sched_runtime.errors import InputError

from ..admission import Admission, AdmissionRules
from ..allocators.allocator_registry import get, try_place
from ..allocators.anytime_allocator import best_future_use
from ..bounds.time_bound import TimeBound
from ..controller import defragment, recover
from ..problem.service import ServiceRequest
from ..problem.service_placement import ServicePlacement
from ..search.cluster_state import ClusterState
from .traces import Fault

LEAVING = " (leaving)"
"""Suffix of the old placement of a service that moves, which it holds until the new one has loaded."""


class ReplayOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a replay goes.

    Parameters
    ----------
    load_bandwidth : float
        Bytes a second at which each GPU of a new placement loads its parameters; all of its GPUs load at once.
    load_times : tuple of float
        Seconds that a placement takes to load, drawn at random from these instead.
    defragment_every : float
        Seconds between two defragmentations; 0: none.
    moves : int
        Most moves of each.
    windows : int
        Windows of equal length, for which figures are given.
    admission : AdmissionRules
    seed : int
        Of the load times that are drawn.
    """

    load_bandwidth: float = 1e9
    load_times: tuple[float, ...] = ()
    defragment_every: float = 0.0
    moves: int = 5
    windows: int = 20
    admission: AdmissionRules = AdmissionRules()
    seed: int = 0

    def __post_init__(self) -> None:
        require_positive("load bandwidth", self.load_bandwidth)
        require_not_negative("seconds between defragmentations", self.defragment_every)
        require_not_negative("moves", self.moves)
        require_positive("windows", self.windows)
        if any(not seconds >= 0 for seconds in self.load_times):
            raise InputError("load times must be 0 or more seconds")


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a window of time.

    Attributes
    ----------
    start, end : float
        Seconds.
    requests, accepted : int
        That came in the window.
    used : float
        GPUs that services held, as a fraction of the GPUs that had not failed; mean over the window.
    running : int
        Services at the end.
    bound : float or None
        Most services that could run at the end, of all that had come and not gone; None: not computed.
    fragmentation : float
        At the end: part of the free GPUs that services of the demand cannot use, by the linear program over mixes, for
        one service at a time, in the mean over the demand.
    moves, failures, interrupted : int
        Moved services, failed parts, services that a failure interrupted.
    unavailable : float
        Seconds that accepted services did not serve after a failure, summed over the services; counted where they end.
    """

    start: float
    end: float
    requests: int
    accepted: int
    used: float
    running: int
    bound: float | None
    fragmentation: float
    moves: int
    failures: int
    interrupted: int
    unavailable: float


class ClassFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one service, and how many of them were accepted."""

    requests: int
    accepted: int


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a replay. Equal inputs give equal results, except for the times of decisions.

    Attributes
    ----------
    policy : str
    seed : int
    interrupted : bool
        Whether the user ended it; the windows until then are there.
    requests, accepted : int
    accepted_bound : float or None
        Most requests that any policy could have accepted; None: not computed, or there were failures.
    used, fragmentation, running_to_bound : float
        Means over time; means over the windows of the fragmentation, and of running services over their bound.
    moves, failures, interruptions, refused : int
        ``refused``: requests that the rules of admission refused.
    moved_bytes : int
        Parameters that moves loaded.
    unavailable : float
        Seconds, as in `Window`.
    loading : float
        Seconds that services loaded before they served for the first time.
    services : dict of str to ClassFigures
    decision_ms : dict of str to float
        Processor time of a decision: mean, 50th and 99th percentile, most.
    windows : list of Window
    """

    policy: str
    seed: int
    interrupted: bool
    requests: int
    accepted: int
    accepted_bound: float | None
    used: float
    fragmentation: float
    running_to_bound: float | None
    moves: int
    failures: int
    interruptions: int
    refused: int
    moved_bytes: int
    unavailable: float
    loading: float
    services: dict[str, ClassFigures]
    decision_ms: dict[str, float]
    windows: list[Window]

    @property
    def acceptance(self) -> float:
        """Part of the requests that were accepted."""
        return self.accepted / max(self.requests, 1)


def replay(
    state: ClusterState,
    requests: Sequence[ServiceRequest],
    policy: str = "anytime",
    options: Mapping[str, Any] | msgspec.Struct | None = None,
    *,
    faults: Sequence[Fault] = (),
    settings: ReplayOptions | None = None,
    bounds: bool = True,
    progress: Progress | None = None,
) -> Replayed:
    """Replay requests and faults on an empty cluster.

    A request that finds no place when it comes is lost. Services that a failure ended wait for a place, and are placed again
    before others, after each departure and repair. A placement loads its parameters before it serves. A service that moves
    holds both placements until the new one has loaded.

    Parameters
    ----------
    state : ClusterState
        An empty one; it is changed.
    requests : sequence of ServiceRequest
        In the order of their times.
    policy, options
        An allocator and its options.
    bounds : bool
        Whether to compute the bounds.

    Raises
    ------
    InputError
        Unknown policy, option, service or part; the state is not empty, or the requests are not in order.
    """
    return _Simulation(state, requests, policy, options, faults, settings or ReplayOptions(), bounds).run(progress)


_ORDER = ("end", "left", "repair", "fail", "arrive", "defragment", "window")
"""Order of events at one time."""


class _Simulation:
    def __init__(
        self,
        state: ClusterState,
        requests: Sequence[ServiceRequest],
        policy: str,
        options: Mapping[str, Any] | msgspec.Struct | None,
        faults: Sequence[Fault],
        settings: ReplayOptions,
        bounds: bool,
    ) -> None:
        if state.running or state.waiting:
            raise InputError("a replay begins on an empty cluster")
        if not requests:
            raise InputError("there are no requests to replay")
        if any(later.time < request.time for request, later in itertools.pairwise(requests)):
            raise InputError("the requests are not in the order of their times")
        if len({request.name for request in requests}) < len(requests):
            raise InputError("two requests have one name; each needs a name of its own")
        for request in requests:
            state.service(request.service)
        for fault in faults:
            state.parts(fault.part)
        self.state, self.requests, self.faults = state, requests, faults
        self.policy, self.options, self.settings = policy, get(policy).read_options(options), settings
        self.bound = TimeBound(state.search, list(state.services.values())) if bounds else None
        self.admission = Admission(settings.admission)
        self.random = np.random.default_rng([settings.seed, 2])
        self.queue: list[tuple[float, int, int, Any]] = []
        self.numbers = itertools.count()
        self.until = requests[-1].time
        self.alive: dict[str, ServiceRequest] = {}
        self.accepted: set[str] = set()
        self.down: dict[str, float] = {}
        self.serves: dict[str, float] = {}
        self.decisions: list[float] = []
        self.windows: list[Window] = []
        self.total: Counter[str] = Counter()
        self.in_window: Counter[str] = Counter()
        self.unavailable = self.unavailable_in_window = self.loading = 0.0
        self.moving: dict[str, float] = {}
        self.works = len(state.cluster.gpus)
        self.held_time = self.working_time = self.last = self.window_start = 0.0
        self.held_sum = self.working_sum = 0.0

    def run(self, progress: Progress | None) -> Replayed:
        """Handle the events in order. An interrupt ends the run and keeps the results so far."""
        step = self.until / self.settings.windows or 1.0
        for request in self.requests:
            self._at(request.time, "arrive", request)
        for fault in self.faults:
            if fault.time <= self.until:
                self._at(fault.time, fault.event, fault.part)
        for n in range(self.settings.windows):
            self._at(self.until if n + 1 == self.settings.windows else (n + 1) * step, "window", None)
        if self.settings.defragment_every:
            for n in range(1, int(self.until / self.settings.defragment_every) + 1):
                self._at(n * self.settings.defragment_every, "defragment", None)
        interrupted, handled = False, 0
        try:
            while self.queue and self.queue[0][0] <= self.until:
                time, order, _, what = heapq.heappop(self.queue)
                self._advance(time)
                getattr(self, f"_{_ORDER[order]}")(time, what)
                if progress and order == _ORDER.index("arrive"):
                    handled += 1
                    progress(f"{self.policy}: {len(self.accepted)} accepted", handled, len(self.requests))
        except KeyboardInterrupt:
            interrupted = True
        return self._result(interrupted)

    def _at(self, time: float, event: str, what: Any) -> None:
        heapq.heappush(self.queue, (time, _ORDER.index(event), next(self.numbers), what))

    def _advance(self, time: float) -> None:
        """Add up the GPUs that were held since the last event."""
        passed, self.last = time - self.last, time
        if passed:
            self.held_time += passed * (self.works - int(self.state.gpus.sum()))
            self.working_time += passed * self.works

    def _arrive(self, time: float, request: ServiceRequest) -> None:
        end = time + request.lifetime if request.lifetime else float("inf")
        self.alive[request.name] = request
        if end <= self.until:
            self._at(end, "end", request.name)
        self.in_window["requests"] += 1
        placement = None
        begin = clock.process_time()
        if self.admission.refusal(self.state, self.state.service(request.service)):
            self.state.asked[request.service] += 1
            self.total["refused"] += 1
        else:
            placement = try_place(self.state, request, self.policy, self.options)
        self.decisions.append(clock.process_time() - begin)
        self.admission.count(request.service, placement is not None)
        if placement is not None:
            self.accepted.add(request.name)
            self.in_window["accepted"] += 1
            seconds = self._load_seconds(placement)
            self.loading += min(seconds, end - time)
            self.serves[request.name] = time + seconds

    def _end(self, time: float, name: str) -> None:
        del self.alive[name]
        if name not in self.serves:
            return
        self._serve_again(name, time)
        self.down.pop(name, None)
        self.moving.pop(name, None)
        del self.serves[name]
        self.state.release(name)
        if name + LEAVING in self.state.running:
            self.state.release(name + LEAVING)
        self._recover(time)

    def _left(self, time: float, moved: tuple[str, float]) -> None:
        """End the old placement of a service whose new one has loaded, unless one of them has ended since."""
        name, ready = moved
        if self.moving.get(name) == ready:
            del self.moving[name]
            self.state.release(name + LEAVING)
            self._recover(time)

    def _fail(self, time: float, part: str) -> None:
        before = self.state.failed_parts
        affected = self.state.fail(part)
        gone = self.state.failed_parts - before
        self.in_window["failures"] += bool(gone)
        self.works -= len(gone & self.state.cluster.gpu_id.keys())
        for placement in affected:
            if placement.request.endswith(LEAVING):
                del self.state.waiting[placement.request]
        for placement in affected:
            name = placement.request
            if name.endswith(LEAVING):
                self._interrupt_if_loading(time, name.removesuffix(LEAVING))
            elif name + LEAVING in self.state.running:  # the old place still serves
                old = self.state.running[name + LEAVING]
                self.state.release(name + LEAVING)
                del self.state.waiting[name], self.moving[name]
                self.state.hold(msgspec.structs.replace(old, request=name))
            else:
                self._interrupt(time, name, float("inf"))
        self._recover(time)

    def _interrupt_if_loading(self, time: float, name: str) -> None:
        """Interrupt a moving service whose old place has failed: it does not serve before the new one has loaded."""
        ready = self.moving.pop(name, None)
        if ready is not None and ready > time and name in self.state.running:
            self._interrupt(time, name, ready)

    def _interrupt(self, time: float, name: str, until: float) -> None:
        self._serve_again(name, time)
        self.down.setdefault(name, time)
        self.serves[name] = until
        self.in_window["interrupted"] += 1

    def _serve_again(self, name: str, time: float) -> None:
        """Count the seconds of an interruption that ends before a time, or goes on until then."""
        if name in self.down:
            begin, end = self.down[name], min(self.serves[name], time)
            self.unavailable_in_window += end - begin
            if self.serves[name] <= time:
                del self.down[name]
            else:
                self.down[name] = time

    def _repair(self, time: float, part: str) -> None:
        before = self.state.failed_parts
        self.state.repair(part)
        self.works += len((before - self.state.failed_parts) & self.state.cluster.gpu_id.keys())
        self._recover(time)

    def _recover(self, time: float) -> None:
        if self.state.waiting:
            for placement in recover(self.state, self.policy, self.options).replaced:
                self.serves[placement.request] = time + self._load_seconds(placement)

    def _defragment(self, time: float, _: None) -> None:
        for _move in range(self.settings.moves):
            moving = {*self.moving, *(name + LEAVING for name in self.moving)}
            moved = defragment(self.state, 1, fixed=moving)
            if not moved:
                break
            (move,) = moved
            name = move.after.request
            self.state.hold(msgspec.structs.replace(move.before, request=name + LEAVING))
            ready = time + self._load_seconds(move.after)
            self.moving[name] = ready
            self._at(ready, "left", (name, ready))
            self.in_window["moves"] += 1
            self.total["bytes"] += move.bytes

    def _load_seconds(self, placement: ServicePlacement) -> float:
        if self.settings.load_times:
            return float(self.random.choice(self.settings.load_times))
        service = self.state.service(placement.service)
        memory = {operator.name: operator.memory for operator in service.operators}
        most = max(sum(memory[name] for name in stage.operators) for stage in placement.stages)
        return most / self.settings.load_bandwidth

    def _window(self, time: float, _: None) -> None:
        for name in list(self.down):
            self._serve_again(name, time)
        state = self.state
        bound: float | None = None
        if self.bound:
            alive = Counter(request.service for request in self.alive.values())
            kinds = [gpu.kind for gpu in state.cluster.gpus if not self.faults or gpu.name not in state.failed_parts]
            works = np.bincount(kinds, minlength=len(state.cluster.kinds))
            fibres = [0 if link.name in state.failed_parts else link.fibres for link in state.cluster.links]
            bound = self.bound.running(alive, works, np.array(fibres, dtype=np.int64))
        counted = self.in_window
        self.windows.append(
            Window(
                start=self.window_start,
                end=time,
                requests=counted["requests"],
                accepted=counted["accepted"],
                used=self.held_time / self.working_time if self.working_time else 0.0,
                running=sum(not name.endswith(LEAVING) for name in state.running),
                bound=bound,
                fragmentation=self._fragmentation(),
                moves=counted["moves"],
                failures=counted["failures"],
                interrupted=counted["interrupted"],
                unavailable=self.unavailable_in_window,
            )
        )
        self.total += counted
        self.unavailable += self.unavailable_in_window
        self.held_sum += self.held_time
        self.working_sum += self.working_time
        self.held_time = self.working_time = self.unavailable_in_window = 0.0
        self.in_window, self.window_start = Counter(), time

    def _fragmentation(self) -> float:
        state = self.state
        free = int(state.gpus.sum())
        asked = {name: count for name, count in state.asked.items() if count}
        if not free or not asked:
            return 0.0
        lost = 0.0
        for name, count in asked.items():
            mixes = state.search.mixes(state.service(name)).gpus
            shares = best_future_use(state, {name: 1.0}).shares[name] if len(mixes) else np.zeros(0)
            lost += count * (1 - min(1.0, float(shares @ mixes.sum(axis=1)) / free))
        return lost / sum(asked.values())

    def _result(self, interrupted: bool) -> Replayed:
        if interrupted or self.in_window:
            self._window(self.last, None)
        accepted_bound = None
        if self.bound and not self.faults and not interrupted:
            accepted_bound = self.bound.accepted(self.requests, [window.end for window in self.windows])
        compared = [w.running / w.bound for w in self.windows if w.bound]
        times = np.array(self.decisions or [0.0]) * 1e3
        asked = self.admission.asked
        return Replayed(
            policy=self.policy,
            seed=self.settings.seed,
            interrupted=interrupted,
            requests=asked.total(),
            accepted=len(self.accepted),
            accepted_bound=accepted_bound,
            used=self.held_sum / self.working_sum if self.working_sum else 0.0,
            fragmentation=float(np.mean([window.fragmentation for window in self.windows])),
            running_to_bound=float(np.mean(compared)) if compared else None,
            moves=self.total["moves"],
            failures=self.total["failures"],
            interruptions=self.total["interrupted"],
            refused=self.total["refused"],
            moved_bytes=self.total["bytes"],
            unavailable=self.unavailable,
            loading=self.loading,
            services={
                name: ClassFigures(requests=asked[name], accepted=self.admission.accepted[name])
                for name in sorted(asked)
            },
            decision_ms={
                "mean": float(times.mean()),
                "median": float(np.median(times)),
                "99th percentile": float(np.quantile(times, 0.99)),
                "most": float(times.max()),
            },
            windows=self.windows,
        )
