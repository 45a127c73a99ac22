"""Cases of `test_placements.py` that other tests use, too."""

import math
from random import Random

from tvm_sched.schedulers.efficient_mip import Instance
from tvm_sched_bench.kinds.placement_kind import PlacementKind

KIND = PlacementKind()


def small(seed):
    random = Random(seed)
    count, devices, q = random.randint(1, 4), random.randint(1, 2), random.randint(1, 2)
    edges = [(u, v) for v in range(count) for u in range(v) if random.random() < 0.5]
    times = [[random.choice([3.0, 7.5, 11.1, math.inf]) for _ in range(devices)] for _ in range(count)]
    return Instance(
        times, [random.choice([20.0, 40.0, math.inf]) for _ in range(count)],
        [random.choice([1.0, 2.0]) for _ in range(count)], [random.choice([0.0, 2.5, 9.0]) for _ in range(count)],
        edges, [random.choice([1.0, 3.0, 5.0]) for _ in range(devices)], q,
        random.choice([[], [0] * count, [*range(count)]]),
    )  # fmt: skip
