"""Allocators: exact against brute force, seeds, what is said when nothing fits."""

from dataclasses import replace
from itertools import combinations, product

import msgspec
import numpy as np
import pytest
from cluster_cases import chain_service, small_cluster
from hypothesis import given, settings
from hypothesis import strategies as st

from thorough import examples
from tvm_sched_cluster import (
    Circuit,
    ClusterState,
    Server,
    ServicePlacement,
    ServiceRequest,
    ServiceStage,
    demand_of_services,
    load_cluster,
    names,
    place,
    requests_of,
    try_place,
    verify,
)
from tvm_sched_cluster.allocators.allocator_registry import ALLOCATORS, get, register
from tvm_sched_cluster.allocators.ant_colony import PROGRAM, TEXT
from tvm_sched_cluster.bounds.mix_bound import MixProgram, bound_of_demand, bound_of_requests
from tvm_sched_cluster.problem.placement_pricing import price
from tvm_sched_cluster.problem.placement_rules import placement_violations
from tvm_sched_cluster.search.cluster_search import ClusterSearch
from tvm_sched_runtime.errors import InfeasibleError, InputError

CHAINS = st.integers(2, 5).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(1, 60), min_size=n, max_size=n),
        st.lists(st.integers(0, 6), min_size=n, max_size=n),
        st.lists(st.integers(0, 30), min_size=n, max_size=n),
        st.integers(10, 120),
        st.integers(20, 400),
    )
)


def serves(cluster, service, gpus):
    """Whether some cut over these GPUs, all in one rack or in neighbouring ones, keeps every rule."""
    places = range(1, len(service.operators))
    for cut in combinations(places, len(gpus) - 1):
        ends = [0, *cut, len(service.operators)]
        stages = tuple(
            ServiceStage(gpu, tuple(o.name for o in service.operators[a:b]))
            for gpu, a, b in zip(gpus, ends, ends[1:], strict=False)
        )
        ways = tuple(Circuit(s, s + 1) for s in range(len(gpus) - 1))
        placement = ServicePlacement("r", service.name, service.digest, stages, ways, 0, 0)
        priced = price(cluster, service, placement)
        said = ServicePlacement("r", service.name, service.digest, stages, ways, priced.cycle_ns, priced.latency_ns)
        if not list(placement_violations(cluster, service, said)):
            return True
    return False


def one_rack():
    """Both kinds at one switch, three GPUs each, so that every circuit is the fastest one."""
    cluster = small_cluster(racks=1, gpus=3)
    rack = cluster.racks[0]
    servers = (Server("a", "slow", 3), Server("b", "fast", 3))
    return msgspec.structs.replace(cluster, racks=(msgspec.structs.replace(rack, servers=servers),))


@settings(max_examples=examples(60), deadline=None)
@given(CHAINS)
def test_mixes_are_exactly_the_smallest_that_serve(chain):
    times, memory, outputs, cycle, latency = chain
    cluster = one_rack()
    service = chain_service(times, memory, outputs, cycle, latency)
    found = {tuple(mix) for mix in ClusterSearch(cluster).mixes(service).gpus.tolist()}
    by_kind = {0: ["a-gpu0", "a-gpu1", "a-gpu2"], 1: ["b-gpu0", "b-gpu1", "b-gpu2"]}
    able = set()
    for count in range(1, min(len(times), 6) + 1):
        for kinds in product((0, 1), repeat=count):
            mix = (kinds.count(0), kinds.count(1))
            if max(mix) <= 3:
                pick = {0: iter(by_kind[0]), 1: iter(by_kind[1])}
                if serves(cluster, service, [next(pick[k]) for k in kinds]):
                    able.add(mix)
    smallest = {a for a in able if not any(b != a and b[0] <= a[0] and b[1] <= a[1] for b in able)}
    assert found == smallest


@pytest.mark.parametrize("name", ["rampa", "ncar", "pipeedge", "first-fit", "anytime"])
def test_placements_keep_all_rules_and_seeds_repeat(base_search, services, name):
    requests = requests_of(demand_of_services("same", services), 25, seed=3)
    runs = []
    for _ in range(2):
        state = ClusterState(base_search.cluster, services, base_search)
        for request in requests:
            place(state, request, name)
        verify(state.cluster, services, state.allocation)
        runs.append([(p.stages, p.circuits) for p in state.running.values()])
    assert runs[0] == runs[1]
    assert {"rampa", "ncar", "pipeedge", "first-fit", "anytime"} <= set(names())


