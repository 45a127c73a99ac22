"""Services come and go, parts fail and are repaired, and nothing is lost or held twice."""

import numpy as np
import pytest
from cluster_cases import chain_service, small_cluster
from lifecycle_cases import held

from tvm_sched.progress import report_to
from tvm_sched_cluster import (
    Allocation,
    ClusterState,
    ServiceRequest,
    defragment,
    demand_of_services,
    fail,
    place,
    recover,
    requests_of,
    try_place,
    verify,
)
from tvm_sched_runtime.errors import InputError, ScheduleError


@pytest.mark.slow
@pytest.mark.parametrize("events", [10_000, pytest.param(100_000, marks=pytest.mark.thorough)])
def test_random_events_keep_the_books_right(events):
    """After each event of a sample, and at the end, the whole state is verified; each request is somewhere throughout."""
    cluster = small_cluster(racks=5, gpus=4, fibres=2)
    services = (
        chain_service([40], cycle_ns=50, latency_ns=100, name="short"),
        chain_service([40, 40], memory=[6, 6], cycle_ns=100, latency_ns=400, name="two"),
        chain_service([30, 90, 30], memory=[4, 8, 4], cycle_ns=50, latency_ns=900, name="fast-inside"),
    )
    state = ClusterState(cluster, services)
    random = np.random.default_rng(7)
    parts = [*cluster.gpu_id, *cluster.servers, *(link.name for link in cluster.links)]
    alive: set[str] = set()
    most = 0
    for event in range(events):
        kind = random.choice(5, p=[0.5, 0.38, 0.05, 0.06, 0.01])
        if kind == 0:
            request = ServiceRequest(f"r{event}", services[random.integers(3)].name)
            if try_place(state, request, "first-fit"):
                alive.add(request.name)
        elif kind == 1 and alive:
            name = sorted(alive)[random.integers(len(alive))]
            state.release(name)
            alive.remove(name)
        elif kind == 2:
            fail(state, parts[random.integers(len(parts))], "first-fit")
        elif kind == 3 and state.failed:
            state.repair(state.failed[random.integers(len(state.failed))])
            recover(state, "first-fit")
        elif kind == 4 and event % 10 == 0:
            defragment(state, 1)
        most = max(most, len(state.running))
        if event % 97 == 0:
            held(state)
            assert {*state.running, *state.waiting} == alive
        if event % 5000 == 0:
            verify(cluster, services, state.allocation)
    assert most >= 10
    held(state)
    verify(cluster, services, state.allocation)


@pytest.mark.parametrize("part", ["rack0-server0-gpu0", "rack0-server0", "rack1"])
def test_what_failed_is_placed_anew(base, services, part):
    for request in requests_of(demand_of_services("same", services), 60, seed=2):
        place(base, request)
    hit = {p.request for p in base.running.values() if set(p.gpus) & set(base.parts(part))}
    assert hit
    recovery = fail(base, part)
    assert {p.request for p in recovery.replaced} == hit
    assert not recovery.waiting
    assert base.asked.total() == 60
    held(base)
    verify(base.cluster, services, base.allocation)


def test_a_link_that_fails_takes_its_circuits():
    cluster = small_cluster(racks=2, gpus=2)
    service = chain_service([40, 100], cycle_ns=55, latency_ns=400)
    state = ClusterState(cluster, [service])
    state.fail("r1-server0-gpu1")
    place(state, ServiceRequest("r", "chain"))
    assert len(state.running["r"].hops) == 1
    assert [request.name for request in fail(state, "s1-s0").waiting] == ["r"]
    assert state.allocation.waiting == (ServiceRequest("r", "chain"),)
    with pytest.raises(InputError, match="'r' runs or waits already"):
        place(state, ServiceRequest("r", "chain"))
    state.repair("s0-s1")
    assert [p.request for p in recover(state).replaced] == ["r"]
    held(state)


def test_release_gives_all_back(base, services):
    before = base.gpus.copy(), base.fibres.copy()
    for request in requests_of(demand_of_services("huge-model", services), 30, seed=5):
        place(base, request)
    for name in list(base.running):
        base.release(name)
    assert (base.gpus == before[0]).all()
    assert (base.fibres == before[1]).all()
    with pytest.raises(InputError, match="no request 'r0' runs"):
        base.release("r0")


def test_defragment_makes_room_in_few_moves(base, services):
    """After half of the services of a greedy allocator are gone, moves free GPUs that are worth more."""
    requests = requests_of(demand_of_services("same", services), 150, seed=4)
    for request in requests:
        assert try_place(base, request, "first-fit")
    for request in requests[::2]:
        base.release(request.name)
    assert defragment(base, 0) == []
    running = set(base.running)
    said = []
    with report_to(lambda *heard: said.append(heard)):
        moves = defragment(base, 5)
    assert 1 <= len(moves) <= 5
    assert said == [("moves", done, 5) for done in range(min(len(moves) + 1, 5))]
    for move in moves:
        assert move.gain > 0
        assert move.bytes == base.service(move.after.service).memory
        assert not set(move.before.gpus) & set(move.after.gpus)  # copied before it was given up
    assert set(base.running) == running
    held(base)
    verify(base.cluster, services, base.allocation)
    with pytest.raises(InputError, match="moves is -1"):
        defragment(base, -1)


def test_a_state_is_what_its_document_says(base, services, tmp_path):
    for request in requests_of(demand_of_services("same", services), 20, seed=1):
        place(base, request)
    fail(base, "rack3")
    base.allocation.save(tmp_path / "a.json")
    again = ClusterState.of(base.cluster, services, Allocation.load(tmp_path / "a.json"))
    assert again.allocation == base.allocation
    assert (again.gpus == base.gpus).all()
    assert (again.fibres == base.fibres).all()
    with pytest.raises(ScheduleError, match="rule 'cluster'"):
        ClusterState.of(small_cluster(), services, base.allocation)


def test_unknown_parts_are_told(base):
    with pytest.raises(InputError, match="has no GPU, server, rack or link 'rack99'"):
        fail(base, "rack99")
