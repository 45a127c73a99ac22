"""Warm problems: what is resident takes no time and no channel, memory counts, and no bound exceeds a schedule."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedule.residency_cases import chain
from strategies import SEEDS, scheduled_problems
from thorough import examples
from tvm_sched.bounds import all_bounds, lower_bound
from tvm_sched.schedulers.common.greedy import list_schedule, priorities
from tvm_sched.schedulers.common.partial import PartialSchedule
from tvm_sched.schedulers.solve_latency import certificate
from tvm_sched_bench.testing import random_problem, random_schedule
from tvm_sched_bench.testing.variant_problems import random_variants
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import (
    Alternative,
    Costs,
    Group,
    Operator,
    Problem,
    Request,
    Scenario,
    Tensor,
    Variants,
    Workload,
)
from tvm_sched_runtime.schedule import (
    Certificate,
    RequestLatency,
    Schedule,
    ScheduleIndex,
    evaluate,
    requests_of,
    simulate,
    verify,
    violations,
)

from . import cases


def parameters(problem):
    return [tensor.name for tensor in problem.graph.tensors if tensor.kind == "parameter"]


def some_of(problem, seed):
    return [name for k, name in enumerate(parameters(problem)) if seed >> k & 1]


@pytest.mark.parametrize(
    ("resident", "latency"),
    [((), 250), (("w1",), 150), (("w2",), 200), (("w1", "w2"), 100)],
)
def test_loads_of_resident_parameters_take_no_time_and_no_bus(resident, latency):
    problem = chain()
    schedule = cases.schedule(problem, ["p d0", "q d0"], ["load w1 d0", "load w2 d0"])
    warm = Scenario(problem, resident)
    run = simulate(problem, schedule, resident)
    assert ScheduleIndex.of(warm, schedule).times.latency_ns == run.latency_ns == latency
    assert {e.name for e in run.events if e.kind == "load"} == {"w1", "w2"} - set(resident)
    assert warm.problem is problem
    assert warm.with_resident(()) == Scenario(problem)


def test_a_copy_of_a_resident_parameter_takes_no_time_and_an_evicted_one_is_loaded():
    problem = chain()
    warm = Scenario(problem, ["w1", "w2"])
    through = cases.schedule(problem, ["p d0", "q d0"], ["load w1 d1", "copy w1 d1 d0", "load w2 d0"])
    assert simulate(problem, through, warm.resident).latency_ns == 100
    assert warm.load_ns(0, 0) == warm.copy_ns(0, 0, 1) == 0
    assert problem.load_ns(0, 0) == 100
    evicting = through.replace(
        transfers=tuple(msgspec.structs.replace(t, evict=t.tensor == "w1") for t in through.transfers)
    )
    assert (
        simulate(problem, evicting, warm.resident).latency_ns
        == simulate(problem, evicting, resident=["w2"]).latency_ns
        == 300
    )


def test_a_direct_read_of_a_resident_parameter_uses_the_bus():
    problem = chain()
    schedule = cases.schedule(problem, ["p d0 direct", "q d0"], ["host_read p d0", "load w2 d0"])
    assert simulate(problem, schedule, ["w1"]).latency_ns == 250
    assert simulate(problem, schedule, ["w1", "w2"]).latency_ns == 180


def test_what_is_resident_takes_memory_from_the_start():
    problem = chain(memory=215)
    schedule = cases.schedule(problem, ["p d0", "q d0"], ["load w1 d0", "load w2 d0"])
    index = ScheduleIndex.of(Scenario(problem, ["w1", "w2"]), schedule)
    assert index.times.peak_memory.tolist() == [220, 0]
    assert "of a warm run with 2 parameters there" in violations(problem, schedule, resident=1.0)[-1].message
    assert violations(problem, schedule, resident=["w1", "w2"])[-1].rule == "memory"


@settings(max_examples=examples(80), deadline=None)
@given(drawn=scheduled_problems(), seed=SEEDS)
def test_a_warm_problem_is_priced_like_a_warm_run_and_no_bound_exceeds_it(drawn, seed):
    problem, schedule = drawn
    names = some_of(problem, seed)
    warm = Scenario(problem, names)
    latency = ScheduleIndex.of(warm, schedule).times.latency_ns
    assert latency == simulate(problem, schedule, resident=names).latency_ns
    if problem.graph.operators:
        for bound in all_bounds(warm):
            assert bound.ns <= latency, bound


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 10_000), operators=st.integers(1, 20), devices=st.integers(1, 6), chosen=SEEDS)
def test_what_searches_believe_of_a_warm_problem_is_what_the_simulator_says(seed, operators, devices, chosen):
    problem = random_problem(seed, operators, devices, memory="generous")
    warm = Scenario(problem, some_of(problem, chosen))
    state = PartialSchedule(warm)
    list_schedule(state, range(operators), priorities(problem))
    assert simulate(problem, state.to_index().to_schedule(), warm.resident).latency_ns == state.latency


@settings(max_examples=examples(30), deadline=None)
@given(seed=st.integers(0, 10_000), operators=st.integers(2, 10), devices=st.integers(1, 4))
def test_bounds_of_warm_problems_with_variants_hold_for_every_choice(seed, operators, devices):
    problem = random_variants(random_problem(seed, operators, devices, memory="generous"), seed)
    for part in (0.5, 1.0):
        (request,) = requests_of(problem, part) or (Request(()),)
        warm = Scenario(problem, request.resident)
        bound = lower_bound(warm)
        ways = problem.variants.groups[0].alternative_names if problem.variants else ("",)
        for way in ways:
            choice = {problem.variants.groups[0].name: way} if problem.variants else {}
            chosen = warm.resolve(choice)
            assert chosen.problem is problem.resolve(choice)
            schedule = random_schedule(chosen.problem, seed)
            assert bound.ns <= simulate(chosen.problem, schedule, chosen.resident).latency_ns


def test_a_part_takes_the_parameters_that_are_needed_first():
    problem = chain()
    found = {part: requests_of(problem, part) for part in (0, 0.4, 0.5, 0.99, 1)}
    assert found == {0: (), 0.4: (), 0.5: (Request(("w1",)),), 0.99: (Request(("w1",)),), 1: (Request(("w1", "w2")),)}
    assert requests_of(problem, ["w2"]) == (Request(("w2",)),)
    assert requests_of(problem, [(0, 1), (1, 3), (0.5, 0)]) == (Request((), 1.0), Request(("w1", "w2"), 3.0))


def test_the_parts_of_a_parameter_are_there_with_it():
    graph = cases.graph({"w1": 100, "w2": 100, "b": 10}, [("p", "w1 w2", "b")], outputs=("b",))
    plain = cases.problem(graph, cases.topology(cases.device("d0", "bus"), buses=(cases.bus("bus"),)), [[50]])
    part = Alternative("cut", (Operator("half", "", ("w/0",), ("b",)),), (Tensor("w/0", 50, "parameter"),))
    variants = Variants([Group("g", ("p",), (part,))], Costs([[30]]))
    problem = Problem(graph, plain.topology, plain.costs, variants)
    assert requests_of(problem, 1) == (Request(("w/0", "w1", "w2")),)
    assert requests_of(problem, 0.5) == (Request(("w1",)),)


@pytest.mark.parametrize(
    ("resident", "message"),
    [
        (1.5, "a fraction from 0 to 1"),
        (float("nan"), "a fraction from 0 to 1"),
        ("w1", "a list of parameters"),
        (["w1", "a"], r"resident names \['a'\]"),
        ([(0, -1), (1, 2)], "weights of requests"),
        ([(0, 0), (1, 0)], "weights of requests"),
        ([(0, float("inf"))], "weights of requests"),
        ([(0, 1), "w1"], "resident names"),
        ([(0, 1, 2)], "pairs of what is resident and a weight"),
        ([(0, "often")], "pairs of what is resident and a weight"),
    ],
)
def test_what_cannot_be_resident_is_refused(resident, message):
    with pytest.raises(InputError, match=message):
        requests_of(chain(), resident)


def test_the_certificate_says_for_which_requests_it_is():
    problem = chain()
    schedule = cases.schedule(problem, ["p d0", "q d0"], ["load w1 d0", "load w2 d0"])
    asked = requests_of(problem, [(0, 1), (1, 3)])
    made = certificate(problem, schedule, Workload(asked))
    assert [(r.latency_ns, r.lower_bound_ns) for r in made.requests] == [(250, 230), (100, 100)]
    assert (made.latency_ns, made.lower_bound_ns) == ((250 + 3 * 100) // 4, (230 + 3 * 100) // 4)
    certified = schedule.replace(certificate=made)
    verify(problem, certified)
    assert evaluate(problem, certified, Workload(made.requests))[0] == made.latency_ns
    assert Schedule.from_json(certified.to_json()) == certified
    cold = schedule.replace(certificate=certificate(problem, schedule, Workload()))
    assert b"requests" not in cold.to_json()
    assert Schedule.from_json(cold.to_json()) == cold
    wrong = msgspec.structs.replace(made.requests[1], latency_ns=99)
    false = certified.replace(certificate=msgspec.structs.replace(made, requests=(made.requests[0], wrong)))
    assert "for request 2" in violations(problem, false)[0].message
    unknown = Certificate(250, 0, requests=(RequestLatency(("nothing",)),))
    assert "nothing" in violations(problem, schedule.replace(certificate=unknown))[0].message
    with pytest.raises(InputError, match="weight"):
        Request((), 0.0)
