"""Solutions that are none: each kind says what is wrong with them."""

import json

import pytest

from tvm_sched_cluster import ClusterState, try_place
from tvm_sched_runtime.errors import TvmSchedError


def judged(suite, name, body):
    case = suite.case(name)
    return case.kind.worth(case.task, json.dumps(body).encode(), "mine.json")


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([["a", "b"], ["c"]], "do not hold each node"),
        ([["a", "b", "b"], ["c", "d"]], "do not hold each node"),
        ([["a"], ["b"], ["c", "d"]], "3 stages; at most 2"),
        ([["c", "d"], ["a", "b"]], "in an earlier stage"),
        ([["b", "a"], ["c", "d"]], "'b' runs before 'a'"),
    ],
)
def test_partitions(suite, stages, message):
    case = suite.case("chain/chain-s2")
    body = {"format": "tvm_sched.partition", "version": 1, "instance": case.digest, "stages": stages}
    with pytest.raises(TvmSchedError, match=message):
        judged(suite, case.name, body)
    body["stages"] = [["a", "b", "c"], ["d"]]
    assert judged(suite, case.name, body) == 13
    with pytest.raises(TvmSchedError, match="a partition of instance 'other'"):
        judged(suite, case.name, {**body, "instance": "other"})


@pytest.mark.parametrize(
    ("subgraph", "message"),
    [([0, 0], "3 numbers from 0 to 2"), ([0, 0, 3], "from 0 to 2"), ([1, 1, 1], "memory, contiguity")],
)
def test_placements(suite, subgraph, message):
    case = suite.case("workload/workload")
    body = {"format": "tvm_sched.placement", "version": 1, "instance": case.digest, "subgraph": subgraph}
    with pytest.raises(TvmSchedError, match=message):
        judged(suite, case.name, body)
    assert judged(suite, case.name, {**body, "subgraph": [0, 1, 2]}) == 10 + 0.5 + 1


def test_schedules_of_other_problems(suite):
    body = {"format": "tvm_sched.schedule", "version": 1, "problem": "other", "placements": [], "transfers": []}
    with pytest.raises(TvmSchedError, match="a schedule of problem 'other'"):
        judged(suite, "random/problem-cold", body)


def test_requests_are_placed_in_their_order(suite):
    case = suite.case("services/huge-model-s0")
    state = ClusterState(case.task.cluster, case.task.services)
    for request in case.task.requests[:2]:
        try_place(state, request, "first-fit")
    assert case.kind.worth(case.task, state.allocation.to_json(), "mine") == 2
    assert case.proof.bound > 100
    state.release(case.task.requests[0].name)
    with pytest.raises(TvmSchedError, match="not the first 1 requests"):
        case.kind.worth(case.task, state.allocation.to_json(), "mine")
