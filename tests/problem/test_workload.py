"""Workloads: what they check, what their digest names, and problems that nobody can change."""

import dataclasses
import pickle

import pytest

from schedule import cases
from tvm_sched_runtime.errors import FormatError, InputError
from tvm_sched_runtime.problem import Problem, Request, Scenario, Workload, merge_problems


def problem():
    graph = cases.graph({"x": 1, "w": 400, "t": 1, "u": 1}, [("o", "x w", "t"), ("p", "t", "u")], outputs=("u",))
    topology = cases.topology(cases.device("d", "b"), buses=(cases.bus("b"),))
    return cases.problem(graph, topology, [[100], [100]])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lags_ns": (3, -1)}, r"lags_ns are \[3, -1\]; whole numbers from 0 are allowed"),
        ({"objective": "energy"}, r"objective is 'energy'; latency, slowdown are allowed"),
        ({"model_weights": (1,)}, r"model_weights are \[1.0\]; they are allowed with objective 'slowdown' alone"),
    ],
)
def test_a_workload_checks_itself(fields, message):
    with pytest.raises(InputError, match=message):
        Workload(**fields)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_request_checks_its_weight(weight):
    with pytest.raises(InputError, match=r"weight .*; a finite number above 0 is allowed"):
        Request((), weight)


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (Workload([Request(("v",))]), r"resident names \['v'\]; a list of the graph's parameters is allowed"),
        (Workload([Request(("x",))]), r"resident names \['x'\]"),
        (Workload(lags_ns=(1, 2)), r"lags_ns are \[1, 2\]; a number from 0 for each of 1 models is allowed"),
        (Workload(submodels=[["p"], ["o"]]), "operator 'p' stands in the submodels before one that it reads from"),
        (Workload(submodels=[["o"]]), "must hold each operator of the problem once"),
        (Workload(submodels=[["o", "q"], ["p"]]), "a submodel has the operator 'q'"),
    ],
)
def test_a_workload_is_checked_against_its_problem(workload, message):
    with pytest.raises(InputError, match=message):
        workload.check(problem())


def test_the_digest_names_what_a_schedule_is_judged_by_and_nothing_else():
    workloads = [
        Workload(),
        Workload([Request(("w",))]),
        Workload([Request(("w",)), Request(())]),
        Workload([Request(("w",)), Request((), 2.0)]),
        Workload(lags_ns=(5,)),
        Workload(objective="slowdown"),
        Workload(objective="slowdown", model_weights=(1, 2)),
        Workload(submodels=[["o"], ["p"]]),
    ]
    assert len({workload.digest for workload in workloads}) == len(workloads)
    assert Workload([Request(("b", "a", "b"))]).digest == Workload([Request(("a", "b"))]).digest
    assert Workload(lags_ns=(0, 0)) == Workload()
    for workload in workloads:
        for same in (pickle.loads(pickle.dumps(workload)), Workload.from_json(workload.to_json())):
            assert same == workload
            assert same.digest == workload.digest
    with pytest.raises(FormatError, match="resident"):
        Workload.from_json(Workload().to_json().replace(b'"lags_ns"', b'"resident"'))


def test_nobody_can_change_a_problem_a_workload_or_a_scenario():
    given = problem()
    for thing, name in ((given, "costs"), (given, "variants"), (given, "resident"), (Scenario(given), "resident")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(thing, name, None)
    with pytest.raises(AttributeError):
        Workload().requests = ()


def test_a_scenario_is_a_run_of_the_workload():
    given = merge_problems([problem(), problem()])
    (name, *_) = given.graph.models
    workload = Workload([Request((f"{name}/w",)), Request(())], lags_ns=(1, 2))
    warm, cold = workload.scenarios(given)
    assert warm == workload.scenario(given) == Scenario(given, [f"{name}/w"], (1, 2))
    assert cold == warm.with_resident(()) != warm
    assert warm.workload.scenarios(given) == [warm]
    t = given.graph.index.tensor_id[f"{name}/w"]
    assert (warm.load_ns(t, 0), cold.load_ns(t, 0)) == (0, given.load_ns(t, 0))


def test_a_derived_problem_has_the_parts_that_it_is_given():
    given = problem()
    derived = Problem.derive(given.graph, given.topology, given.costs)
    assert derived.digest == given.digest
    assert derived.resolve() is derived
