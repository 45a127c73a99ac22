"""MeasureSchedules: choose the fastest of several schedules of a model for this machine's cores, by alternating runs."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import tvm

from tvm_sched_runtime.cores import cores
from tvm_sched_runtime.errors import InfeasibleError, InputError, TooLargeError, TvmSchedError
from tvm_sched_runtime.problem import COLD, Concurrency, Costs, Problem, Topology, cpu_topology
from tvm_sched_runtime.runtime import ScheduledModule
from tvm_sched_runtime.runtime.tensors import random_value
from tvm_sched_runtime.schedule import Schedule, evaluate

from ...blob_cache import choice_cache
from ...cost_model.calibrated_model import with_call
from ...cost_model.profile import QUIET_LOAD, this_machine
from ...progress import Progress
from ...schedulers import get, solve
from ...streams import ALLOCATORS, BEST, choose_launch_order, choose_streams
from ..emit.runnable import link_calls, make_runnable
from ..ir.attributes import PROBLEM, SCHEDULE, get_compile_target, get_problem, get_schedule, leave
from ..ir.virtual_devices import has_vdevices
from ..problem.operator_graph import extract
from .calibration import kernel_keys, kernel_times
from .other_load import OtherLoad
from .paired_runs import CLOSE, MARGIN, Comparison, compare, settle

SECONDS, LEAST_SECONDS, RUNS = 1.0, 0.25, 60
"""Default time for comparing two schedules: that of so many runs of the first, within these limits."""
OPEN = 1.25
"""A schedule is not run if its kernels' times predict that it takes this number of times as long as one stream."""
MOST_COMPARING = 10.0
"""Seconds after which no further comparison begins: each prepares a candidate, and takes longer beside other processes."""
MOST_BYTES = 2**30
"""Bytes of parameters up to which a schedule is measured beside one device, which takes two more copies of them."""
_WARM_UP, _LEAST_RUNS = 3, 2
_BLOCKS = (0, 12, 8)
"""Sizes of the blocks that IOS is tried with, until one has few enough states; 0: as the graph has them."""


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.MeasureSchedules")
class MeasureSchedules:
    """Run the schedule and others for the same cores on this machine, and keep the fastest.

    Reads ``tvm_sched.problem`` and ``tvm_sched.schedule`` of a module that is lowered for CPUs. Writes both, since the
    fastest schedule (`choose_fastest`) may be for another number of logical devices, with measured latencies.

    Parameters
    ----------
    seconds : float, optional
        As in `choose_fastest`.
    progress : callable, optional
        Called with the current task, the number of finished parts, and the number of parts.
    streams, launch_order : str, optional
        As in `choose_fastest`.

    Examples
    --------
    >>> from tvm_sched.relax.passes import MeasureSchedules
    >>> MeasureSchedules(seconds=1.0).info.name
    'tvm_sched.MeasureSchedules'
    """

    def __init__(
        self,
        seconds: float | None = None,
        progress: Any = None,
        streams: str | None = None,
        launch_order: str | None = None,
    ) -> None:
        self.seconds, self.progress = seconds, progress
        self.streams, self.launch_order = streams, launch_order

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        problem, schedule = choose_fastest(mod, self.seconds, self.progress, self.streams, self.launch_order)
        return leave(leave(mod, PROBLEM, problem), SCHEDULE, schedule)


@dataclass(frozen=True)
class Candidate:
    """A schedule for this machine's cores."""

    name: str
    problem: Problem
    schedule: Schedule
    spares_cores: bool = False  # it leaves cores idle, so other processes slow it down less


