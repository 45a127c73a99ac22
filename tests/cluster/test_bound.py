"""The bound on clusters against every placement that `verify` accepts, and by hand."""

from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from itertools import count, product
from random import Random

import msgspec
import numpy as np
import pytest
from cluster_cases import chain_service, small_cluster

from tvm_sched_cluster import Circuit, Cluster, GpuKind, Hop, Link, Rack, Server, ServiceRequest, ServiceStage, Switch
from tvm_sched_cluster.bounds.gpu_cover import any_cover
from tvm_sched_cluster.bounds.mix_bound import MixProgram, bound_of_demand, bound_of_requests, least_tree
from tvm_sched_cluster.problem.placement_pricing import price
from tvm_sched_cluster.problem.placement_rules import placement_violations
from tvm_sched_cluster.problem.service import Edge
from tvm_sched_cluster.problem.service_placement import ServicePlacement
from tvm_sched_cluster.search.cluster_search import ClusterSearch


def placement_on(cluster, service, gpu_of):
    """The placement with each operator on a GPU, over fibres 0, 1, ...; None if stages wait for each other."""
    gpus = dict.fromkeys(gpu_of.values())
    before = {gpu: set() for gpu in gpus}
    for edge in service.all_edges:
        a, b = gpu_of[edge.source], gpu_of[edge.target]
        if a != b and service.operator_id[edge.source] < service.operator_id[edge.target]:
            before[b].add(a)
    try:
        order = list(TopologicalSorter(before).static_order())
    except CycleError:
        return None
    stages = tuple(ServiceStage(g, tuple(o.name for o in service.operators if gpu_of[o.name] == g)) for g in order)
    joined = {(order.index(gpu_of[e.source]), order.index(gpu_of[e.target])) for e in service.all_edges}
    fibre = count()
    circuits = tuple(
        Circuit(a, b, () if order[a][:2] == order[b][:2] else (Hop("s0-s1", next(fibre)),))
        for a, b in sorted(joined)
        if a != b
    )
    if next(fibre) > cluster.links[0].fibres:
        return None
    placement = ServicePlacement("r", service.name, service.digest, stages, circuits, 0, 0)
    priced = price(cluster, service, placement)
    return msgspec.structs.replace(placement, cycle_ns=priced.cycle_ns, latency_ns=priced.latency_ns)


def most_at_once(cluster, service):
    """How many of a service fit at once, by all sets of placements: of each, its GPUs and number of fibres count."""
    names = [gpu.name for gpu in cluster.gpus]
    held = set()
    for gpus in product(names, repeat=len(service.operators)):
        gpu_of = dict(zip(service.operator_id, gpus, strict=True))
        placement = placement_on(cluster, service, gpu_of)
        if placement and not list(placement_violations(cluster, service, placement)):
            held.add((frozenset(placement.gpus), len(placement.hops)))

    def most(free, fibres):
        rest = [1 + most(free - gpus, fibres - hops) for gpus, hops in held if gpus <= free and hops <= fibres]
        return max(rest, default=0)

    return most(frozenset(names), cluster.links[0].fibres)


def random_service(seed):
    """Up to four operators: a chain, one with edges that skip or lead back, or any graph."""
    random = Random(seed)
    size = random.randint(1, 4)
    style = random.choice(["chain", "skips", "loops", "any"])
    pairs = [(a, b) for a in range(size) for b in range(a + 1, size)]
    edges = [(a, b) for a, b in pairs if style != "any" and b == a + 1]
    if style == "skips":
        edges += [pair for pair in pairs if random.random() < 0.4]
    if style == "loops" and size > 1:
        edges.append((random.randrange(1, size), 0))
    if style == "any":
        edges = [pair for pair in pairs if random.random() < 0.5]
    made = tuple(Edge(f"op{a}", f"op{b}", random.randint(1, 60)) for a, b in edges)
    times = [random.randint(1, 60) for _ in range(size)]
    return chain_service(
        times,
        memory=[random.randint(1, 8) for _ in range(size)],
        cycle_ns=random.randint(25, 120),
        latency_ns=random.randint(60, 800),
        edges=made,
    )


