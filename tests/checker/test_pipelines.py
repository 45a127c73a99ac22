"""The independent checker of pipelines: evidence is accepted, proves no more than holds for all plans, lies are refused."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from strategies import SEEDS, problems
from thorough import examples
from tvm_sched.bounds.partitions import semidefinite
from tvm_sched.bounds.partitions.semidefinite_evidence import Effort
from tvm_sched.pipeline import bound_steps, plan_pipeline
from tvm_sched.pipeline.pipeline_evidence import certified, evidence
from tvm_sched_bench.testing import random_problem
from tvm_sched_check.document import Problem, Refused
from tvm_sched_check.partitions.bound import can_be_cut, least_around
from tvm_sched_check.pipelines import check
from tvm_sched_check.pipelines.bound import relaxed
from tvm_sched_check.pipelines.plan import Plan
from tvm_sched_runtime.errors import InfeasibleError, InputError, ProblemError
from tvm_sched_runtime.pipeline import PipelinePlan
from tvm_sched_runtime.pipeline.stage_pricing import price


def files_of(problem, plan, stages):
    return SimpleNamespace(
        problem=problem.to_json(),
        plan=json.loads(plan.to_json()),
        evidence=json.loads(evidence(problem, plan, stages).to_json()),
    )


def checked(folder, files):
    paths = [folder / f"{name}.json" for name in ("problem", "plan", "evidence")]
    paths[0].write_bytes(files.problem)
    for path, document in zip(paths[1:], (files.plan, files.evidence), strict=True):
        path.write_text(json.dumps(document))
    return check(*paths)


def planned(problem, partitioner="tarnawski-dp", stages="auto"):
    try:
        return plan_pipeline(problem, stages, partitioner)
    except (InfeasibleError, InputError, ProblemError):
        assume(False)


@settings(max_examples=examples(60), deadline=None)
@given(
    problem=problems(max_operators=10, max_devices=4, min_operators=1), dynamic=st.booleans(), more=st.integers(0, 4)
)
def test_evidence_of_any_plan_is_accepted(folder, problem, dynamic, more):
    """Also where more stages are allowed than there are devices."""
    plan = planned(problem, "tarnawski-dp" if dynamic else "pipedream")
    devices = len(problem.topology.devices)
    verdict = checked(folder, files_of(problem, plan, devices + more))
    assert verdict.cost_ns == plan.cost_ns == plan.certificate.cost_ns
    if plan.certificate.bound in ("simple", "node", "ideals"):
        assert verdict.all_proved


@pytest.mark.thorough
@settings(max_examples=examples(12), deadline=None)
@given(problem=problems(max_operators=10, max_devices=4, min_operators=4, memory=("generous",)))
def test_a_bound_of_multipliers_is_what_the_stored_ones_prove(folder, problem):
    """Whatever the certificate said before; also where devices and links are unequal."""
    plan = planned(problem)
    devices = len(problem.topology.devices)
    certificate = replace(plan.certificate, bound="semidefinite", lower_bound_ns=0, status="no better found")
    plan = replace(plan, certificate=certificate)
    found = evidence(problem, plan, devices, effort=Effort(100, 150))
    files = SimpleNamespace(
        problem=problem.to_json(),
        plan=json.loads(certified(plan, found).to_json()),
        evidence=json.loads(found.to_json()),
    )
    verdict = checked(folder, files)
    assert verdict.all_proved
    assert found.rule != "semidefinite" or verdict.certified_ns == verdict.proved_ns == found.ns > 0


def test_evidence_where_the_argument_of_the_bound_cannot_be_stored(folder):
    """Multipliers that prove more than the formulas; the certificate keeps what it claims."""
    problem = random_problem(18, operators=12, devices=3, memory="generous")
    plan = planned(problem)
    claim = plan.certificate.lower_bound_ns
    plain = evidence(problem, replace(plan, certificate=replace(plan.certificate, bound="node")), 3)
    for name in ("prices", "exact (solver highs)"):
        by_prices = replace(plan, certificate=replace(plan.certificate, bound=name))
        found = evidence(problem, by_prices, 3, effort=Effort(200, 150))
        assert found.rule == "semidefinite"
        assert plain.ns < found.ns <= claim
        assert certified(by_prices, found) == by_prices
        files = [json.loads(each.to_json()) for each in (by_prices, found)]
        verdict = checked(folder, SimpleNamespace(problem=problem.to_json(), plan=files[0], evidence=files[1]))
        assert (verdict.certified_ns, verdict.proved_ns) == (claim, found.ns)
        assert verdict.all_proved == (found.ns == claim)


@pytest.mark.thorough
def test_work_limits_the_search_for_multipliers_in_iterations(monkeypatch):
    problem = random_problem(18, operators=12, devices=3, memory="generous")
    plan = planned(problem)
    plan = replace(plan, certificate=replace(plan.certificate, bound="prices"))
    taken = []
    run = semidefinite.Search.run
    monkeypatch.setattr(semidefinite.Search, "run", lambda search, n, over: (taken.append(n), run(search, n, over)))
    each = bound_steps.ITERATION_SECONDS * 12**3
    found = [evidence(problem, plan, 3, work=800 * each) for _ in range(2)]
    assert found[0] == found[1]
    assert sum(taken) == 2 * 800
    taken.clear()
    evidence(problem, plan, 3, effort=Effort(seconds=0.0))  # the least that makes evidence: one look each
    assert len(taken) == 3


@settings(max_examples=examples(60), deadline=None)
@given(problem=problems(max_operators=8, max_devices=3, min_operators=1, memory=("generous",)), seed=SEEDS)
def test_no_argument_proves_more_than_a_plan_costs(problem, seed):
    """Whatever the order of devices and the cuts of a random plan."""
    from random import Random

    random, devices = Random(seed), list(range(len(problem.topology.devices)))
    checked_problem = Problem(json.loads(problem.to_json()))
    assume(all(any(row) for row in checked_problem.normal))  # pipelines know no direct reads
    graph = relaxed(checked_problem, devices)
    around = max(least_around(graph, o) for o in range(graph.size)) * graph.unit
    order = problem.graph.index.order
    for _ in range(8):
        random.shuffle(devices)
        ends = sorted(random.randint(0, len(order)) for _ in devices[1:])
        parts = [
            (d, list(order[a:b])) for d, a, b in zip(devices, [0, *ends], [*ends, len(order)], strict=True) if a < b
        ]
        try:
            stages = price(problem, parts)
        except ProblemError:
            continue
        if any(problem.costs.operator_ns[o, d] >= 2**62 for d, own in parts for o in own):
            continue
        cost = max(stage.cost_ns for stage in stages)
        assert around <= cost
        assert can_be_cut(graph, len(parts), cost + 1)
        if any(s.peak_bytes > problem.topology.devices[d].memory for s, (d, _) in zip(stages, parts, strict=True)):
            continue
        said = json.loads(PipelinePlan(problem.digest, tuple(stages)).to_json())["stages"]
        assert Plan(checked_problem, said).cost == cost


@pytest.mark.thorough
@settings(max_examples=examples(20), deadline=None)
@given(
    problem=problems(max_operators=8, max_devices=3, min_operators=2, memory=("generous",)), change=st.integers(0, 6)
)
def test_what_is_changed_is_refused(folder, problem, change):
    plan = planned(problem)
    files = files_of(problem, plan, len(problem.topology.devices))
    stage = files.plan["stages"][0]
    if change == 0:
        stage["work_ns"] -= 1
    elif change == 1:
        stage["operators"] = stage["operators"][1:]
    elif change == 2:
        files.evidence["ns"] = plan.cost_ns + 1
    elif change == 3:
        files.evidence["rule"] = "because"
    elif change == 4:
        files.evidence["problem"] = "0" * 16
    elif change == 5:
        files.plan["certificate"]["cost_ns"] += 1
    else:
        files.evidence["stages"] = 0
    with pytest.raises(Refused):
        checked(folder, files)