def choose_fastest(
    mod: tvm.IRModule,
    seconds: float | None = None,
    progress: Progress | None = None,
    streams: str | None = None,
    launch_order: str | None = None,
) -> tuple[Problem, Schedule]:
    """Measure the schedule of a lowered module and others for the same cores on this machine; return the fastest.

    First all kernels are measured in the run, on one thread and on all. These times give the candidates:

    - one stream: operators one after another, each on all cores;
    - one of N devices: the same with one core;
    - in parallel: stages of one device by `ios`, which gives each stream of a stage threads of its own;
    - logical devices: `heft` over as many devices as there are cores;
    - with ``streams="best"``, the streams of each allocator on one device (`tvm_sched.streams.allocate_streams`);
    - the module's own schedule, if it has several devices or stages.

    Candidates on single cores are left out if these times predict that they are far slower than one stream (`OPEN`). The
    first candidate is the incumbent. A challenger replaces it if it is faster when the two run alternately
    (`compare`). Candidates close to the fastest are compared with it once more, both in new copies, since two copies of
    one artifact may differ by more than `MARGIN` for seconds. Both comparisons count alike (`settle`). So the answer is
    slower than one stream with all cores by no more than the machine's noise, and slower than the best candidate by no
    more than noise and `MARGIN`. While other processes disturb the machine, only a far faster candidate replaces one
    stream, and one core never replaces all. No comparison begins after `MOST_COMPARING` seconds, except the first.

    A choice on a quiet machine is cached on disk, by the graph and the content of its kernels.

    Parameters
    ----------
    mod : tvm.IRModule
        With problem and schedule in its attributes; its topology is of CPUs.
    seconds : float, optional
        Time of one comparison of two schedules. Default: `SECONDS`, and less for a fast model.
    streams, launch_order : str, optional
        As in `tvm_sched.streams.choose_streams` and `choose_launch_order`. If a method of streams is named, nothing is
        compared: its streams are taken, with the launch order, on one device with all cores.

    Returns
    -------
    problem, schedule
        The schedule's notes hold under ``"measured"`` the times in seconds and the name of the choice.

    Raises
    ------
    InputError
        The topology has devices that are not CPUs.
    """
    problem, schedule = get_problem(mod), get_schedule(mod)
    others = [device.name for device in problem.topology.devices if device.kind != "cpu"]
    if others:
        raise InputError(
            f"device {others[0]!r} of topology {problem.topology.name!r} is not a CPU; schedules are measured on this "
            "machine's cores: compile for cpu or cpuN, or do not set measure"
        )
    given = has_vdevices(mod)
    if schedule.joined or given:  # candidates join no parameters, and choose all devices
        why = "the module places operators itself (VDevice)" if given else "it joins parameters"
        what = f"the schedule of {problem.graph.name!r} is taken as it is: {why}, so it is not measured"
        warnings.warn(what, RuntimeWarning, stacklevel=2)
        return problem, schedule
    key = _key(mod, problem, schedule, (seconds, streams, launch_order))
    cache = choice_cache(get_compile_target(mod).cache)
    known = cache.find([key]).get(key)
    if known is not None:
        return _restore(known, problem)
    load = OtherLoad()
    choice = MeasuredChoice(mod, problem.topology, seconds, progress or (lambda *_: None))
    chosen = choice.run(problem, schedule, streams, launch_order)
    if load.share() <= QUIET_LOAD:
        cache.keep({key: msgspec.json.encode([each.to_json().decode() for each in chosen])})
    return chosen


def compare_with_one_device(mod: tvm.IRModule, progress: Progress | None = None) -> Comparison | None:
    """Run the schedule of a lowered module in turns with the fastest one that uses a single device of its topology.

    Logical devices share caches and memory bandwidth, so a schedule over several may take longer than predicted. Takes
    about `SECONDS` of runs, up to three times as long if it is disturbed, and at least eight runs.

    Returns
    -------
    Comparison or None
        Its ``first`` is the schedule on one device. None if there is nothing to compare here: the schedule uses one device
        only, devices are not CPUs or more than this machine's cores, it was measured already, or the model does not fit
        one device, is predicted to run for more than `SECONDS`, or has parameters of more than `MOST_BYTES`.
    """
    problem, schedule = get_problem(mod), get_schedule(mod)
    devices = problem.topology.devices
    if (
        any(device.kind != "cpu" for device in devices)
        or len(devices) > cores(get_compile_target(mod).threads)
        or len({placement.device for placement in schedule.placements}) < 2
        or "measured" in schedule.notes
        or sum(tensor.size for tensor in problem.graph.tensors if tensor.kind == "parameter") > MOST_BYTES
    ):
        return None
    single = get("single")
    try:
        one = single.function(problem, COLD, single.read_options(None)).replace(scheduler=single.name)
    except InfeasibleError:
        return None
    seconds = evaluate(problem, one)[0] / 1e9
    if seconds > SECONDS:
        return None
    choice = MeasuredChoice(mod, problem.topology)
    if progress:
        progress("measuring the schedule beside one device", 0, 0)
    try:
        first, second = (Runner(choice.module(Candidate(each.scheduler, problem, each))) for each in (one, schedule))
        return compare(first, second, choice.turns(seconds))
    except TvmSchedError as error:  # the artifact is what counts
        warnings.warn(f"the schedule was not measured beside one device: {error}", RuntimeWarning, stacklevel=2)
        return None