def test_pipeedge_takes_the_fastest_mix_of_its_stages(base, services):
    placement = place(base, ServiceRequest("r", "service4"), "pipeedge", {"stages": {"service4": 2}})
    kinds = [base.cluster.kinds[base.cluster.gpus[base.cluster.gpu_id[g]].kind].name for g in placement.gpus]
    assert kinds == ["L4", "L4"]
    pairs = base.search.mixes(services[3], stages=2)
    assert placement.cycle_ns == pairs.cycle_ns.min()


@pytest.mark.parametrize("option", [*TEXT, *PROGRAM, "all"])
def test_options_of_the_text_and_of_the_authors_program_keep_all_rules(base_search, services, option):
    options = dict.fromkeys(PROGRAM, True) if option == "all" else {option: True}
    state = ClusterState(base_search.cluster, services, base_search)
    for request in requests_of(demand_of_services("same", services), 6, seed=3):
        place(state, request, "rampa", {**options, "agents": 4, "generations": 4})
    verify(state.cluster, services, state.allocation)


def test_pipeedge_by_ants_finds_the_least_cycle_too(base, services):
    """Of two L4 in one rack no transfer is slower than the stages, so the ants find the exact least cycle."""
    placement = place(
        base, ServiceRequest("r", "service4"), "pipeedge", {"stages": {"service4": 2}, "ants": True, "seed": 1}
    )
    assert placement.cycle_ns == base.search.mixes(services[3], stages=2).cycle_ns.min()


@pytest.mark.parametrize("name", ["ncar", "pipeedge"])
def test_fixed_numbers_of_stages_are_kept(base, name):
    placement = place(base, ServiceRequest("r", "service2"), name, {"stages": {"service2": 4}})
    assert len(placement.stages) == 4


