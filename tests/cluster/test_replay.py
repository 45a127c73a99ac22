"""Time is replayed as the rules say: worked out by hand on small clusters, and against bounds and books on random ones."""

import itertools

import msgspec
import numpy as np
import pytest
from cluster_cases import chain_service, small_cluster
from hypothesis import given, settings
from hypothesis import strategies as st
from lifecycle_cases import held

from thorough import examples
from tvm_sched_cluster import ClusterState, ServiceRequest, demand_of_services, try_place, verify
from tvm_sched_cluster.admission import AdmissionRules
from tvm_sched_cluster.bounds.time_bound import TimeBound
from tvm_sched_cluster.replay import simulation
from tvm_sched_cluster.replay.simulation import ReplayOptions, replay
from tvm_sched_cluster.replay.traces import (
    Fault,
    draw_faults,
    poisson_requests,
    read_faults,
    read_load_times,
    read_trace,
)
from tvm_sched_runtime.errors import FormatError, InputError

ONE = chain_service([40], memory=[5], cycle_ns=50, latency_ns=100, name="one")
TWO = chain_service([40, 40], memory=[5, 9], cycle_ns=50, latency_ns=200, name="two")


def requests(*rows):
    return [ServiceRequest(f"r{n}", service, time, life) for n, (service, time, life) in enumerate(rows)]


def one_rack(gpus=2):
    return ClusterState(small_cluster(racks=1, gpus=gpus), [ONE, TWO])


def same(a, b):
    plain = [msgspec.to_builtins(each) for each in (a, b)]
    for each in plain:
        del each["decision_ms"]
    return plain[0] == plain[1]


def test_requests_come_and_go():
    """Two GPUs: the third request finds none, the fourth comes as the first leaves."""
    asked = requests(("one", 0, 10), ("one", 2, 100), ("one", 5, 1), ("one", 10, 10), ("one", 20, 1))
    made = replay(one_rack(), asked, "first-fit", settings=ReplayOptions(windows=2))
    assert (made.requests, made.accepted, made.failures, made.moves) == (5, 4, 0, 0)
    assert made.accepted_bound == pytest.approx(5, abs=1e-4)  # at 10 and 20, the instants that it looks at, all fit
    first, second = made.windows
    assert first.used == pytest.approx((10 + 8) / 20)
    assert second.used == pytest.approx(1)
    assert (first.requests, first.accepted, first.running, second.running) == (4, 3, 2, 2)
    assert first.bound == pytest.approx(2, abs=1e-4)


def test_a_failure_interrupts_until_the_repair_and_the_parameters_are_loaded():
    """Both GPUs of the server are lost from 10 to 30; 5 bytes at half a byte a second take 10 s."""
    faults = [Fault(10, "fail", "r0-server0"), Fault(30, "repair", "r0-server0")]
    settings = ReplayOptions(windows=1, load_bandwidth=0.5)
    asked = requests(("one", 0, 100), ("one", 0, 25), ("one", 90, 1))
    made = replay(one_rack(), asked, "first-fit", faults=faults, settings=settings)
    assert made.interruptions == 2
    assert made.unavailable == pytest.approx((40 - 10) + (25 - 10))
    assert made.loading == 3 * 10 - 9  # the last one ends after a second
    assert made.accepted_bound is None
    again = replay(one_rack(), asked, "first-fit", faults=faults[:1], settings=settings)
    assert again.unavailable == pytest.approx((90 - 10) + (25 - 10))
    assert again.accepted == 2


def fragmented():
    """A cluster of a slow and a fast rack on which `defragment` moves the service from the fast GPU to a slow one."""
    fast_only = chain_service([90], memory=[5], cycle_ns=50, latency_ns=100, name="fast-only")
    state = ClusterState(small_cluster(racks=2, gpus=1), [ONE, fast_only])
    return state, [
        ServiceRequest("a", "one", 0, 15),
        ServiceRequest("b", "one", 1, 1000),
        ServiceRequest("c", "one", 60, 1),
    ]


