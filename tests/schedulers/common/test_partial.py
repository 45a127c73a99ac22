"""The partial schedule in C++ against one in plain Python that shares no code with it."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thorough import examples
from tvm_sched.schedulers import Move, PartialSchedule, Run
from tvm_sched_bench.testing import random_problem
from tvm_sched_runtime.problem import FORBIDDEN, HOST

from .. import reference_partial as reference


def choices(problem, operator):
    costs = ((False, problem.costs.operator_ns), (True, problem.costs.direct_ns))
    devices = range(len(problem.topology.devices))
    return [(d, direct) for d in devices for direct, ns in costs if ns[operator, d] != FORBIDDEN]


def same(problem, state, expected):
    assert state.latency == expected.latency
    assert state.device_free == expected.device_free
    assert state.channel_free == expected.channel_free
    assert state.placed == expected.placed
    assert state.events == expected.events
    assert state.ends == expected.ends
    assert state.starts == expected.starts()
    assert state.fits() == expected.fits()
    for t in range(len(problem.graph.tensors)):
        assert tuple(state.holders(t)) == expected.holders.get(t, ())
        for d in range(len(problem.topology.devices)):
            assert state.at(t, d) == expected.at.get((t, d))


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 10_000),
    operators=st.integers(1, 16),
    devices=st.integers(1, 5),
    memory=st.sampled_from(["tight", "generous"]),
    scale=st.sampled_from([0.6, 1.0, 1e6]),
)
def test_it_grows_as_the_reference_does(seed, operators, devices, memory, scale):
    problem, random = random_problem(seed, operators, devices, memory=memory), Random(seed)
    state, expected = PartialSchedule(problem, scale), reference.PartialSchedule(problem, scale)
    for o in problem.graph.index.order:
        ways = []
        for d, direct in choices(problem, o):
            way, wanted = state.extension(o, d, direct), expected.extension(o, d, direct)
            assert (way is None) == (wanted is None)
            assert state.needs(o, d, direct) == expected.needs(o, d, direct)
            if way is not None:
                assert (way.end, way.moves, way.run) == (wanted.end, wanted.moves, wanted.run)
                ways.append((way, wanted))
        if not ways:
            break
        chosen, wanted = random.choice(ways)
        state.place(chosen)
        expected.place(wanted)
        assert state.ends[-1] == chosen.end
    same(problem, state, expected)
    if min(state.placed, default=0) >= 0:
        times = state.to_index().times
        assert times.latency_ns == state.latency


def test_events_that_cannot_be_are_refused():
    problem = random_problem(3, 6, 2, memory="generous")
    index = problem.graph.index
    state = PartialSchedule(problem)
    last = index.order[-1]
    device = next(d for d, direct in choices(problem, last) if not direct)
    with pytest.raises(ValueError, match=f"operator {last} reads tensor"):
        state.append(Run(last, device, False))
    with pytest.raises(IndexError, match="operator 99"):
        state.append(Run(99, 0, False))
    with pytest.raises(IndexError, match="device 2"):
        state.append(Move(0, HOST, 2))
    made = next(t for written in index.outputs for t in written)
    with pytest.raises(ValueError, match=f"tensor {made} is not on device 0"):
        state.append(Move(made, 0, 1))
    assert state.events == []