def test_rampa_avoids_costly_gpus(base):
    """One stage on a V100 costs 14 x 32 x 40; the other GPU that serves it alone, L4, costs 30.3 x 24 x 40."""
    placement = place(base, ServiceRequest("r", "service3"), "rampa")
    cost = {"L4": 30.3 * 24, "V100": 14 * 32, "A30": 10.3 * 24, "T4": 8.1 * 16}
    kinds = [base.cluster.kinds[base.cluster.gpus[base.cluster.gpu_id[g]].kind].name for g in placement.gpus]
    assert sum(cost[kind] for kind in kinds) <= cost["V100"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", ["same", "high-throughput", "low-delay", "huge-model"])
def test_no_allocator_beats_the_bound_and_anytime_comes_near(base_search, services, case):
    requests = requests_of(demand_of_services(case, services), 500, seed=1)
    bound = bound_of_requests(base_search, services, requests)
    placed = {}
    for name in ("first-fit", "anytime"):
        state = ClusterState(base_search.cluster, services, base_search)
        placed[name] = next((i for i, r in enumerate(requests) if try_place(state, r, name) is None), len(requests))
        assert placed[name] <= bound
    assert placed["anytime"] > placed["first-fit"]
    assert placed["anytime"] >= 0.97 * bound


def test_the_bound_by_hand():
    """Two racks of two GPUs and one fibre. A service needs 2 slow, or 1 fast, or a slow and a fast GPU."""
    cluster = small_cluster(racks=2, gpus=2)
    service = chain_service([40, 40], cycle_ns=45, latency_ns=400)
    search = ClusterSearch(cluster)
    assert sorted(map(tuple, search.mixes(service).gpus.tolist())) == [(0, 1), (2, 0)]
    assert bound_of_demand(search, [service], {"chain": 1}) == pytest.approx(3)
    assert bound_of_requests(search, [service], [ServiceRequest(f"{i}", "chain") for i in range(9)]) == 3


def test_the_bound_counts_circuits():
    """A slow GPU holds one operator, a fast one the other: each service needs both, and one fibre joins the racks."""
    cluster = small_cluster(racks=2, gpus=3, fibres=1)
    service = chain_service([40, 100], cycle_ns=55, latency_ns=400)
    search = ClusterSearch(cluster)
    assert search.mixes(service).gpus.tolist() == [[0, 2], [1, 1]]
    # One by a circuit; then two fast GPUs are left, for one more without.
    assert bound_of_demand(search, [service], {"chain": 1}) == pytest.approx(2)
    program = MixProgram(search, [service])
    none = program.solve({"chain": 1}, search.kind_gpus, np.zeros(1, dtype=np.int64))
    assert none.count == pytest.approx(1.5)


def test_a_demand_that_is_given_decides():
    """Of two services, one can run on either kind and the other only on the fast one: who knows keeps the fast GPUs."""
    cluster = small_cluster(racks=2, gpus=2)
    either = chain_service([40], cycle_ns=45, latency_ns=400, name="either")
    fast = chain_service([80], cycle_ns=45, latency_ns=400, name="fast")
    state = ClusterState(cluster, [either, fast])
    placement = place(state, ServiceRequest("r", "either"), "anytime", {"demand": {"fast": 1, "either": 1}})
    assert placement.gpus[0].startswith("r0")


def test_the_last_gpus_are_not_wasted(services):
    """Huge models on the high-performance cluster: GPUs used to be left at switches without a free fibre."""
    search = ClusterSearch(load_cluster("rampa-high-performance"))
    requests = requests_of(demand_of_services("huge-model", services), 400, seed=0)
    placed = {}
    for name in ("first-fit", "anytime"):
        state = ClusterState(search.cluster, services, search)
        placed[name] = next(i for i, r in enumerate(requests) if try_place(state, r, name) is None)
    assert placed["first-fit"] < placed["anytime"] <= bound_of_requests(search, services, requests)


@pytest.mark.parametrize(
    ("service", "message"),
    [
        (chain_service([1, 1], memory=[25, 1]), "memory: it holds"),
        (chain_service([90, 90], cycle_ns=30), "throughput: at best a cycle of 0.000 ms on 2 fast"),
        (chain_service([90, 90], cycle_ns=90, latency_ns=80), "latency: at best 0.000 ms on"),
    ],
)
def test_what_fails_is_told(service, message):
    state = ClusterState(small_cluster(), [service])
    with pytest.raises(InfeasibleError) as caught:
        place(state, ServiceRequest("r", "chain"), "anytime")
    assert message in str(caught.value)


def test_by_how_much_is_told(base, services):
    """Two T4 miss the latency of service 3 by 0.098 ms: 2 x 24.55 + 1.0 instead of 50."""
    for rack in ("rack0", "rack4", "rack8", "rack12", *(f"rack{4 * i + j}" for i in range(4) for j in (1, 2))):
        base.fail(rack)
    with pytest.raises(InfeasibleError, match=r"latency: at best 50\.\d+ ms on 2 T4, 50\.000 ms are allowed"):
        place(base, ServiceRequest("r", "service3"), "rampa")


def test_missing_fibres_are_told(base, services):
    for link in base.cluster.links:
        base.fail(link.name)
    for rack in ("rack0", "rack4", "rack8", "rack12", "rack1", "rack5", "rack9", "rack13"):
        base.fail(rack)
    for rack in ("rack2", "rack6", "rack10", "rack14"):
        for server in range(5):
            for gpu in range(8):
                if (server, gpu) != (0, 0):
                    base.fail(f"{rack}-server{server}-gpu{gpu}")
    with pytest.raises(InfeasibleError, match=r"circuits: .* would do, but the free fibres \(0 of 128\)"):
        place(base, ServiceRequest("r", "service3"), "anytime")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("best", {}, "there is no allocator 'best'"),
        ("rampa", {"speed": 1}, "allocator 'rampa' has no option 'speed'"),
        ("rampa", {"agents": 0}, "option agents is 0"),
        ("ncar", {"stages": {"service1": 99}}, "1 to 15 are allowed"),
        ("anytime", {"demand": {"service9": 1}}, "demand is"),
    ],
)
def test_wrong_input_is_told(base, name, options, message):
    with pytest.raises(InputError, match=message):
        place(base, ServiceRequest("r", "service1"), name, options)


def test_ten_thousand_gpus_are_placed(services):
    large = load_cluster("rampa-large")
    racks = tuple(
        msgspec.structs.replace(
            rack,
            name=f"{rack.name}x{i}",
            servers=tuple(msgspec.structs.replace(s, name=f"{s.name}x{i}") for s in rack.servers),
        )
        for i in range(7)
        for rack in large.racks
    )
    cluster = msgspec.structs.replace(large, racks=racks)
    assert len(cluster.gpus) == 10_080
    state = ClusterState(cluster, services)
    for i, service in enumerate(services):
        place(state, ServiceRequest(f"r{i}", service.name), "anytime")
    verify(cluster, services, state.allocation)


def test_the_status_of_a_placement_is_not_the_allocators_word(monkeypatch):
    monkeypatch.setattr(ALLOCATORS, "entries", dict(ALLOCATORS.entries))

    @register("boasting")
    def boast(state, service, options):
        """What `anytime` finds."""
        return replace(get("anytime").function(state, service, get("anytime").options()), status="optimal")

    state = ClusterState(small_cluster(), [chain_service([5, 5])])
    assert place(state, ServiceRequest("r", "chain"), "boasting").status == "no better found"