def test_a_service_moves_with_both_places_held_until_the_new_one_has_loaded(monkeypatch):
    state, asked = fragmented()
    moved = ReplayOptions(windows=1, load_bandwidth=0.5, defragment_every=20, moves=1)
    made = replay(state, asked, "first-fit", settings=moved)
    assert (made.moves, made.moved_bytes, made.unavailable) == (1, 5, 0)
    # a: 15 s; b: 59 s of the fast GPU and then the slow one, and 10 s of both; 2 GPUs over 60 s
    assert made.used == pytest.approx((15 + 59 + 10) / 120)
    assert state.running["b"].gpus == ("r0-server0-gpu0",)


@pytest.mark.parametrize(
    ("part", "time", "unavailable", "place"),
    [
        ("r0", 25, 0, "r1-server0-gpu0"),  # the new place fails while it loads: the old one goes on
        ("r1", 25, 5, "r0-server0-gpu0"),  # the old place fails: until the new one has loaded at 30
        ("r1", 35, 0, "r0-server0-gpu0"),  # the old place fails when nobody needs it
        ("r0", 35, 10, "r1-server0-gpu0"),  # the new place fails: 10 s to load in the old one again
    ],
)
def test_a_move_survives_failures_of_either_place(part, time, unavailable, place):
    state, asked = fragmented()
    moved = ReplayOptions(windows=1, load_bandwidth=0.5, defragment_every=20, moves=1)
    made = replay(state, asked, "first-fit", faults=[Fault(time, "fail", part)], settings=moved)
    assert made.unavailable == pytest.approx(unavailable)
    assert state.running["b"].gpus == (place,)


@settings(max_examples=examples(30), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["one", "two"]), st.integers(0, 6), st.integers(1, 5)), min_size=1, max_size=7),
    st.integers(2, 3),
)
def test_no_choice_of_requests_beats_the_bound(rows, gpus):
    """All subsets are tried: GPUs are alike, `one` takes one of them and `two` takes two."""
    search = one_rack(gpus)
    asked = requests(*sorted(rows, key=lambda row: row[1]))
    need = {"one": 1, "two": 2}
    instants = [0.5 + t for t in range(12)]
    best = 0
    for size in range(len(asked) + 1):
        for chosen in itertools.combinations(asked, size):
            held_at = [sum(need[r.service] for r in chosen if r.time <= t < r.time + r.lifetime) for t in instants]
            best = size if max(held_at) <= gpus else best
    bound = TimeBound(search.search, [ONE, TWO]).accepted(asked, instants)
    assert bound >= best
    made = replay(one_rack(gpus), asked, "first-fit", settings=ReplayOptions(windows=3))
    assert made.accepted <= best
    assert made.accepted_bound >= made.accepted
    assert all(window.running <= window.bound for window in made.windows)


@pytest.mark.parametrize("policy", ["anytime", pytest.param("fgd", marks=pytest.mark.thorough), "best-fit"])
def test_equal_seeds_give_equal_results_and_the_books_stay_right(base_search, services, policy):
    demand = demand_of_services("same", services)

    def once():
        asked = poisson_requests(demand, 120, 240, 3600, seed=3)
        faults = draw_faults(base_search.cluster, 20_000, 500, asked[-1].time, seed=3, link_mtbf=10_000)
        assert {fault.part in base_search.cluster.link_id for fault in faults} == {True, False}
        state = ClusterState(base_search.cluster, services, base_search)
        how = ReplayOptions(windows=4, defragment_every=200, moves=2, load_times=(5.0, 90.0), seed=3)
        return state, replay(state, asked, policy, faults=faults, settings=how)

    (state, first), (_, second) = once(), once()
    assert same(first, second)
    assert first.failures > 5
    assert first.interruptions
    held(state)
    verify(base_search.cluster, services, state.allocation)
    assert all(window.running <= window.bound for window in first.windows)
    assert sum(window.accepted for window in first.windows) == first.accepted


@pytest.mark.parametrize("policy", ["best-fit", "fgd"])
def test_the_greedy_policies_keep_all_rules(base, services, policy):
    rng = np.random.default_rng(5)
    for n in range(120):
        if try_place(base, ServiceRequest(f"r{n}", services[rng.integers(6)].name), policy) and n % 3 == 0:
            base.release(f"r{n}")
    held(base)
    verify(base.cluster, services, base.allocation)


