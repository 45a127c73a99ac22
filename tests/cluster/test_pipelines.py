"""From models to services, and from placements to pipeline plans."""

import msgspec
import pytest
from cluster_cases import small_cluster

from tvm_sched.cost_model import costs
from tvm_sched.errors import InputError
from tvm_sched.pipeline import verify
from tvm_sched.problem import Operator, OpGraph, Problem, Tensor
from tvm_sched_cluster import ClusterState, ServiceRequest, place
from tvm_sched_cluster.placement_pipelines import plan_of_placement, segments, service_of_graph, stage_topology

SIZES = {"x": 2, "w": 3, "a": 5, "b": 7, "c": 11, "d": 13, "y": 17}


def fork_and_join():
    """x - f - a - (g - b, h - c) - join - d - last - y, where h and last read the parameter w."""
    tensors = [
        Tensor(name, size, {"x": "input", "w": "parameter"}.get(name, "activation")) for name, size in SIZES.items()
    ]
    rows = [("f", "x", "a"), ("g", "a", "b"), ("h", "aw", "c"), ("join", "bc", "d"), ("last", "dw", "y")]
    operators = [Operator(name, "", tuple(reads), (makes,), flops=100) for name, reads, makes in rows]
    return OpGraph("fork", tuple(operators), tuple(tensors), ("y",))


def placed(cluster, service):
    return place(ClusterState(cluster, [service]), ServiceRequest("r0", service.name))


def test_a_graph_is_cut_where_one_activation_goes_on():
    found = [(segment.name, segment.operators, segment.output) for segment in segments(fork_and_join())]
    assert found == [("f", ("f",), 5), ("g", ("g", "h", "join"), 13), ("last", ("last",), 0)]


def test_a_service_counts_work_parameters_and_what_is_made():
    service = service_of_graph(fork_and_join(), 10, 0.1)
    assert (service.name, service.throughput, service.latency) == ("fork", 10, 0.1)
    assert [(o.name, o.flops, o.memory, o.output) for o in service.operators] == [
        ("f", 100, 5, 5),
        ("g", 300, 7 + 11 + 13 + 3, 13),
        ("last", 100, 17 + 3, 0),
    ]
    assert service.blocks == ((0, 1), (1, 2), (2, 3))


def test_a_placement_becomes_a_plan_of_whole_stages():
    # The parts hold 5, 34 and 20 bytes besides their inputs; a GPU holds 40.
    graph, cluster = fork_and_join(), small_cluster(memory=40)
    placement = placed(cluster, service_of_graph(graph, 10, 0.1))
    topology = stage_topology(cluster, placement, "emulated")
    problem = Problem(graph, topology, costs(graph, topology))
    plan = plan_of_placement(problem, placement)
    verify(problem, plan)
    assert sorted(o for stage in plan.stages for o in stage.operators) == ["f", "g", "h", "join", "last"]
    assert len(plan.stages) == len(placement.stages) == 2
    assert [device.memory for device in topology.devices] == [40, 40]


def test_circuits_become_links():
    cluster = small_cluster(racks=2, gpus=1, memory=40)
    placement = placed(cluster, service_of_graph(fork_and_join(), 10, 0.1))
    (link,) = stage_topology(cluster, placement, "cuda").links
    assert link.devices == ("stage0", "stage1")
    assert (link.bandwidth, round(link.latency * 1e9)) == (1e9, 5)  # over one link: `small_cluster`


def test_a_service_of_another_model_is_refused():
    graph, cluster = fork_and_join(), small_cluster(memory=40)
    service = service_of_graph(graph, 10, 0.1)
    placement = placed(cluster, service)
    topology = stage_topology(cluster, placement, "cpu")
    other = msgspec.structs.replace(
        graph, operators=tuple(msgspec.structs.replace(o, name=f"other {o.name}") for o in graph.operators)
    )
    with pytest.raises(InputError, match="service 'fork' was made of another model than 'fork': it has no segment 'f'"):
        plan_of_placement(Problem(other, topology, costs(other, topology)), placement)
    single = stage_topology(cluster, msgspec.structs.replace(placement, stages=placement.stages[:1]), "cpu")
    with pytest.raises(InputError, match="has 2 stages; topology 'cpu1' has 1 devices"):
        plan_of_placement(Problem(graph, single, costs(graph, single)), placement)
