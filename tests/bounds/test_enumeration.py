"""The bound `enumeration`: equal to the optimum, the same for the checker, and what the checker refuses."""

import itertools
import json
from random import Random

import numpy as np
import pytest

from bounds.test_region_ports import fan
from checker.cases import certified, files_of
from tvm_sched.bounds import all_bounds, lower_bound
from tvm_sched.bounds.enumeration import enumeration_bound
from tvm_sched.bounds.relaxation import Relaxation
from tvm_sched.report.explanation import explain
from tvm_sched.schedulers import solve
from tvm_sched_bench.task_files import tasks_on_switch
from tvm_sched_check import Refused
from tvm_sched_check.derivation import Derivation
from tvm_sched_check.document import Problem as Read
from tvm_sched_check.enumeration import Enumeration as Rule


def random_tasks(seed):
    """A random graph of up to five tasks on two or three devices, some of them twins, forks, joins or independent."""
    random = Random(seed)
    tasks, devices = random.randint(3, 5), random.randint(2, 3)
    shape = random.choice(["any", "fork", "join", "none"])
    joined = {
        "any": lambda a, b: random.random() < 0.4,
        "fork": lambda a, b: a == 0,
        "join": lambda a, b: b == tasks - 1,
        "none": lambda a, b: False,
    }[shape]
    edges = [(a, b) for a, b in itertools.combinations(range(tasks), 2) if joined(a, b)]
    times = np.repeat([[random.randint(1, 4)] for _ in range(tasks)], devices, axis=1)
    reads = [[t for t, edge in enumerate(edges) if edge[1] == v] for v in range(tasks)]
    return tasks_on_switch("random", "test", times, reads, [a for a, _ in edges], [random.randint(0, 6) for _ in edges])


def optimum(problem):
    """Try all devices of all tasks with all orders: the definition, without any of the search's ideas."""
    index, devices = problem.graph.index, range(len(problem.topology.devices))
    before = {v: [(index.producer[t], problem.graph.tensors[t].size) for t in index.inputs[v]] for v in index.order}
    orders = [
        order for order in itertools.permutations(index.order)
        if all(order.index(u) < order.index(v) for v in order for u, _ in before[v])
    ]  # fmt: skip
    best = sum(problem.costs.operator_ns[:, 0])
    for place in itertools.product(devices, repeat=len(index.order)):
        for order in orders:
            free, end = [0 for _ in devices], {}
            for v in order:
                came = [end[u] + (size if place[u] != place[v] else 0) for u, size in before[v]]
                end[v] = max([free[place[v]], *came]) + problem.costs.operator_ns[v, 0]
                free[place[v]] = end[v]
            best = min(best, max(free))
    return int(best)


def checked(problem, ns, backwards):
    """What the checker says of a claim."""
    known = Derivation(Read(json.loads(problem.to_json())))
    return Rule().least(known, None, None, {"ns": ns, "backwards": backwards})


@pytest.mark.parametrize("seed", range(24))
def test_the_bound_is_the_optimum_and_the_checker_agrees(seed):
    problem = random_tasks(seed)
    best = optimum(problem)
    assert lower_bound(problem).ns == best
    for backwards in (False, True):
        assert checked(problem, best, backwards) == best
        assert checked(problem, best + 1, backwards) == 0


def test_a_fan_by_hand(tmp_path):
    """`docs/proofs/enumeration.md`; the certificate is checked, and one that claims more is refused."""
    problem = fan(60, contention=False)
    by_name = {bound.name: bound.ns for bound in all_bounds(problem)}
    assert (by_name["critical path"], by_name["device work"], by_name["enumeration"]) == (400, 410, 420)
    schedule = certified(problem, solve(problem, method="single"))
    files = files_of(problem, schedule)
    assert files.evidence["lemmas"][-1] == {"rule": "enumeration", "backwards": False, "ns": 420}
    assert files.check(tmp_path).proved_ns == 420
    assert "All ways to begin a schedule were looked at" in " ".join(explain(problem, schedule))
    files.evidence["lemmas"][-1]["ns"] = 421
    with pytest.raises(Refused, match="claims 421 ns"):
        files.check(tmp_path)


def test_anytime_offers_the_schedule_that_the_bound_found():
    """List scheduling and HEFT miss it, and no search has work."""
    times = np.repeat([[3], [3], [2], [2], [2]], 2, axis=1)
    problem = tasks_on_switch("partition", "test", times, [[]] * 5, [], [])  # 3 + 3 and 2 + 2 + 2
    assert solve(problem, method="heft").certificate.latency_ns == 7
    found = solve(problem, method="anytime", options={"work": 1e-9})
    assert found.certificate.latency_ns == 6
    assert found.certificate.status == "optimal"


def test_it_is_left_out_where_the_argument_does_not_hold():
    unequal = tasks_on_switch("t", "test", np.array([[4, 4], [4, 5], [4, 4]]), [[], [], []], [], [])
    assert enumeration_bound(Relaxation(unequal)) is None
    assert enumeration_bound(Relaxation(fan(60))) is None  # copies wait for ports
    assert enumeration_bound(Relaxation(fan(60, contention=False), of_schedules=False)) is None
    long = tasks_on_switch("t", "test", np.full((65, 2), 3), [[] for _ in range(65)], [], [])
    assert enumeration_bound(Relaxation(long)) is None


def test_the_checker_refuses_what_the_rule_is_not_about():
    unequal = tasks_on_switch("t", "test", np.array([[4, 4], [4, 5]]), [[], []], [], [])
    with pytest.raises(Refused, match="some operator takes longer"):
        checked(unequal, 4, False)
    long = tasks_on_switch("t", "test", np.full((65, 2), 3), [[] for _ in range(65)], [], [])
    with pytest.raises(Refused, match="at most 64 operators"):
        checked(long, 4, False)
    with pytest.raises(Refused, match="true or false"):
        checked(fan(60, contention=False), 420, 1)


def test_the_checker_stops_at_its_limit_of_states():
    rule, problem = Rule(), fan(60, contention=False)
    rule.states = 3
    with pytest.raises(Refused, match="states to look at"):
        rule.least(Derivation(Read(json.loads(problem.to_json()))), None, None, {"ns": 420, "backwards": False})