def test_best_fit_takes_the_fullest_switch_and_fgd_the_least_fragmentation():
    """`two` needs two GPUs of a switch: a lone one is a fragment for it, so that `one` goes there."""
    state = ClusterState(small_cluster(racks=3, gpus=3), [ONE, TWO])
    for name in ("r0-server0-gpu0", "r0-server0-gpu1"):
        state.fail(name)
    assert try_place(state, ServiceRequest("b", "one"), "best-fit").gpus == ("r0-server0-gpu2",)
    state.release("b")
    assert try_place(state, ServiceRequest("c", "one"), "fgd", {"demand": {"two": 1.0}}).gpus == ("r0-server0-gpu2",)


def test_quotas_and_slack_refuse():
    quota = ReplayOptions(windows=1, admission=AdmissionRules({"one": 0.5}))
    made = replay(one_rack(4), requests(*(("one", n, 100) for n in range(4))), "first-fit", settings=quota)
    assert (made.accepted, made.refused) == (2, 2)
    # a rack of 2 GPUs: `two` is accepted only while it is empty, so `one` must hold back
    rows = [("one" if n % 2 else "two", n, 7) for n in range(400)]
    free, fair = (
        replay(
            one_rack(), requests(*rows), "first-fit", settings=ReplayOptions(windows=1, admission=AdmissionRules({}, s))
        )
        for s in (None, 0.05)
    )
    spread = [
        max(parts) - min(parts)
        for made in (free, fair)
        for parts in [[each.accepted / each.requests for each in made.services.values()]]
    ]
    assert spread[1] < 0.1 < spread[0]
    with pytest.raises(InputError, match="quota of 'x' is 2"):
        AdmissionRules({"x": 2})


def test_what_is_there_at_an_interrupt_is_kept():
    def stop(_, done, __):
        if done == 3:
            raise KeyboardInterrupt

    asked = requests(*(("one", n, 1) for n in range(10)))
    made = replay(one_rack(), asked, "first-fit", settings=ReplayOptions(windows=2), progress=stop)
    assert made.interrupted
    assert (made.requests, made.accepted, len(made.windows)) == (3, 3, 1)


def test_traces_are_read(tmp_path):
    def file(name, text):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    rows = file("a.csv", "time,service,lifetime,name\n5,one,10,x\n2,two,4,\n")
    assert read_trace(rows, {}, 1, 2.0, 0) == [ServiceRequest("r1", "two", 2, 8), ServiceRequest("x", "one", 5, 20)]
    azure = file("b.csv", "TIMESTAMP,ContextTokens\n2023-11-16 18:17:03.9799600,1\n2023-11-16 18:17:05.9799600,2\n")
    made = read_trace(azure, {"one": 1.0}, 100, 1.0, 0)
    assert [(r.service, r.time) for r in made] == [("one", 0.0), ("one", 2.0)]
    assert all(r.lifetime > 0 for r in made)
    assert read_trace(file("c.txt", "3,allocate,1,10\n"), {}, 1, 20.0, 0)[0].lifetime == 200
    assert read_load_times(file("d.csv", "timestamp_anon,value\n1,2639.0\n")) == (2.639,)
    assert read_faults(file("e.csv", "time,event,part\n7,repair,r0\n3,fail,r0\n"))[0] == Fault(3, "fail", "r0")
    for text, message in (
        ("time,event,part\n7,broken,r0\n", "line 2: the columns time, event"),
        ("time,event,part\nx,fail,r0\n", "line 2: column 'time' holds 'x'"),
    ):
        with pytest.raises(FormatError, match=message):
            read_faults(file("f.csv", text))
    with pytest.raises(InputError, match="not in the order"):
        replay(one_rack(), requests(("one", 3, 1), ("one", 2, 1)))
    with pytest.raises(InputError, match="no requests to replay"):
        replay(one_rack(), [])


def test_every_event_has_a_handler():
    assert all(hasattr(simulation._Simulation, f"_{event}") for event in simulation._ORDER)