@pytest.mark.parametrize("block", range(3))
def test_no_set_of_placements_beats_the_bound(block):
    reached = 0
    for seed in range(40 * block, 40 * block + 40):
        service = random_service(seed)
        cluster = small_cluster(racks=2, gpus=2, fibres=Random(seed).randint(0, 2) or 1, memory=40)
        most = most_at_once(cluster, service)
        search = ClusterSearch(cluster)
        assert most <= bound_of_demand(search, [service], {"chain": 1}) + 1e-9, seed
        assert most <= bound_of_requests(search, [service], [ServiceRequest(f"{i}", "chain") for i in range(5)]), seed
        reached += most > 0
    assert reached > 10, "there is something to place"


def test_an_edge_that_skips_an_operator_hides_no_placement():
    """a-b-c and a-c: the searches cut it nowhere, but three GPUs serve it."""
    edges = tuple(Edge(f"op{a}", f"op{b}", 1) for a, b in ((0, 1), (1, 2), (0, 2)))
    service = chain_service([40, 40, 40], cycle_ns=45, latency_ns=400, edges=edges)
    cluster = small_cluster(racks=2, gpus=3, fibres=3, second_kind="slow")
    search = ClusterSearch(cluster)
    assert search.mixes(service).gpus.tolist() == []
    assert most_at_once(cluster, service) == 2
    assert bound_of_demand(search, [service], {"chain": 1}) == pytest.approx(2)


def test_operators_that_read_nothing_of_each_other_share_gpus_in_any_way():
    """Times 30, 50, 30 within 60 ns: no run of them fits two GPUs, but the first and the last share one."""
    service = chain_service([30, 50, 30], cycle_ns=60, latency_ns=400, edges=())
    cluster = small_cluster(racks=2, gpus=2, second_kind="slow")
    assert most_at_once(cluster, service) == 2
    assert bound_of_demand(ClusterSearch(cluster), [service], {"chain": 1}) == pytest.approx(2)


@pytest.mark.parametrize("edges", [None, ()])
@pytest.mark.parametrize("throughput", [1e9, 2e9, 1e300])
def test_operators_that_take_no_time_take_a_gpu(throughput, edges):
    """More inputs than one a nanosecond leave no time between two."""
    service = msgspec.structs.replace(chain_service([0, 0], [0, 0], edges=edges), throughput=throughput)
    assert bound_of_demand(ClusterSearch(small_cluster()), [service], {"chain": 1}) == pytest.approx(4)


def test_pipelines_of_more_stages_than_searches_look_for():
    service = chain_service([10] * 70, cycle_ns=14, latency_ns=10**6)
    cluster = small_cluster(racks=2, gpus=70, second_kind="slow")
    search = ClusterSearch(cluster)
    assert not len(search.mixes(service).gpus)
    assert bound_of_demand(search, [service], {"chain": 1}) == pytest.approx(2)


def test_kinds_in_between_make_a_pipeline_hold_fewer_fibres():
    """Three racks around one: three GPUs of the outer kinds hold four fibres, with one of the middle they hold three."""
    kinds = tuple(GpuKind(name, 1e9, 2, 1e18) for name in ("a", "b", "c", "middle"))
    switches = tuple(Switch(f"s-{kind.name}", 1e-9) for kind in kinds)
    links = tuple(Link((f"s-{name}", "s-middle"), 1e9, 1e-9, 1) for name in "abc")
    racks = tuple(
        Rack(f"r-{kind.name}", f"s-{kind.name}", (Server(f"r-{kind.name}", kind.name, 1),), 1e9, 1e-9) for kind in kinds
    )
    search = ClusterSearch(Cluster("star", kinds, switches, racks, links))
    program = MixProgram(search, [chain_service([10] * 4)], any_cover)
    assert least_tree(np.array([1, 1, 1, 0]), program.kind_hops) == 3


def test_the_duals_of_a_solver_need_not_be_taken_at_their_word():
    """Whatever duals are said, what they prove is no less than the optimum."""
    cluster = small_cluster(racks=2, gpus=2)
    service = chain_service([40, 40], cycle_ns=45, latency_ns=400)
    program = MixProgram(ClusterSearch(cluster), [service], any_cover)
    honest, fibres = program.solve, np.ones(1, dtype=np.int64)
    for seed in range(20):
        random = Random(seed)

        def lie(*arguments, random=random):
            future = honest(*arguments)
            prices = [price * random.choice([0.5, 1, 3]) + random.choice([-1e-7, 0, 1e-3]) for price in future.prices]
            return replace(future, prices=prices, needs={"chain": [random.uniform(0.1, 2)]})

        program.solve = lie
        assert program.proved({"chain": 1}, program.search.kind_gpus, fibres) >= 3
