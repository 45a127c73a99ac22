"""The spread of a schedule's latency, worked by hand on a chain of two equal operators."""

import numpy as np
import pytest

from tvm_sched.cost_model.uncertainty import (
    draws,
    latency_interval,
    most_useful,
    pipeline_intervals,
    sample_latencies,
)
from tvm_sched.pipeline import plan_pipeline
from tvm_sched.schedulers import solve
from tvm_sched_runtime.errors import CostsError, InputError
from tvm_sched_runtime.problem import (
    Bus,
    Concurrency,
    Costs,
    Device,
    Operator,
    OpGraph,
    Problem,
    Request,
    Tensor,
    Topology,
    Uncertainty,
    Workload,
)
from tvm_sched_runtime.problem.variants import Alternative, Group, Variants
from tvm_sched_runtime.schedule import Placement, Schedule, requests_of, resolved

TOPOLOGY = Topology("one", (Device("d", 1 << 20, 1e9, {"float32": 1e9}, "cpu"),))


def chain(kinds=("add", "add"), low=(500, 500), high=(2000, 2000), shared=0.0, uncertain=True):
    tensors = tuple(
        Tensor(name, 4, "input" if name == "t0" else "activation", (1,), "float32") for name in ("t0", "t1", "t2")
    )
    operators = tuple(Operator(f"o{n}", kind, (f"t{n}",), (f"t{n + 1}",)) for n, kind in enumerate(kinds))
    said = Uncertainty(
        np.array(low)[:, None], np.array(high)[:, None], np.full((2, 1), shared), np.array([[False], [True]])
    )
    costs = Costs([[1000], [1000]], source="test", uncertainty=said if uncertain else None)
    problem = Problem(OpGraph("g", operators, tensors, ("t2",)), TOPOLOGY, costs)
    return problem, solve(problem, method="single")


def test_certain_times_have_no_spread():
    problem, schedule = chain(low=(1000, 1000), high=(1000, 1000))
    assert set(sample_latencies(problem, schedule, 5).tolist()) == {2000}


def test_equal_kernels_err_alike():
    problem, schedule = chain()
    latencies = np.sort(sample_latencies(problem, schedule, 4000, seed=1))
    assert latencies[400] == pytest.approx(2 * 500, rel=0.06), (
        "one draw for both, so 10 % are below the sum of the lows"
    )
    assert latencies[3600] == pytest.approx(2 * 2000, rel=0.06)
    assert latencies[2000] == pytest.approx(2000, rel=0.05)


def test_a_shared_error_does_not_cancel_out():
    spreads = [
        np.log(sample_latencies(*chain(("add", "multiply"), shared=shared), 1500)).std() for shared in (0.0, 0.5, 1.0)
    ]
    assert spreads[0] < spreads[1] < spreads[2]
    assert spreads[2] == pytest.approx(np.log(2) / 1.2816, rel=0.1)


def test_same_seed_same_draws():
    problem, schedule = chain()
    assert (sample_latencies(problem, schedule, 9, 3) == sample_latencies(problem, schedule, 9, 3)).all()
    assert (sample_latencies(problem, schedule, 9, 3) != sample_latencies(problem, schedule, 9, 4)).any()


def test_a_draw_depends_on_seed_and_number_alone():
    problem, _ = chain()
    few, many = ([each.costs.operator_ns.tolist() for each in draws(problem, count, 7)] for count in (3, 9))
    assert few == many[:3]
    assert few[0] != few[1]


