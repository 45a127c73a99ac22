"""Price a placement with the simulator of `tvm_sched_runtime.schedule`, the runtime's default split and ours alike."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tvm_sched.cost_model.uncertainty import DRAWS, draws, has_intervals
from tvm_sched_runtime.problem import HOST, Problem
from tvm_sched_runtime.schedule import Schedule
from tvm_sched_runtime.schedule.indexed import ScheduleIndex
from tvm_sched_runtime.schedule.residency import moved_parameters

from .cuts import stage_times
from .program_errors import Kind, program_errors
from .unit_chain import Chain, Placement, segments
from .unit_model import Phase


@dataclass(frozen=True)
class PricedPlacement:
    """A placement with its time and memory."""

    placement: Placement
    phase_ns: dict[str, int]
    """Simulated nanoseconds of one run of each phase, with all weights on their devices."""
    total_ns: int
    """All phases with their repeats; with several micro-batches, until all of them are done."""
    held: list[int]
    """Bytes at each place."""
    fits: bool


def price(chain: Chain, placement: Placement, micro_batches: int = 1) -> PricedPlacement:
    """Simulate each phase of a placement, warm: all parameters lie where they are used."""
    held = chain.placement_bytes(placement)
    phase_ns: dict[str, int] = {}
    total = 0
    for phase, problem in zip(chain.model.phases, chain.problems, strict=True):
        latency, peak = _simulate(chain, phase, problem, placement)
        phase_ns[phase.name] = latency
        total += phase.repeats * latency
        for p, place in enumerate(chain.machine.places):
            if place.load is None and place.device.kind != "cpu":
                held[p] = max(held[p], peak[p])
    if micro_batches > 1:
        total = max(total, micro_batches * max(stage_times(chain, placement)))
    fits = all(used <= room for used, room in zip(held, chain.room, strict=True))
    return PricedPlacement(placement, phase_ns, total, held, fits)


def kernel_intervals(chain: Chain, priced: PricedPlacement) -> dict[str, tuple[int, int]]:
    """Return the nanoseconds between which 80 % of each phase's latencies lie by the errors of its kernels' prices alone.

    Nothing if the prices have no intervals. Units run one after another, so a phase's latency errs by the sum of its
    operators' errors.
    """
    if not all(has_intervals(problem) for problem in chain.problems):
        return {}
    ends = {}
    for phase, problem in zip(chain.model.phases, chain.problems, strict=True):
        where = [(o, priced.placement[u]) for u, members in enumerate(phase.members) for o in members]
        operators, places = np.array(where).T
        sums = [drawn.costs.operator_ns[operators, places].sum() for drawn in draws(problem, DRAWS)]
        error = np.array(sums) - problem.costs.operator_ns[operators, places].sum()
        low, high = np.quantile(priced.phase_ns[phase.name] + error, (0.1, 0.9))
        ends[phase.name] = math.floor(low), math.ceil(high)
    return ends


def price_intervals(chain: Chain, priced: PricedPlacement) -> dict[str, tuple[int, int]]:
    """Return the nanoseconds between which 80 % of each phase's latencies should lie, and of the total by the name ``""``.

    The ends of `kernel_intervals` are moved by the errors that published times of such programs have beyond them
    (`program_errors`). Nothing if the prices have no intervals. All phases are taken to err in the same direction.
    """
    ends = kernel_intervals(chain, priced)
    if not ends:
        return {}
    shared = any(chain.machine.places[p].all_reduce is not None for p in priced.placement)
    totals = np.zeros(3)
    for phase in chain.model.phases:
        time, (low, high) = priced.phase_ns[phase.name], ends[phase.name]
        below, above = program_errors(Kind(phase.engine, phase.work, shared))
        ends[phase.name] = low, high = min(math.floor(low * below), time), max(math.ceil(high * above), time)
        totals += phase.repeats * np.array([low, time, high])
    low, high = priced.total_ns * totals[[0, 2]] / max(totals[1], 1)  # micro-batches err by the same share
    ends[""] = math.floor(low), math.ceil(high)
    return ends


def schedule_of(chain: Chain, phase: Phase, problem: Problem, placement: Placement) -> Schedule:
    """Return the schedule of a placement, units in order; every activation is copied once to each place that reads it."""
    index = problem.graph.index
    place = {o: placement[u] for u, members in enumerate(phase.members) for o in members}
    order = [o for members in phase.members for o in members]
    transfers: list[tuple[int, int, int, int]] = []
    there: set[tuple[int, int]] = set()
    for o in order:
        here = place[o]
        for t in index.inputs[o]:
            producer = index.producer[t]
            if (t, here) in there or (producer >= 0 and place[producer] == here):
                continue
            if producer < 0 and problem.reads_host_in_place(here):
                continue
            there.add((t, here))
            source = place[producer] if producer >= 0 else HOST
            transfers.append((ScheduleIndex.COPY if producer >= 0 else ScheduleIndex.LOAD, t, source, here))
    placed, moved = np.zeros((5, len(order)), np.int64), np.zeros((5, len(transfers)), np.int64)
    placed[0], placed[1] = order, [place[o] for o in order]
    moved[:4] = np.array(transfers, dtype=np.int64).reshape(-1, 4).T
    schedule = ScheduleIndex(problem, placed, moved)
    return schedule.to_schedule(scheduler=f"cut into {len(segments(placement))}")


def _simulate(chain: Chain, phase: Phase, problem: Problem, placement: Placement) -> tuple[int, list[int]]:
    schedule = schedule_of(chain, phase, problem, placement)
    names = frozenset(moved_parameters(problem, schedule))
    index = ScheduleIndex.of(problem, schedule)
    times = index.when_warm(names).times
    latency = times.latency_ns
    if chain.machine.in_order:
        latency = max(latency, _in_order_ns(phase, index, placement))
    return latency, [int(size) for size in times.peak_memory]


def _in_order_ns(phase: Phase, index: ScheduleIndex, placement: Placement) -> int:
    """Return the nanoseconds of operators and copies one after another."""
    problem, costs = index.problem, index.problem.costs.operator_ns
    work = sum(int(costs[o, placement[u]]) for u, members in enumerate(phase.members) for o in members)
    kind, tensor, source, target = index.transfers[:4].tolist()
    copies = zip(kind, tensor, source, target, strict=True)
    return work + sum(problem.copy_ns(t, a, b) for what, t, a, b in copies if what == ScheduleIndex.COPY)
