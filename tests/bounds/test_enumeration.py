"""The bound `enumeration`: equal to the optimum, the same for the checker, and what the checker refuses."""

import itertools
import json
import time
from random import Random

import numpy as np
import pytest

from bounds.switch_cases import fan
from checker.cases import certified, files_of
from tvm_sched.bounds import all_bounds, enumeration, lower_bound
from tvm_sched.bounds.enumeration import enumeration_bound
from tvm_sched.bounds.relaxation import Relaxation
from tvm_sched.report.explanation import explain
from tvm_sched.schedulers import solve
from tvm_sched_bench.task_files import tasks_on_switch
from tvm_sched_check import Refused
from tvm_sched_check.derivation import Derivation
from tvm_sched_check.document import Problem as Read
from tvm_sched_check.enumeration import Enumeration as Rule
from tvm_sched_runtime.search_budget import ending_at


def random_tasks(seed, tasks=None, devices=None, delays=range(7)):
    """A random graph, by default of up to five tasks on two or three devices: twins, forks, joins or independent ones."""
    random = Random(seed)
    tasks, devices = tasks or random.randint(3, 5), devices or random.randint(2, 3)
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
    return tasks_on_switch(
        "random", "test", times, reads, [a for a, _ in edges], [random.choice(delays) for _ in edges]
    )


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


def test_states_that_differ_in_one_start_are_told_apart():
    """Copies of 100 ns are too late, so states differ in few numbers; these ones had equal hashes once."""
    times = dict(zip("ykrvzgWouhx", (3, 6, 1, 1, 6, 1, 11, 5, 5, 9, 6), strict=True))
    edges = [("y", "z", 100), ("y", "g", 1), ("y", "W", 1), ("r", "o", 100)]
    edges += [("v", "u", 100), ("k", "h", 100), ("g", "h", 1), ("z", "x", 100)]
    place, reads = (
        {name: k for k, name in enumerate(times)},
        [[t for t, edge in enumerate(edges) if edge[1] == v] for v in times],
    )
    rows = np.repeat([[ns] for ns in times.values()], 4, axis=1)
    problem = tasks_on_switch("t", "test", rows, reads, [place[a] for a, _, _ in edges], [ns for *_, ns in edges])
    # y z x on one device, k h, r v g o u, and W; the work is 54 ns, and W begins at 4 at the earliest.
    assert lower_bound(problem).ns == 15


@pytest.mark.parametrize("seed", [2, 10, 14, 19, 28, 29, 31, 32])
def test_the_checker_accepts_the_bound_where_copies_are_too_late(seed):
    """It compares states by other code; here their numbers are often "too late" or "earlier"."""
    problem = random_tasks(seed, tasks=9, devices=4, delays=(1, 100))
    claim = enumeration_bound(Relaxation(problem))
    assert claim is not None
    assert checked(problem, *claim) == claim.ns


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


def test_a_search_without_time_is_not_taken_for_the_strongest(monkeypatch):
    problem = fan(60, contention=False)
    with monkeypatch.context() as patched, ending_at(time.monotonic() + 1000):
        patched.setattr(enumeration, "STATES_PER_SECOND", 1e-9)
        assert lower_bound(problem) == (410, "device work")
    assert lower_bound(problem) == (420, "enumeration")


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
