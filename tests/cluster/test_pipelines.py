"""From models to services, and from placements to pipeline plans."""

import msgspec
import pytest
from cluster_cases import small_cluster

from tvm_sched.cost_model import costs
from tvm_sched_cluster import ClusterState, ServiceRequest, load_cluster, load_services, place, write_services
from tvm_sched_cluster.placement_pipelines import plan_of_placement, segments, service_of_graph, stage_topology
from tvm_sched_cluster.problem.service import operator_ns
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.pipeline import verify
from tvm_sched_runtime.problem import Operator, OpGraph, Problem, Tensor

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


def test_times_come_from_the_cost_model_kernel_by_kernel(tmp_path):
    """100 FLOPs take 100 ns on slow and 50 ns on fast, and each kernel 5 us to launch; a table says its own times."""
    kinds = small_cluster().kinds
    made = service_of_graph(fork_and_join(), 10, 0.1, kinds=kinds)
    expected = [(k * 5100, k * 5050) for k in (1, 3, 1)]
    assert [tuple(operator_ns(part, kind) for kind in kinds) for part in made.operators] == expected
    placement = placed(small_cluster(memory=100), made)
    assert placement.latency_ns == 5 * 5050  # all on one fast GPU; by FLOPs alone it were 5 * 50
    write_services(tmp_path / "services.toml", [made])
    assert load_services(tmp_path / "services.toml") == (made,)
    table = tmp_path / "times.csv"
    table.write_text("operator,device,seconds\n*,slow,0.5\n*,fast,0.25\nh,fast,0.125\n")
    told = service_of_graph(fork_and_join(), 10, 0.1, kinds=kinds, cost_model=str(table))
    assert [part.latency for part in told.operators] == [
        {"slow": 0.5, "fast": 0.25},
        {"slow": 1.5, "fast": 0.625},
        {"slow": 0.5, "fast": 0.25},
    ]
    table.write_text("operator,device,seconds\n*,*,1\nh,fast,inf\n")
    with pytest.raises(InputError, match="operator 'h' cannot run on 'fast'"):
        service_of_graph(fork_and_join(), 10, 0.1, kinds=kinds, cost_model=str(table))


def test_a_known_gpu_has_its_rates_for_other_types():
    """Half precision on the tensor cores of an L4; float32 is the cluster file's."""
    kind = load_cluster("rampa-base").kinds[0]
    assert kind.name == "L4"
    half = msgspec.structs.replace(fork_and_join(), tensors=tuple(
        msgspec.structs.replace(tensor, dtype="float16") for tensor in fork_and_join().tensors
    ), operators=tuple(msgspec.structs.replace(o, flops=121e9) for o in fork_and_join().operators))  # fmt: skip
    (first, *_) = service_of_graph(half, 10, 0.1, kinds=[kind]).operators
    assert operator_ns(first, kind) == 1_005_000


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
