"""Cycle, latency and memory of placements, worked out by hand."""

import pytest
from cluster_cases import chain_service, small_cluster

from tvm_sched_cluster import Circuit, Edge, Hop, ServicePlacement, ServiceStage
from tvm_sched_cluster.problem.placement_pricing import price


def placed(service, gpus, ends, circuits=()):
    stages, first = [], 0
    for gpu, end in zip(gpus, ends, strict=True):
        stages.append(ServiceStage(gpu, tuple(o.name for o in service.operators[first:end])))
        first = end
    return ServicePlacement("r", service.name, service.digest, tuple(stages), tuple(circuits), 0, 0)


def test_one_stage_has_its_own_time_for_cycle_and_latency():
    service = chain_service([4, 6])
    got = price(small_cluster(), service, placed(service, ["r0-server0-gpu0"], [2]))
    assert (got.cycle_ns, got.latency_ns, got.memory) == (10, 10, (2,))


def test_two_stages_in_a_rack():
    # Stages of 4 and 6 ns; 5 bytes take 3 ns of delays and 5 of transmission, longer than both.
    service = chain_service([4, 6], outputs=[5, 1])
    got = price(
        small_cluster(), service, placed(service, ["r0-server0-gpu0", "r0-server0-gpu1"], [1, 2], [Circuit(0, 1)])
    )
    assert got.cycle_ns == 8
    assert got.latency_ns == 8 + 8 + 8  # equation (2): a cycle for each stage, and the transfer
    assert got.memory == (1, 1 + 5)


def test_a_circuit_through_a_fibre_takes_its_link_and_switch():
    service = chain_service([40, 40], outputs=[5, 1])
    circuit = Circuit(0, 1, (Hop("s0-s1", 0),))
    got = price(small_cluster(), service, placed(service, ["r0-server0-gpu0", "r1-server0-gpu0"], [1, 2], [circuit]))
    assert (got.cycle_ns, got.latency_ns) == (40, 40 + 40 + (3 + 2 + 5))  # the second GPU is fast: 20 ns


def test_the_longest_way_through_the_graph_counts():
    # a feeds b and c; both feed d. Stages {a}, {b, c}, {d}: the edge from a to d of stage 0 is no longer than the way by b.
    edges = (Edge("op0", "op1", 1), Edge("op0", "op2", 1), Edge("op1", "op3", 2), Edge("op0", "op3", 7))
    service = chain_service([10, 5, 5, 10], edges=edges)
    gpus = [f"r0-server0-gpu{i}" for i in range(3)]
    ways = [Circuit(0, 1), Circuit(1, 2), Circuit(0, 2)]
    got = price(small_cluster(gpus=3), service, placed(service, gpus, [1, 3, 4], ways))
    assert got.cycle_ns == 10
    assert got.latency_ns == 10 + (10 + 4) + (10 + 5)
    assert got.memory == (1, 2 + 2, 1 + 2 + 7)


@pytest.mark.parametrize(("target", "cycle"), [("op0", 10 + 4 + 10), ("op1", 10)])
def test_a_loop_over_stages_lasts_as_long_as_they_take_together(target, cycle):
    """Equation (3): a backward edge holds the stages from its target to its source, and what is sent between them."""
    edges = (Edge("op0", "op1", 1), Edge("op1", target, 1))
    service = chain_service([10, 10], edges=edges)
    circuits = [Circuit(0, 1)] + ([Circuit(1, 0)] if target == "op0" else [])
    got = price(small_cluster(), service, placed(service, ["r0-server0-gpu0", "r0-server0-gpu1"], [1, 2], circuits))
    assert got.cycle_ns == cycle
    assert got.latency_ns == 2 * cycle + 4
