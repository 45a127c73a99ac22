"""The independent checker of clusters: what is placed and proved is accepted, what is changed in either is refused."""

import json

import pytest
from cluster_cases import chain_service, small_cluster
from hypothesis import given, settings
from hypothesis import strategies as st

from thorough import examples
from tvm_sched_check.clusters import Refused, check
from tvm_sched_check.clusters.bound import bound_of
from tvm_sched_check.clusters.document import Cluster, Service
from tvm_sched_cluster import ClusterState, ServiceRequest, load_cluster, load_services, requests_of, try_place
from tvm_sched_cluster.bounds.mix_bound_evidence import evidence
from tvm_sched_cluster.problem.service import Edge
from tvm_sched_cluster.search.cluster_search import ClusterSearch
from tvm_sched_runtime.errors import InputError


def checked(folder, allocation, found):
    paths = [folder / "allocation.json", folder / "evidence.json"]
    for path, document in zip(paths, (allocation, found), strict=True):
        path.write_text(json.dumps(document))
    return check(*paths)


def placed(search, services, requests, method):
    state = ClusterState(search.cluster, services, search)
    for request in requests:
        if try_place(state, request, method, {}) is None:
            break
    return state.allocation


@pytest.mark.parametrize(
    ("name", "demand"), [("rampa-base", {"service1": 1, "service5": 2}), ("rampa-high-performance", {"service3": 1})]
)
def test_what_is_placed_and_proved_on_presets_is_accepted(folder, name, demand):
    search, services = ClusterSearch(load_cluster(name)), load_services()
    requests = requests_of(demand, 12, 0)
    allocation = placed(search, services, requests, "first-fit")
    found = evidence(search, services, requests_of(demand, 700, 0))
    verdict = checked(folder, json.loads(allocation.to_json()), json.loads(found.to_json()))
    assert verdict.placed == len(allocation.placements) == 12
    assert verdict.proved == found.bound < 700
    assert verdict.all_proved


def small(seed, draw):
    """A chain of up to four operators, perhaps with an edge back, and its cluster."""
    times = draw(st.lists(st.integers(5, 60), min_size=1, max_size=4))
    edges = [Edge(f"op{i}", f"op{i + 1}", 10) for i in range(len(times) - 1)]
    if len(times) > 1 and draw(st.booleans()):
        edges.append(Edge(f"op{len(times) - 1}", "op0", 5))
    limits = {"cycle_ns": draw(st.integers(30, 150)), "latency_ns": draw(st.integers(60, 600))}
    return small_cluster(gpus=2, fibres=draw(st.integers(1, 2))), chain_service(times, edges=tuple(edges), **limits)


@settings(max_examples=examples(40), deadline=None)
@given(
    data=st.data(),
    method=st.sampled_from(["anytime", "first-fit", "rampa"]),
    prices=st.lists(st.integers(0, 9), min_size=4, max_size=4),
)
def test_no_prices_prove_less_than_is_placed(folder, data, method, prices):
    cluster, service = small(0, data.draw)
    search, requests = ClusterSearch(cluster), [ServiceRequest(f"r{i}", service.name) for i in range(6)]
    allocation = placed(search, [service], requests, method)
    found = evidence(search, [service], requests)
    assert checked(folder, json.loads(allocation.to_json()), json.loads(found.to_json())).all_proved
    slow, fast, cut, fibre = prices
    made_up = {"gpus": {"slow": slow, "fast": fast}, "cuts": [{"kinds": ["slow"], "price": cut}], "fibre": fibre}
    independent = Cluster(cluster.text)
    own = {service.name: Service(service.text, independent)}
    assert bound_of(independent, own, [service.name] * 6, made_up) >= len(allocation.placements)


CHANGES = {
    "a figure": lambda a, e: a["placements"][0].update(cycle_ns=a["placements"][0]["cycle_ns"] - 1),
    "an operator that is left out": lambda a, e: a["placements"][0]["stages"][0]["operators"].pop(),
    "a GPU twice": lambda a, e: a["placements"][1]["stages"][0].update(gpu=a["placements"][0]["stages"][0]["gpu"]),
    "a GPU that failed": lambda a, e: a.update(failed=[a["placements"][0]["stages"][0]["gpu"]]),
    "a circuit that is left out": lambda a, e: a["placements"][-1]["circuits"].pop(),
    "another cluster": lambda a, e: e.update(cluster=e["cluster"].replace("1", "2", 1)),
    "a faster service": lambda a, e: e["services"].update(chain=e["services"]["chain"].replace("60.0", "6.0", 1)),
    "a price below nothing": lambda a, e: e["prices"]["gpus"].update(slow=-1),
    "a cut that is none": lambda a, e: e["prices"]["cuts"].append({"kinds": ["nobody"], "price": 1}),
    "other requests": lambda a, e: e["requests"].reverse(),
    "a bound below what is placed": lambda a, e: e.update(bound=1),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_changed_is_refused(folder, what):
    cluster = small_cluster(gpus=4, fibres=4)
    service = chain_service([60, 60, 60], cycle_ns=100, latency_ns=1000)
    search, requests = ClusterSearch(cluster), [ServiceRequest(f"r{i}", service.name) for i in range(8)]
    allocation = placed(search, [service], requests, "first-fit")
    assert len(allocation.placements) >= 2
    documents = json.loads(allocation.to_json()), json.loads(evidence(search, [service], requests).to_json())
    assert checked(folder, *documents).all_proved
    CHANGES[what](*documents)
    with pytest.raises(Refused):
        checked(folder, *documents)


def test_evidence_is_of_chains(folder):
    cluster, service = small_cluster(), chain_service([5, 5, 5], edges=(Edge("op0", "op2", 1),))
    with pytest.raises(InputError, match="not a chain"):
        evidence(ClusterSearch(cluster), [service], [ServiceRequest("r", service.name)])
