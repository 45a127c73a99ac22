"""Which kernels are measured beside which, and work in another thread."""

import os
import threading

import numpy as np
import pytest

from tvm_sched.cost_model.device_properties import properties
from tvm_sched.cost_model.features import describe
from tvm_sched.cost_model.signature import graph_of
from tvm_sched.relax.profiling import measure_interference as interference
from tvm_sched.relax.profiling.measure_interference import choose_pairs, measure_pairs, running_beside
from tvm_sched.relax.profiling.other_load import OtherLoad
from tvm_sched_runtime.problem import load_topology

DEVICE = properties(load_topology("cpu1").devices[0])
HEAVY, HEAVIER = (
    f"onednn.matmul|{2 * n**3}|a float32[{n},{n}];p float32[{n},{n}]|float32[{n},{n}]" for n in (256, 512)
)
LIGHT, LIGHTER = (f"add|{n}|a float32[{n}];a float32[{n}]|float32[{n}]" for n in (65536, 1024))


def test_the_longest_of_either_kind_come_first():
    work = describe(graph_of([LIGHTER, HEAVY, LIGHT, HEAVIER]))
    pairs = choose_pairs(work, DEVICE, np.array([1.0, 5.0, 2.0, 9.0]), 4)
    assert pairs == [(3, 3), (3, 2), (2, 2), (3, 1)], "ranks 0 of both kinds with each other, then a rank 1"
    assert len(choose_pairs(work, DEVICE, np.ones(4), 100)) == 4 * 5 // 2, "each beside each, itself included"


def test_work_beside():
    done = threading.Event()
    with running_beside(done.set):
        assert done.is_set(), "it has begun"
    before = threading.active_count()
    with pytest.raises(ValueError, match="broken"), running_beside(lambda: int("broken")):
        pass
    assert threading.active_count() == before


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system keeps no thread on a core")
def test_kernels_of_a_pair_run_on_cores_of_their_own():
    allowed, seen = sorted(os.sched_getaffinity(0)), {}

    class Kernel:
        def __init__(self, name):
            self.name = name

        def seconds(self, repeat, **options):
            where = seen.setdefault((self.name, threading.current_thread() is threading.main_thread()), set())
            where |= os.sched_getaffinity(0)
            return {"a": 1.0, "b": 2.0}[self.name]

    kernels = {name: Kernel(name) for name in "ab"}
    (pair,) = measure_pairs([("a", "b"), ("a", "missing")], kernels, kernels, 1)
    assert (pair.alone, pair.beside, pair.threads) == ((1.0, 2.0), (1.0, 2.0), 1)
    assert os.sched_getaffinity(0) == set(allowed), "given back"
    if len(allowed) > 1:
        assert not seen["a", True] & seen["b", False]
        assert not seen["b", True] & seen["a", False]


def test_an_attempt_beside_other_work_gives_no_time_at_all(monkeypatch):
    loads, state = iter([5.0, 0.0]), []

    class Load:
        def __init__(self):
            state.append(next(loads))

        def share(self):
            return state[-1]

    class Kernel:
        def seconds(self, repeat, **options):
            return 2.0 if not state or state[-1] else 1.0

    monkeypatch.setattr(interference, "OtherLoad", Load)
    kernels = {name: Kernel() for name in "ab"}
    (pair,) = measure_pairs([("a", "b")], kernels, kernels, 1)
    assert (pair.load, pair.alone, pair.beside) == (0.0, (1.0, 1.0), (1.0, 1.0))


def test_own_work_is_not_others_load():
    load = OtherLoad()
    load.share()
    sum(n * n for n in range(300_000))
    assert 0 <= load.share() < 64
