"""Random streams and stages: parallel operators on a device, at random."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from random import Random

import msgspec
import numpy as np

from tvm_sched_runtime.problem import FORBIDDEN, Concurrency, Problem
from tvm_sched_runtime.schedule import Placement, Schedule, violations


def random_concurrency(problem: Problem, seed: int) -> Problem:
    """Return the problem with random costs of operators that run together.

    Examples
    --------
    >>> from tvm_sched_bench.testing import random_concurrency
    >>> random_concurrency(problem, seed=1).costs.concurrency.utilisation.shape
    (3, 2, 1)
    """
    random = Random(seed)
    shape = (*problem.costs.operator_ns.shape, random.choice([1, 2]))
    used = np.array([random.uniform(0.05, 1) for _ in range(int(np.prod(shape)))]).reshape(shape)
    threads = [random.choice([0, 2, 4]) for _ in problem.topology.devices] if random.random() < 0.3 else []
    for d, count in enumerate(threads):
        if count:
            used[:, d, 0] = used[:, d, 0].clip(1 / count)
    share, contended = random.choice([0, 0.3, 1]), random.random() < 0.5
    excess = [random.uniform(0, 1) for _ in range(shape[2])] if contended else []
    crowding = [[random.uniform(0, 4) for _ in range(shape[1])] for _ in range(shape[0])] if contended else []
    factor = random.choice([0.7, 1.0, 1.3]) if contended else 1.0
    pairs = list(_random_pairs(problem, random)) if random.random() < 0.3 else []
    together = Concurrency(used, share, pairs, threads, excess=excess, crowding=crowding, factor=factor)
    return Problem(problem.graph, problem.topology, problem.costs.replace(concurrency=together, uncertainty=None))


def _random_pairs(problem: Problem, random: Random) -> Iterator[tuple[int, int, int, int]]:
    """Measured pairs of some operators that a device runs: from the longer one's time to half more than both."""
    times = problem.costs.operator_ns
    for d in range(times.shape[1]):
        able = [o for o in range(times.shape[0]) if times[o, d] != FORBIDDEN]
        for a, b in combinations(able, 2):
            if random.random() < 0.3:
                longer, both = max(1, *times[[a, b], d].tolist()), int(times[[a, b], d].sum())
                yield d, a, b, random.randint(longer, max(longer, 3 * both // 2))


def random_streams(problem: Problem, schedule: Schedule, seed: int, streams: int = 3) -> Schedule:
    """Return the schedule with a random stream for each operator; times differ, orders and devices stay.

    Examples
    --------
    >>> from tvm_sched_bench.testing import random_streams
    >>> streams = random_streams(problem, schedule, seed=1, streams=2)
    >>> {placement.stream for placement in streams.placements} <= {0, 1}
    True
    """
    random = Random(seed)
    placements = (msgspec.structs.replace(p, stream=random.randrange(streams)) for p in schedule.placements)
    return _without_certificate(schedule, tuple(placements))


def random_stages(problem: Problem, schedule: Schedule, seed: int, streams: int = 2) -> Schedule:
    """Return the schedule with neighbours in a device's launch order put into stages, if that causes no deadlock.

    A problem whose costs have no concurrency allows none.

    Examples
    --------
    >>> from tvm_sched_bench.testing import random_stages
    >>> staged = random_stages(problem, solve(problem, method="single"), seed=1)
    >>> [placement.operator for placement in staged.placements]
    ['left', 'right', 'join']
    """
    random = Random(seed)
    by_device: dict[str, list[int]] = {}
    for position, placement in enumerate(schedule.placements):
        by_device.setdefault(placement.device, []).append(position)
    number = 0
    for positions in by_device.values():
        size = random.choice([2, 3, 4])
        for first in range(0, len(positions), size):
            members = positions[first : first + size]
            direct = any(schedule.placements[k].direct_host_access for k in members)
            if direct or random.random() < 0.3:
                continue
            placements = list(schedule.placements)
            for k in members:
                placements[k] = msgspec.structs.replace(
                    placements[k], stage=number + 1, stream=random.randrange(streams)
                )
            changed = _without_certificate(schedule, tuple(placements))
            if all(broken.rule == "memory" for broken in violations(problem, changed)):
                schedule, number = changed, number + 1
    return schedule


def _without_certificate(schedule: Schedule, placements: tuple[Placement, ...]) -> Schedule:
    return schedule.replace(placements=placements, certificate=None)
