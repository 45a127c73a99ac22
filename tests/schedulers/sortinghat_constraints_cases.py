"""Cases of `test_sortinghat_constraints.py` that other tests use, too."""

from math import inf

from tvm_sched.schedulers.common.milp import Effort
from tvm_sched.schedulers.sortinghat.submodel import Submodel

A, B, W, U = range(4)
"""Nodes of `chain`: operators a -> b, parameters w -> a and u -> b."""


EFFORT = Effort("highs", 20.0, 0, 0)


def chain(**changes):
    """Two devices on one bus with two subgraphs each: 1 and 2, 3 and 4; the odd ones with direct host access."""
    constants = {
        "operators": 2,
        "placeholders": 0,
        "parameters": 2,
        "edges": [(A, B), (W, A), (U, B)],
        "q": 2,
        "buses": [[0, 1]],
        "memory": [100, 100],
        "size": [[10, 10], [20, 20], [30, 30], [40, 40]],
        "kernel": [[5.0, 7.0], [3.0, 4.0], [0.0, 0.0], [0.0, 0.0]],
        "direct": [[20.0, 21.0], [9.0, 11.0], [0.0, 0.0], [0.0, 0.0]],
        "load": [[0.0, 0.0], [0.0, 0.0], [8.0, 8.0], [6.0, 6.0]],
        "copy": [[[0.0, 4.0], [4.0, 0.0]]] * 4,
        "fixed": {},
        "memory_used": [0, 0],
        "transfers_end": [0.0],
        "device_end": [0.0, 0.0],
    }
    return Submodel(**{**constants, **changes})


def random_submodel(random, operators, devices, q=2):
    """Any constants: forbidden latencies, missing routes, tight memory, what is fixed from before."""
    parameters, placeholders = random.randint(0, 2), random.randint(0, 1)
    count = operators + placeholders + parameters
    edges = {(u, v) for v in range(operators) for u in range(v) if random.random() < 0.5}
    edges |= {(u, random.randrange(operators)) for u in range(operators, count)}

    def times(rows, forbidden=0.0):
        return [
            [inf if random.random() < forbidden else float(random.randint(1, 20)) for _ in range(devices)] for _ in rows
        ]

    nothing = [[0.0] * devices] * (count - operators)
    fixed = {node: random.randrange(devices) for node in range(operators, operators + placeholders)}
    fixed |= {
        node: random.randrange(devices) for node in range(operators + placeholders, count) if random.random() < 0.3
    }
    load = times(range(count))
    load[: operators + placeholders] = [[0.0] * devices] * (operators + placeholders)
    copy = [times(range(devices), 0.1) for _ in range(count)]
    for d in range(devices):
        for rows in copy:
            rows[d][d] = 0.0
    groups = [[d] for d in range(devices)] if random.random() < 0.5 else [list(range(devices))]
    return Submodel(
        operators, placeholders, parameters, sorted(edges), q, groups, [random.choice([60, 10**6])] * devices,
        [[random.randint(1, 20)] * devices for _ in range(count)], times(range(operators), 0.1) + nothing,
        times(range(operators), 0.1) + nothing, load, copy, fixed, [random.randint(0, 10)] * devices,
        [float(random.randint(0, 30)) for _ in groups], [float(random.randint(0, 30)) for _ in range(devices)],
    )  # fmt: skip