def _restore(known: bytes, problem: Problem) -> tuple[Problem, Schedule]:
    """Return a cached choice, for the same graph under its present name."""
    old_problem, old_schedule = msgspec.json.decode(known, type=tuple[str, str])
    stored = Problem.from_json(old_problem)
    now = Problem(problem.graph, stored.topology, stored.costs, joinable=problem.joinable)
    return now, msgspec.structs.replace(Schedule.from_json(old_schedule), problem=now.digest)


def _key(mod: tvm.IRModule, problem: Problem, schedule: Schedule, asked: tuple[Any, ...]) -> str:
    """Digest the inputs of the choice: graph, kernels, the module's schedule, options, cores and processor."""
    graph = msgspec.structs.replace(problem.graph, name="")
    documents = (graph, problem.topology, schedule.placements, schedule.transfers)
    keys = kernel_keys(mod, extract(mod))
    count = cores(get_compile_target(mod).threads)
    content = (*map(msgspec.json.encode, documents), keys, count, *asked, this_machine().processor)
    return hashlib.sha256("\n".join(map(str, content)).encode()).hexdigest()


class MeasuredChoice:
    """The work of `choose_fastest`, for a module that is lowered for CPUs.

    Attributes
    ----------
    tried : list of Candidate
        The candidates that `run` compared.
    """

    def __init__(
        self, mod: tvm.IRModule, topology: Topology, seconds: float | None = None, progress: Progress = lambda *_: None
    ) -> None:
        self.mod, self.seconds, self.progress = mod, seconds, progress
        self.cores = cores(get_compile_target(mod).threads)
        self.calls = extract(mod)
        self.kernels = link_calls(mod, self.calls, topology)
        self.rows: list[dict[str, Any]] = []
        self.tried: list[Candidate] = []

    def run(
        self, problem: Problem, own: Schedule, streams: str | None = None, launch_order: str | None = None
    ) -> tuple[Problem, Schedule]:
        """Return the result of `choose_fastest` without the cache on disk."""
        best = first = self._one_stream(problem)
        candidates: list[Candidate] = []
        if streams not in (None, BEST):
            best = _with_streams(first, str(streams), launch_order)
        else:
            candidates += self._candidates(first, problem, own)
            candidates += _allocated(first, launch_order) if streams == BEST and self.cores > 1 else []
        self.tried = [first, *candidates]
        incumbent = Runner(self.module(best)) if candidates else None
        ratios = {first.name: 1.0}  # time of each candidate / time of the first
        end = time.monotonic() + MOST_COMPARING
        for position, candidate in enumerate(candidates):
            if position and time.monotonic() > end:
                break
            self.progress(f"measuring {candidate.name}", position, len(candidates))
            assert incumbent is not None
            challenger = Runner(self.module(candidate))
            comparison = compare(incumbent, challenger, self.turns(_total(first)))
            if not self.rows:
                self.rows.append({"schedule": first.name, "seconds": comparison.first})
            self._add_row(candidate, comparison, best.name)
            if comparison.quiet:
                ratios[candidate.name] = ratios.get(best.name, 1.0) * comparison.second / comparison.first
            if comparison.faster and (comparison.quiet or not candidate.spares_cores):
                best, incumbent = candidate, challenger
        incumbent = None  # frees its parameters
        best = self._compare_again(
            best, {name: ratio / ratios.get(best.name, np.inf) for name, ratio in ratios.items()}, end
        )
        notes = {"chosen": best.name, "cores": self.cores, "margin": MARGIN, "measured": self.rows}
        schedule = best.schedule.replace(notes={**best.schedule.notes, "measured": notes})
        return best.problem, schedule

    def _add_row(self, candidate: Candidate, comparison: Comparison, beside: str) -> None:
        times = {"seconds": comparison.second, "beside": beside, "its_seconds": comparison.first}
        self.rows.append({"schedule": candidate.name, **times, "quiet": comparison.quiet})

    def turns(self, latency: float) -> float:
        """Return the time for comparing two schedules, in seconds; ``latency`` is that of the first."""
        if self.seconds is not None:
            return self.seconds
        return min(max(RUNS * latency, LEAST_SECONDS), SECONDS)

    def _compare_again(self, best: Candidate, ratios: dict[str, float], end: float) -> Candidate:
        """Compare the close candidates a second time and return the fastest.

        ``ratios``: times over that of the best; ``end``: when no more is measured.
        """
        close = [each for each in self.tried if each.name != best.name and 0 < ratios.get(each.name, np.inf) <= CLOSE]
        if _total(self.tried[0]) > SECONDS / 2 or time.monotonic() > end:
            close = []  # caches and noise matter little in long runs, and it would take many seconds
        again: dict[str, tuple[float, float]] = {}
        incumbent = Runner(self.module(best)) if close else None
        for position, candidate in enumerate(close):
            if time.monotonic() > end:
                break
            self.progress(f"measuring {candidate.name} again", position, len(close))
            assert incumbent is not None
            comparison = compare(incumbent, Runner(self.module(candidate)), self.turns(_total(self.tried[0])))
            self._add_row(candidate, comparison, f"{best.name}, again")
            if comparison.quiet:
                again[candidate.name] = (ratios[candidate.name], comparison.second / comparison.first)
        chosen = settle(best.name, self.tried[0].name, again)
        return next(each for each in self.tried if each.name == chosen) if again else best

    def _one_stream(self, problem: Problem) -> Candidate:
        """Return the candidate with one stream, after measuring its kernels on one thread and on all."""
        count, topology = self.cores, cpu_topology(1)
        planned = Problem(problem.graph, topology, Costs(problem.costs.operator_ns.min(axis=1, keepdims=True)))
        schedule = solve(planned, method="single")
        self.progress("measuring kernels on all cores", 0, 2)
        whole, call = self.times_of_kernels(planned, schedule, (1, 1))
        self.progress("measuring kernels on one core", 1, 2)
        one = whole if count == 1 else self.times_of_kernels(planned, schedule, (1, count))[0]
        share = np.clip(one / (count * whole), 1 / count, 1).reshape(-1, 1, 1)
        together = Concurrency(share, threads=(count,))
        self.one_thread = np.ceil(one).astype(np.int64)
        costs = Costs(np.ceil(whole).astype(np.int64).reshape(-1, 1), source="measured", concurrency=together)
        costs = with_call(costs, problem.graph, round(call))
        measured = Problem(problem.graph, topology, costs)
        return Candidate("one stream", measured, solve(measured, method="single"))

    def times_of_kernels(
        self, problem: Problem, schedule: Schedule, share: tuple[int, int]
    ) -> tuple[np.ndarray, float]:
        """Return the median nanoseconds of each operator, and of a call without its kernels, in undisturbed runs."""
        shares = {call.function: share for call in self.calls.calls}
        module = make_runnable(self.mod, self.calls, problem, schedule, self.kernels, shares)
        seconds = (SECONDS if self.seconds is None else self.seconds) / 2
        runs = kernel_times(module, [operator.name for operator in problem.graph.operators], seconds)
        runs = runs.undisturbed(np.zeros(len(runs.calls)))
        return np.maximum(runs.medians() * 1e9, 1.0), float(np.median(runs.calls)) * 1e9

    def _candidates(self, first: Candidate, problem: Problem, own: Schedule) -> Iterator[Candidate]:
        if self.cores > 1:
            yield from self._parallel_streams(first)
            yield from self._logical_devices(first)
        if len(problem.topology.devices) > 1 or any(placement.stage for placement in own.placements):
            yield Candidate(f"{own.scheduler} on {problem.topology.name}", problem, own)

    def _parallel_streams(self, first: Candidate) -> Iterator[Candidate]:
        for block in _BLOCKS:
            try:
                schedule = solve(
                    first.problem,
                    method="ios",
                    options={"block": block, "groups": max(4, self.cores), "states": 20_000},
                )
            except (InfeasibleError, TooLargeError):
                continue
            if any(placement.stage for placement in schedule.placements):
                yield Candidate("in parallel", first.problem, schedule)
            return

    def _logical_devices(self, first: Candidate) -> Iterator[Candidate]:
        topology = cpu_topology(self.cores)
        costs = Costs(np.repeat(self.one_thread.reshape(-1, 1), self.cores, axis=1), source="measured")
        problem = Problem(first.problem.graph, topology, costs)
        for name, scheduler in (("one of N devices", "single"), ("logical devices", "heft")):
            try:
                schedule = solve(problem, method=scheduler)
            except TvmSchedError:  # a share of the memory may be too little
                continue
            certificate = schedule.certificate
            if certificate is None or certificate.latency_ns / 1e9 <= OPEN * _total(first):
                yield Candidate(name, problem, schedule, spares_cores=scheduler == "single")

    def module(self, candidate: Candidate) -> ScheduledModule:
        """Return a candidate's runtime module."""
        return make_runnable(self.mod, self.calls, candidate.problem, candidate.schedule, self.kernels)