def test_alternatives_are_drawn_too():
    tensors = Tensor("x", 4, "input"), Tensor("y", 4, "activation")
    operator, other = (Operator(name, kind, ("x",), ("y",)) for name, kind in (("o", "add"), ("p", "multiply")))
    groups = [Group("g", operators=("o",), alternatives=(Alternative("b", operators=(other,)),))]
    plain = Problem(OpGraph("g", (operator,), tensors, ("y",)), TOPOLOGY, Costs([[1000]], source="test"))
    problem = Problem(plain.graph, TOPOLOGY, plain.costs, Variants(groups, Costs([[900]])))
    sure = problem.costs.operator_ns, problem.variants.costs.operator_ns
    wide, own = (Uncertainty(ns // 2, ns * 2, np.ones(ns.shape), np.zeros(ns.shape, bool)) for ns in sure)
    given = Costs(sure[0], problem.costs.direct_ns, "test", uncertainty=wide)
    variants = Variants(problem.variants.groups, Costs(sure[1], problem.variants.costs.direct_ns, uncertainty=own))
    known = Problem(problem.graph, problem.topology, given, variants)
    schedule = solve(known, options={"work": 0.01})
    drawn = list(draws(known, 20))
    assert all(each.variants.groups == known.variants.groups for each in drawn)
    assert len({tuple(each.variants.costs.operator_ns.ravel()) for each in drawn}) == 20
    low, high = latency_interval(known, schedule)
    assert low < schedule.certificate.latency_ns < high
    assert latency_interval(*resolved(known, schedule)) == (low, high)  # as reports show it


def test_the_spread_is_that_of_the_runs_that_the_schedule_is_for():
    """A load of 400 ns before the kernel of 1000 ns, in a cold run alone; one cold run for three warm ones."""
    tensors = Tensor("w", 400, "parameter"), Tensor("y", 4, "activation")
    graph = OpGraph("g", (Operator("o", "add", ("w",), ("y",)),), tensors, ("y",))
    topology = Topology("one", (Device("d", 1 << 20, 1e9, {"float32": 1e9}, bus="bus"),), (Bus("bus", 1e9),))
    certain = Uncertainty(np.array([[1000]]), np.array([[1000]]), np.zeros((1, 1)), np.array([[False]]))
    problem = Problem(graph, topology, Costs([[1000]], source="test", uncertainty=certain))
    cold, mixed = (
        solve(problem, method="single", workload=Workload(requests_of(problem, of))) for of in (0.0, [(0, 1), (1, 3)])
    )
    assert set(sample_latencies(problem, cold, 3).tolist()) == {1400}
    assert set(sample_latencies(problem, mixed, 3).tolist()) == {1100} == {mixed.certificate.latency_ns}
    assert set(sample_latencies(problem, cold, 3, workload=Workload([Request(("w",))])).tolist()) == {1000}


def test_a_pipelines_times_err_as_its_operators_do():
    certain, wide, unknown = (
        chain(low=(low,) * 2, high=(high,) * 2, uncertain=uncertain)[0]
        for low, high, uncertain in ((1000, 1000, True), (500, 4000, True), (1, 1, False))
    )
    plan = plan_pipeline(certain, 1, "tarnawski-dp")
    moved = plan.cost_ns - 2000
    assert pipeline_intervals(certain, plan) == ((plan.cost_ns,) * 2, (plan.latency_ns,) * 2)
    cost, latency = pipeline_intervals(wide, plan)
    assert cost == latency == pytest.approx((moved + 2 * 500, moved + 2 * 4000), rel=0.3)
    assert pipeline_intervals(unknown, plan) is None


def test_a_measured_pair_errs_with_its_operators():
    tensors = Tensor("x", 4, "input"), *(Tensor(name, 4, "activation") for name in ("y0", "y1"))
    operators = tuple(Operator(f"o{n}", "add", ("x",), (f"y{n}",)) for n in range(2))
    said = Uncertainty(np.full((2, 1), 500), np.full((2, 1), 2000), np.ones((2, 1)), np.zeros((2, 1), bool))
    together = Concurrency(np.ones((2, 1, 1)), pairs=[(0, 0, 1, 1800)])
    costs = Costs([[1000], [1000]], source="test", concurrency=together, uncertainty=said)
    problem = Problem(OpGraph("g", operators, tensors, ("y0", "y1")), TOPOLOGY, costs)
    stage = Schedule(problem.digest, tuple(Placement(f"o{n}", "d", stream=n, stage=1) for n in range(2)))
    low, high = np.quantile(sample_latencies(problem, stage, 1500), (0.1, 0.9))
    assert (low, high) == pytest.approx((900, 3600), rel=0.1), "as long as the two do, not 1800 in each draw"


def test_what_to_measure():
    problem, schedule = chain(("add", "multiply"), high=(2000, 9000))
    first, second = most_useful(problem, schedule)
    assert (first.operators, first.uncertain_ns, first.far) == (("o1",), 8500, True)
    assert (second.operators, second.uncertain_ns, second.far) == (("o0",), 1500, False)
    assert len(most_useful(problem, schedule, 1)) == 1


def test_costs_without_errors():
    problem, schedule = chain(uncertain=False)
    assert most_useful(problem, schedule) == []
    with pytest.raises(InputError, match="the cost model 'learned', 'measured' or 'contention'"):
        sample_latencies(problem, schedule)


def test_intervals_must_hold_the_latency():
    with pytest.raises(CostsError, match="outside of its interval 1100 to 2000 ns"):
        chain(low=(1100, 500))


def test_problem_files_keep_the_uncertainty(tmp_path):
    problem, _ = chain()
    problem.save(tmp_path / "p.json")
    assert Problem.load(tmp_path / "p.json").costs == problem.costs
