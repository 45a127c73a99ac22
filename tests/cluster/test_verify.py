"""Each rule is broken by one change of a placement that keeps them all."""

import msgspec
import pytest
from cluster_cases import chain_service, small_cluster

from tvm_sched_cluster import (
    Allocation,
    Circuit,
    ClusterState,
    Hop,
    ServiceRequest,
    ServiceStage,
    place,
    verify,
    violations,
)
from tvm_sched_cluster.problem.placement_rules import RULES
from tvm_sched_runtime.errors import ScheduleError

replace = msgspec.structs.replace


@pytest.fixture
def case():
    """Two services of two stages each: the first has a rack's two GPUs, the other one a GPU in each of two racks."""
    cluster = small_cluster(racks=3, gpus=2, second_kind="slow", memory=4)
    services = (chain_service([40, 40], memory=[2, 2], cycle_ns=60, latency_ns=400),)
    state = ClusterState(cluster, services)
    state.fail("r2-server0-gpu1")
    for name in ("a", "b"):
        place(state, ServiceRequest(name, "chain"), "first-fit")
    first, second = state.running.values()
    # The second one over a fibre, by hand.
    gpus = ["r1-server0-gpu0", "r2-server0-gpu0"]
    second = replace(
        second,
        stages=tuple(replace(s, gpu=g) for s, g in zip(second.stages, gpus, strict=True)),
        circuits=(Circuit(0, 1, (Hop("s1-s2", 0),)),),
        latency_ns=40 + 40 + 3 + 2 + 1,
    )
    return cluster, services, Allocation(cluster.digest, (first, second), state.failed)


def test_the_case_keeps_all_rules(case):
    assert violations(*case) == []


def changed(allocation, position, **fields):
    placements = list(allocation.placements)
    placements[position] = replace(placements[position], **fields)
    return replace(allocation, placements=tuple(placements))


def stages_on(allocation, *gpus):
    return tuple(replace(s, gpu=g) for s, g in zip(allocation.placements[1].stages, gpus, strict=True))


BREAKS = {
    "cluster": lambda a: replace(a, cluster="0"),
    "request-twice": lambda a: changed(a, 1, request="a"),
    "service": lambda a: changed(a, 1, service_digest="0"),
    "gpu-unknown": lambda a: changed(a, 1, stages=stages_on(a, "r1-server0-gpu0", "r2-server0-gpu7")),
    "gpu-twice": lambda a: changed(
        a, 1, stages=a.placements[0].stages, circuits=a.placements[0].circuits, latency_ns=84
    ),
    "operators": lambda a: changed(a, 1, stages=(a.placements[1].stages[0], ServiceStage("r2-server0-gpu0", ()))),
    "stage-order": lambda a: changed(
        a, 1, stages=(ServiceStage("r1-server0-gpu0", ("op1",)), ServiceStage("r2-server0-gpu0", ("op0",)))
    ),
    "circuit": lambda a: changed(a, 1, circuits=(Circuit(0, 1, ()),)),
    "fibre": lambda a: changed(a, 1, circuits=(Circuit(0, 1, (Hop("s1-s2", 1),)),)),
    "fibre-twice": lambda a: replace(
        a,
        placements=(
            a.placements[1],
            replace(a.placements[1], request="c", stages=stages_on(a, "r1-server0-gpu1", "r2-server0-gpu0")),
        ),
    ),
    "failed": lambda a: changed(a, 1, stages=stages_on(a, "r1-server0-gpu0", "r2-server0-gpu1")),
    "figures": lambda a: changed(a, 1, latency_ns=1),
}


@pytest.mark.parametrize("rule", BREAKS)
def test_a_broken_rule_is_named(case, rule):
    cluster, services, allocation = case
    broken = BREAKS[rule](allocation)
    assert rule in {violation.rule for violation in violations(cluster, services, broken)}
    with pytest.raises(ScheduleError, match=rf"rule '{rule}'|rule 'gpu-twice'"):
        verify(cluster, services, broken)


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("throughput", {"throughput": 1e9 / 39}),
        ("latency", {"latency": 83e-9}),
        ("memory", {"operators": chain_service([40, 40], memory=[4, 4]).operators}),
    ],
)
def test_a_requirement_that_is_missed_is_named(case, rule, change):
    cluster, (service,), allocation = case
    stricter = replace(service, **change)
    now = replace(
        allocation, placements=tuple(replace(p, service_digest=stricter.digest) for p in allocation.placements)
    )
    assert rule in {violation.rule for violation in violations(cluster, [stricter], now)}


def test_all_rules_are_tried():
    assert {*BREAKS, "throughput", "latency", "memory"} == set(RULES)
