"""Every scheduler on every kind of machine: what it answers obeys the rules, and no bound exceeds it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thorough import examples
from tvm_sched.schedulers import names, solve
from tvm_sched_bench.testing import random_graph, random_problem
from tvm_sched_runtime.errors import InfeasibleError
from tvm_sched_runtime.problem import FORBIDDEN, HOST, Bus, Costs, Device, Link, Problem, Topology
from tvm_sched_runtime.schedule import verify

from .quick_options import QUICK

ROOM = 2**40


@st.composite
def problems(draw):
    """Random graphs on unequal devices, from one to an odd number, with a bus each or one for all, with links or without."""
    seed, count = draw(st.integers(0, 10**6)), draw(st.sampled_from([1, 2, 3, 5]))
    graph = random_graph(seed, draw(st.integers(0, 9)))
    speeds = draw(st.lists(st.sampled_from([1.0, 1.0, 3.0, 10.0]), min_size=count, max_size=count))
    shared, linked = draw(st.booleans()), draw(st.booleans())
    devices = tuple(
        Device(f"d{d}", ROOM, 1e9, {"float32": 1e11}, bus="bus0" if shared else f"bus{d}") for d in range(count)
    )
    buses = tuple(Bus(f"bus{b}", 1e9, draw(st.sampled_from([0.0, 1e-7]))) for b in range(1 if shared else count))
    links = tuple(Link((f"d{d - 1}", f"d{d}"), 4e9) for d in range(1, count)) if linked else ()
    topology = Topology("drawn", devices, buses, links, peer_access=draw(st.booleans()))
    loaded, direct = [], []
    for o, read in enumerate(graph.index.host_inputs):
        times = [int((50 + 37 * (o * 7 % 11)) * speed) for speed in speeds]
        bytes_read = sum(graph.index.size[t] for t in read)
        reads = [topology.route(HOST, d).nanoseconds(bytes_read) for d in range(count)]
        loaded.append(times)
        direct.append([max(a, b) + 5 if read and o % 3 else FORBIDDEN for a, b in zip(times, reads, strict=True)])
    return Problem(graph, topology, Costs(loaded, direct) if loaded else Costs([]))


def check(problem, name):
    try:
        schedule = solve(problem, method=name, options=QUICK.get(name))
    except InfeasibleError:
        return False
    verify(problem, schedule)
    assert schedule.certificate.lower_bound_ns <= schedule.certificate.latency_ns
    return True


@pytest.mark.parametrize("name", names())
@settings(max_examples=examples(12), deadline=None)
@given(problem=problems())
def test_every_answer_obeys_the_rules(name, problem):
    assert check(problem, name), "all of these fit into the memory of each device"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", names())
@settings(max_examples=examples(12), deadline=None)
@given(seed=st.integers(0, 10**6), operators=st.integers(0, 9), devices=st.integers(1, 4), joined=st.booleans())
def test_with_little_memory_forbidden_operators_and_shared_memory(name, seed, operators, devices, joined):
    check(random_problem(seed, operators, devices, all_joined=joined), name)