def _total(first: Candidate) -> float:
    """Return the seconds of all kernels one after another."""
    return float(first.problem.costs.operator_ns.sum()) / 1e9


def _with_streams(first: Candidate, method: str, launch_order: str | None) -> Candidate:
    """Return the schedule of a method of streams: streams run at once, each operator on the free cores."""
    costs, together = first.problem.costs, first.problem.costs.concurrency
    assert together is not None
    shared = Costs(costs.operator_ns, source=costs.source, concurrency=Concurrency(together.utilisation))
    problem = Problem(first.problem.graph, first.problem.topology, shared)
    schedule = choose_streams(problem, solve(problem, method="single"), method)
    return Candidate(f"streams of {method}", problem, choose_launch_order(problem, schedule, launch_order))


def _allocated(first: Candidate, launch_order: str | None) -> Iterator[Candidate]:
    """Yield the streams of each allocator that differ from all earlier ones."""
    seen: list[list[int]] = []
    for method in ALLOCATORS:
        candidate = _with_streams(first, method, launch_order)
        streams = [placement.stream for placement in candidate.schedule.placements]
        if any(streams) and streams not in seen:
            seen.append(streams)
            yield candidate


class Runner:
    """Runs a module, always with the same arguments."""

    def __init__(self, module: ScheduledModule) -> None:
        self.module = module
        rng = np.random.default_rng(0)
        self.arguments = [random_value(rng, argument) for argument in module.plans()[0]["arguments"]]
        end = time.perf_counter() + SECONDS
        for _ in range(_WARM_UP):
            module.run(*self.arguments)
            if time.perf_counter() > end:
                break

    def __call__(self, seconds: float) -> list[float]:
        """Run for some time after a warm-up run; return the seconds of each run, or of a longer warm-up alone."""
        begin = time.perf_counter()
        self.module.run(*self.arguments)
        end = time.perf_counter() + seconds
        if end - begin > 2 * seconds > 0:
            return [end - seconds - begin]
        times: list[float] = []
        while len(times) < _LEAST_RUNS or time.perf_counter() < end:
            begin = time.perf_counter()
            self.module.run(*self.arguments)
            times.append(time.perf_counter() - begin)
        return times
